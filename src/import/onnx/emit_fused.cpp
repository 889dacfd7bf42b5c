// Nodes that fusion made (fuse.h).

#include <fmt/format.h>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

void activation(Emitter& e) { e.result(e.op(e.view().attr("kind", "gelu"), {e.in(0)})); }

// The value as [batch, seq, heads, head_dim], the layout of attention kernels.
ValueId kernel_layout(Emitter& e, std::size_t i, const char* name) {
  const std::string layout = e.view().attr(name, "bhsd");
  const ValueId x = e.in(i);
  if (layout == "bshd") return x;
  return e.transpose(x, layout == "bhds" ? Dims{0, 3, 1, 2} : Dims{0, 2, 1, 3});
}

void attention(Emitter& e) {
  const ValueId q = kernel_layout(e, 0, "q");
  const ValueId k = kernel_layout(e, 1, "k");
  const ValueId v = kernel_layout(e, 2, "v");
  std::vector<ValueId> inputs = {q, k, v};
  if (e.has(3)) {
    // A bias per head, query and key, of each sample only when it differs between samples.
    Dims sizes = {e.type(q).dims[0].size, e.type(q).dims[2].size, e.type(q).dims[1].size,
                  e.type(k).dims[1].size};
    const Dims& from = e.view().dims(3);
    if (from.size() < 4 || from[0] == 1) {
      sizes.erase(sizes.begin());
      Dims shape = from;
      if (shape.size() == 4) shape.erase(shape.begin());
      inputs.push_back(e.stretch(e.reshape(e.in(3), shape, ""), sizes, ""));
    } else {
      ValueId bias = e.stretch(e.in(3), sizes, "");
      inputs.push_back(bias);
    }
  }
  Attrs attrs = {{"kernel", e.options().attention}};
  if (e.view().has_attr("causal")) attrs["causal"] = true;
  const double scale = e.view().attr("scale", 1.0);
  if (scale >= 0 && scale <= 1e6) attrs["scale"] = scale;
  const double dropout = e.view().attr("dropout", 0.0);
  if (e.options().dropout && dropout > 0 && dropout < 1) attrs["dropout"] = dropout;
  ValueId out = e.op("attention", std::move(inputs), std::move(attrs));
  if (e.view().attr("out", "bhsd") == "bhsd") out = e.transpose(out, {0, 2, 1, 3});
  e.result(out);
}

// The operator of opset 23, as far as kernels have it: no mask, no cache, no scores as a result.
void whole_attention(Emitter& e) {
  const bool more = e.is_used(1) || e.is_used(2) || e.is_used(3);
  const double cap = e.view().attr("softcap", 0.0);
  if (e.view().count() > 3 || more || cap != 0) return e.opaque();
  const bool flat = e.view().rank(0) == 3;
  std::vector<ValueId> inputs;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!flat) {
      inputs.push_back(e.transpose(e.in(i), {0, 2, 1, 3}));
      continue;
    }
    const Dims& d = e.view().dims(i);
    const std::int64_t heads =
        e.view().attr(i == 0 ? "q_num_heads" : "kv_num_heads", std::int64_t{1});
    inputs.push_back(e.reshape(e.in(i), {d[0], d[1], heads, d[2] / heads}, ""));
  }
  Attrs attrs = {{"kernel", e.options().attention}};
  if (e.view().attr("is_causal", std::int64_t{0}) != 0) attrs["causal"] = true;
  const double scale = e.view().attr("scale", 0.0);
  if (scale > 0 && scale <= 1e6) attrs["scale"] = scale;
  const ValueId out = e.op("attention", std::move(inputs), std::move(attrs));
  if (!flat) return e.result(e.transpose(out, {0, 2, 1, 3}));
  e.result(e.reshape(out, e.fact(e.node().outputs[0]).dims, ""));
}

constexpr EmitRow kRows[] = {
    {"Activation", activation}, {"Attention", whole_attention}, {"FusedAttention", attention}};

}  // namespace

std::span<const EmitRow> fused_emitters() { return kRows; }

}  // namespace meshwright::onnx
