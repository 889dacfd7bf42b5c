#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

// T5's buckets: half for each side unless causal, of these half exact, the rest logarithmic up to a
// distance of 128 (Raffel et al. 2020, section 2.1 and their code).
Slot distance_buckets(KernelBuilder& k, const KernelContext& c, std::int64_t queries,
                      std::int64_t keys) {
  const bool causal = attr_bool(c.attrs, "causal", false);
  const std::int64_t all = c.inputs[0].dims[0].size;
  const std::int64_t side = causal ? all : all / 2;
  const std::int64_t exact = std::max<std::int64_t>(side / 2, 1);
  const auto scalar = [&](std::string_view name, Slot x, KernelArg value) {
    return k.call(name, {x, std::move(value)});
  };
  const Slot rows = scalar("aten::unsqueeze", indices(k, {0, queries}), std::int64_t{-1});
  const Slot after = k.call("aten::sub.Tensor", {indices(k, {0, keys}), rows});
  const Slot distance =
      causal ? scalar("aten::clamp_min", k.call("aten::neg", {after}), std::int64_t{0})
             : k.call("aten::abs", {after});
  const Slot ratio =
      scalar("aten::div.Scalar",
             cast(k, scalar("aten::clamp_min", distance, std::int64_t{1}), DType::kF64),
             static_cast<double>(exact));
  const double range = std::max(std::log(128.0 / static_cast<double>(exact)), 1e-9);
  const Slot steps = scalar("aten::mul.Scalar", k.call("aten::log", {ratio}),
                            static_cast<double>(side - exact) / range);
  const Slot far =
      scalar("aten::clamp_max", scalar("aten::add.Scalar", cast(k, steps, DType::kI64), exact),
             std::max<std::int64_t>(side - 1, 0));
  Slot bucket =
      k.call("aten::where.self", {scalar("aten::lt.Scalar", distance, exact), distance, far});
  if (!causal) {
    const Slot right = cast(k, scalar("aten::gt.Scalar", after, std::int64_t{0}), DType::kI64);
    bucket = k.call("aten::add.Tensor", {bucket, scalar("aten::mul.Scalar", right, side)});
  }
  return scalar("aten::clamp_max", bucket, all - 1);
}

// Swin's table of a square window of w x w positions: offsets along both axes, each from -(w - 1)
// to w - 1 (Liu et al. 2021, section 3.2).
Slot window_buckets(KernelBuilder& k, std::int64_t w) {
  const Slot position = indices(k, {0, w * w});
  const auto offsets = [&](Slot axis) {
    const Slot rows = k.call("aten::unsqueeze", {axis, std::int64_t{-1}});
    return k.call("aten::add.Scalar", {k.call("aten::sub.Tensor", {rows, axis}), w - 1});
  };
  const Slot y = offsets(k.call("aten::div.Scalar_mode", {position, w, std::string("floor")}));
  const Slot x = offsets(k.call("aten::remainder.Scalar", {position, w}));
  return k.call("aten::add.Tensor", {k.call("aten::mul.Scalar", {y, 2 * w - 1}), x});
}

Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::int64_t queries = c.outputs[0].dims[1].size;
  const std::int64_t keys = c.outputs[0].dims[2].size;
  const auto w = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(queries))));
  const bool window =
      queries == keys && w * w == queries && c.inputs[0].dims[0].size == (2 * w - 1) * (2 * w - 1);
  const Slot bucket = window ? window_buckets(k, w) : distance_buckets(k, c, queries, keys);
  const Slot bias = k.call("aten::embedding", {Slot{0}, bucket});
  const std::vector<std::int64_t> heads_first = {2, 0, 1};
  return k.finish({k.call("aten::contiguous", {k.call("aten::permute", {bias, heads_first})})});
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
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
