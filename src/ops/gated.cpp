#include "ops/activation.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

std::string annotation(const OpContext&) { return "*, * -> *"; }

// One fused kernel each way: act(gate) is computed again in the backward pass, so that only the two
// operands are kept.
Work work(const OpContext& c) {
  Work work = memory_work(c, 9, 1);
  work.backward_traffic = 5 * c.inputs[0].bytes();  // dy, gate, up in; dgate, dup out.
  return work;
}

Saved saved(const OpContext&) { return {{0, 1}, {}, Bytes(0)}; }

constexpr AttrSpec kAttrs[] = {
    {.name = "act",
     .type = AttrType::kString,
     .choices = "silu gelu gelu_tanh quick_gelu relu sigmoid clamped_silu identity"}};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"ffn", 32}}};
  const TensorType y{DType::kBf16, {{"experts", 4}, {"batch", 4}, {"seq", 8}, {"expert_ffn", 16}}};
  return {{{{"act", std::string("silu")}}, {x, x}}, {{}, {y, y}}};
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::string act = attr_string(c.attrs, "act", "silu");
  Slot gate{0};
  Slot up{1};
  if (act == "clamped_silu") {
    // GPT-OSS: both sides bounded by 7, the sigmoid of quick_gelu, one more than `up`.
    gate = k.call("aten::clamp_max", {gate, 7.0});
    up = k.call("aten::add.Scalar", {k.call("aten::clamp", {up, -7.0, 7.0}), 1.0});
  }
  const Slot active = activate(k, act == "clamped_silu" ? "quick_gelu" : act, gate);
  return k.finish({k.call("aten::mul.Tensor", {active, up})});
}

}  // namespace

const OpDef kGated = {
    .kind = "gated",
    .summary = "Gated linear unit, act(gate) * up (act is silu unless given): [*], [*] -> [*]",
    .aten = "",
    .operands = {2, 2},
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
