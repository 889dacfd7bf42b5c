#include <fmt/format.h>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Scores of every token for every expert. The hidden width is frozen: scores and top-k are not
// linear, so that partial products are of no use.
std::string annotation(const OpContext& c) {
  return c.inputs.size() == 3 ? "b s h^, e^ h^, e^ -> b s e^" : "b s h^, e^ h^ -> b s e^";
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  const std::int64_t experts = c.inputs[1].dims[0].size;
  const std::int64_t top_k = attr_int(c.attrs, "top_k", 1);
  const std::int64_t groups = attr_int(c.attrs, "groups", 1);
  if (top_k > experts) {
    throw Error(fmt::format("attribute 'top_k' is {}, with {} experts", top_k, experts));
  }
  if (experts % groups != 0) {
    throw Error(
        fmt::format("attribute 'groups' is {}, which does not divide {} experts", groups, experts));
  }
  results[0].dtype = DType::kF32;
  return results;
}

// A narrow product, then small kernels over the fp32 scores: softmax or sigmoid, top-k, masks.
Work work(const OpContext& c) {
  const double experts = static_cast<double>(c.inputs[1].dims[0].size);
  const double hidden = static_cast<double>(c.inputs[1].dims[1].size);
  Work work = matmul_work(c, {1, c.inputs[0].elements() / hidden, experts, hidden}, true);
  work.forward_pointwise = 6 * c.outputs[0].bytes();
  work.backward_pointwise = 4 * c.outputs[0].bytes();
  work.forward_kernels = 6;
  work.backward_kernels = 6;
  return work;
}

Saved saved(const OpContext&) { return {{0}, {0}, Bytes(0)}; }

constexpr AttrSpec kAttrs[] = {
    {"top_k", AttrType::kInt, true, 1},
    {"groups", AttrType::kInt, false,
     1},  // Groups of experts (DeepSeek-V3's node-limited routing).
    {"top_k_groups", AttrType::kInt, false, 1},  // Groups a token may use.
    {.name = "score", .type = AttrType::kString, .choices = "softmax sigmoid"},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType w{DType::kBf16, {{"experts", 8}, {"hidden", 32}}};
  const TensorType bias{DType::kF32, {{"experts", 8}}};
  return {
      {{{"top_k", std::int64_t{2}}}, {x, w}},
      {{{"top_k", std::int64_t{2}}, {"groups", std::int64_t{4}}, {"score", std::string("sigmoid")}},
       {x, w, bias}}};
}

}  // namespace

const OpDef kMoeRouter = {
    .kind = "moe_router",
    .summary =
        "Expert probabilities: x [b, s, h], w [experts, h] (bias [experts]) -> f32 [b, s, experts]",
    .aten = "",
    .operands = {2, 3},
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
