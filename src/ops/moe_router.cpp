#include <fmt/format.h>

#include <algorithm>
#include <limits>

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

// Groups of experts by the sum of their two best (DeepSeek-V3, section 2.1.2): experts of others
// cannot be chosen.
Slot within_groups(KernelBuilder& k, const KernelContext& c, Slot scores) {
  const std::int64_t experts = c.inputs[1].dims[0].size;
  const std::int64_t groups = attr_int(c.attrs, "groups", 1);
  const std::int64_t used = attr_int(c.attrs, "top_k_groups", groups);
  if (used >= groups) return scores;
  const std::int64_t members = experts / groups;
  if (used * members < attr_int(c.attrs, "top_k", 1)) {
    throw Error(fmt::format("'top_k' is {}, but {} groups have {} experts",
                            attr_int(c.attrs, "top_k", 1), used, used * members));
  }
  const auto top = [&](Slot x, std::int64_t count) {
    return k.calls("aten::topk", {x, count, std::int64_t{-1}}, 2);
  };
  const std::vector<std::int64_t> last = {-1};
  std::vector<std::int64_t> grouped = sizes_of(c.output_boxes[0]);
  grouped.back() = groups;
  grouped.push_back(members);
  const Slot split = k.call("aten::reshape", {scores, grouped});
  const Slot best = top(split, std::min<std::int64_t>(2, members))[0];
  const Slot group_scores = k.call("aten::sum.dim_IntList", {best, last});
  const Slot chosen = top(group_scores, used)[1];
  const Slot others = k.call("aten::scatter.value", {k.call("aten::ones_like", {group_scores}),
                                                     std::int64_t{-1}, chosen, 0.0});
  const Slot mask = k.call(
      "aten::unsqueeze", {k.call("aten::ne.Scalar", {others, std::int64_t{0}}), std::int64_t{-1}});
  const Slot masked =
      k.call("aten::masked_fill.Scalar", {split, mask, -std::numeric_limits<double>::infinity()});
  return k.call("aten::flatten.using_ints", {masked, std::int64_t{-2}, std::int64_t{-1}});
}

// Scores in the precise type. With softmax a bias is part of the logits; with sigmoid it only
// guides the choice (DeepSeek-V3's correction for balance, which no gradient trains).
Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const bool sigmoid = attr_string(c.attrs, "score", "softmax") == "sigmoid";
  std::vector<KernelArg> operands = {cast(k, {0}, DType::kF32), cast(k, {1}, DType::kF32)};
  const bool biased = c.inputs.size() == 3;
  if (biased && !sigmoid) operands.emplace_back(cast(k, {2}, DType::kF32));
  const Slot logits = k.call("aten::linear", std::move(operands));
  const std::vector<std::int64_t> last = {-1};
  const Slot scores = sigmoid ? k.call("aten::sigmoid", {logits})
                              : k.call("aten::softmax.int", {logits, std::int64_t{-1}});
  Slot guide = k.call("aten::detach", {scores});
  if (biased && sigmoid) {
    guide =
        k.call("aten::add.Tensor", {guide, k.call("aten::detach", {cast(k, {2}, DType::kF32)})});
  }
  guide = within_groups(k, c, guide);
  const Slot chosen =
      k.calls("aten::topk", {guide, attr_int(c.attrs, "top_k", 1), std::int64_t{-1}}, 2)[1];
  const Slot zeros = k.call("aten::zeros_like", {guide});
  const Slot mask = k.call("aten::scatter.value", {zeros, std::int64_t{-1}, chosen, 1.0});
  const Slot kept = k.call("aten::mul.Tensor", {scores, mask});
  const Slot sum = k.call("aten::sum.dim_IntList", {kept, last, true});
  return k.finish({k.call("aten::div.Tensor", {kept, sum})});
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
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
