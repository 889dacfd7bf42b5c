#include <fmt/format.h>

#include "ops/ops.h"

namespace meshwright {
namespace {

// Learned bias per bucket of relative positions (Raffel et al. 2020, T5, section 2.1; Swin's window
// table), spread over all pairs of positions. The positions are attributes, so only heads can be
// split.
std::string annotation(const OpContext& c) {
  return fmt::format("n^ h -> h {} {}", attr_int(c.attrs, "query_length", 1),
                     attr_int(c.attrs, "key_length", 1));
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  results[0].dims[1].name = attr_string(c.attrs, "query_dim", "seq");
  results[0].dims[2].name = attr_string(c.attrs, "key_dim", "keys");
  return results;
}

double pairs(const OpContext& c) {
  return static_cast<double>(c.outputs[0].dims[1].size) *
         static_cast<double>(c.outputs[0].dims[2].size);
}

// Bucket numbers (8 bytes per pair), a gather, and a copy that brings heads to the front.
Work work(const OpContext& c) {
  Work work;
  work.forward_traffic = 4 * c.outputs[0].bytes() + Bytes(2 * 8 * pairs(c));
  work.forward_kernels = 10;
  work.backward_weight_flops = Flops(c.outputs[0].elements());
  work.backward_traffic = 3 * c.outputs[0].bytes() + Bytes(8 * pairs(c));
  work.backward_kernels = 3;
  return work;
}

Saved saved(const OpContext& c) { return {{}, {}, Bytes(8 * pairs(c))}; }

constexpr AttrSpec kAttrs[] = {
    {"query_length", AttrType::kInt, true, 1},
    {"key_length", AttrType::kInt, true, 1},
    {"causal", AttrType::kBool},
    {"query_dim", AttrType::kString},  // Names of the result's dims; default "seq" and "keys".
    {"key_dim", AttrType::kString},
};

std::vector<OpDef::Example> examples() {
  const TensorType w{DType::kBf16, {{"buckets", 32}, {"heads", 8}}};
  const auto n = [](std::int64_t v) { return Attr(v); };
  return {{{{"query_length", n(16)}, {"key_length", n(16)}, {"causal", true}}, {w}},
          {{{"query_length", n(8)}, {"key_length", n(24)}, {"query_dim", std::string("patches")}},
           {w}}};
}

}  // namespace

const OpDef kRelativeBias = {
    .kind = "relative_bias",
    .summary =
        "Attention bias from relative positions: w [buckets, H] -> [H, query_length, key_length]",
    .aten = "",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
