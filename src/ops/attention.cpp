#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Scaled dot-product attention in the layout of fused kernels, [batch, seq, heads, head_dim]. Query
// heads are kv heads times queries per kv head, so that splitting over kv heads needs no copies of
// keys and values. Query and key positions are frozen: ring attention and its kin split them.
// With a further leading dim, [batch, rows, seq, heads, head_dim], each row attends by itself, and
// a bias without that dim serves all rows of a sample (attention along one axis of a grid).
//
// FLOPs: 2 b H s t (d + e) forward for the two products; flash kernels skip masked blocks and
// compute the scores again in the backward pass (Dao 2023, FlashAttention-2, section 4.1: backward
// is 2.5 times forward), unfused kernels do all products in full.

bool is_bias(const TensorType& t) { return t.rank() >= 3; }

// Dims in front of the positions: [batch] or [batch, rows].
std::size_t leading(const OpContext& c) { return c.inputs[0].rank() == 5 ? 2 : 1; }
double size_of(const TensorType& t, std::size_t dim) {
  return static_cast<double>(t.dims[dim].size);
}

bool is_flash(const OpContext& c) { return attr_string(c.attrs, "kernel", "flash") == "flash"; }

std::string annotation(const OpContext& c) {
  const std::string_view rows = leading(c) == 2 ? "b n" : "b";
  std::string operands = fmt::format("{0} s^ (g r) d^, {0} t^ g d^, {0} t^ g e^", rows);
  for (std::size_t i = 3; i < c.inputs.size(); ++i) {
    constexpr std::string_view kBias[] = {"(g r)", "(g r) s^ t^", "b (g r) s^ t^",
                                          "b n (g r) s^ t^"};
    const int rank = c.inputs[i].rank();
    const int batch_dims = rank == 5 && leading(c) == 2 ? 2 : rank == 4 ? 1 : 0;
    operands += fmt::format(", {}", kBias[rank == 1 ? 0 : batch_dims + 1]);
  }
  return fmt::format("{} -> {} s^ (g r) e^", operands, rows);
}

void relabel(const OpContext&, Rule& rule) {
  for (Factor& f : rule.factors) {
    if (f.id == "t") f.label = "keys";
    if (f.id == "r") f.label = "queries_per_kv_head";
  }
}

// Queries in the middle of a sequence: each one's own key must be there.
void check_offset(const OpContext& c) {
  if (!attr_bool(c.attrs, "causal", false)) {
    throw Error("attribute 'query_offset' is for causal attention only");
  }
  const std::int64_t offset = attr_int(c.attrs, "query_offset", 0);
  const std::int64_t queries = c.inputs[0].dims[leading(c)].size;
  const std::int64_t keys = c.inputs[1].dims[leading(c)].size;
  if (offset + queries > keys) {
    throw Error(fmt::format("{} queries after an offset of {} need as many keys, but there are {}",
                            queries, offset, keys));
  }
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  const std::size_t count = c.inputs.size();
  const bool sinks = count > 3 && !is_bias(c.inputs[count - 1]);
  if (count == 5 && (!sinks || !is_bias(c.inputs[3]))) {
    throw Error("operands after q, k, v are a bias [heads, s, t] and then sinks [heads]");
  }
  if (c.attrs.contains("query_offset")) check_offset(c);
  if (attr_bool(c.attrs, "sinks", sinks) != sinks) {
    throw Error(sinks ? "operand 'sinks' [heads] is given but attribute 'sinks' is false"
                      : "attribute 'sinks' is true but the last operand is no vector [heads]");
  }
  return infer_from_rule(rule, c.inputs);
}

// Scores below the diagonal and within the window, of the first `queries` rows.
double causal_area(double queries, double window) {
  if (queries <= window) return queries * queries / 2;
  return window * window / 2 + window * (queries - window);
}

// Share of the s x t scores that the mask leaves.
double visible(const OpContext& c) {
  const double t = size_of(c.inputs[1], leading(c));
  const bool causal = attr_bool(c.attrs, "causal", false);
  const double window = static_cast<double>(attr_int(c.attrs, "window", 0));
  const double width = window > 0 && window < t ? window / t : 1;
  if (causal && c.attrs.contains("query_offset")) {
    const double s = size_of(c.inputs[0], leading(c));
    const auto before = static_cast<double>(attr_int(c.attrs, "query_offset", 0));
    return (causal_area(before + s, width * t) - causal_area(before, width * t)) / (s * t);
  }
  return causal ? width - width * width / 2 : width;
}

Work work(const OpContext& c) {
  const std::size_t at = leading(c);
  const double s = size_of(c.inputs[0], at);
  const double heads = size_of(c.inputs[0], at + 1);
  const double d = size_of(c.inputs[0], at + 2);
  const double b = c.inputs[0].elements() / (s * heads * d);
  const double t = size_of(c.inputs[1], at);
  const double e = size_of(c.inputs[2], at + 2);
  const Flops full(2 * b * heads * s * t * (d + e));
  const Bytes operands = operand_traffic(c);
  Work work;
  if (is_flash(c)) {
    work.kernel = KernelClass::kAttention;
    work.forward_flops = full * visible(c);
    work.forward_traffic = operands + Bytes(4 * b * heads * s);
    work.backward_input_flops = work.forward_flops * 2.5;
    // Operands, result and their gradients; the query gradient is accumulated in fp32.
    work.backward_traffic = 2 * work.forward_traffic + Bytes(8 * c.inputs[0].elements());
    work.backward_kernels = 3;
    return work;
  }
  // Passes over the s x t scores: the products write and read them, the pointwise kernels do the
  // rest.
  const Bytes scores(b * heads * s * t * dtype_bytes(c.inputs[0].dtype));
  const Bytes mask(b * heads * s * t);
  work.kernel = KernelClass::kMatmul;
  work.matmul = {b * heads, s, t, (d + e) / 2};
  work.forward_flops = full;
  work.forward_traffic = operands + 2 * scores;
  work.backward_input_flops = full * 2;
  work.backward_traffic = 2 * operands + 4 * scores;
  work.forward_pointwise = 2 * scores;   // Scale, mask and softmax fused: scores in, weights out.
  work.backward_pointwise = 3 * scores;  // Weights and their gradient in, score gradient out.
  work.forward_kernels = 3;
  work.backward_kernels = 5;
  if (attr_float(c.attrs, "dropout", 0) > 0) {
    work.forward_pointwise += 2 * scores + mask;
    work.backward_pointwise += 2 * scores + mask;
    ++work.forward_kernels;
    ++work.backward_kernels;
  }
  if (c.inputs.size() > 3 && is_bias(c.inputs[3])) {
    work.forward_pointwise += 2 * scores;
    work.backward_pointwise += scores;
    ++work.forward_kernels;
    ++work.backward_kernels;
  }
  return work;
}

// Korthikanti et al. 2022, section 4.1: unfused attention keeps q, k, v (6sbh), the softmax result
// (2as^2b) and, with dropout, its mask (as^2b) and result (2as^2b). Flash keeps q, k, v, its own
// result (which the output projection keeps anyway) and one fp32 log-sum-exp per row.
Saved saved(const OpContext& c) {
  const double rows = c.inputs[0].elements() / size_of(c.inputs[0], leading(c) + 2);
  Saved saved{{0, 1, 2}, {}, Bytes(0)};
  for (std::size_t i = 3; i < c.inputs.size(); ++i) saved.inputs.push_back(static_cast<int>(i));
  if (is_flash(c)) {
    saved.outputs = {0};
    saved.extra = Bytes(4 * rows);
    return saved;
  }
  const double scores = rows * size_of(c.inputs[1], leading(c));
  const double element = dtype_bytes(c.inputs[0].dtype);
  const bool dropout = attr_float(c.attrs, "dropout", 0) > 0;
  saved.extra = Bytes(scores * (dropout ? 2 * element + 1 : element));
  return saved;
}

constexpr AttrSpec kAttrs[] = {
    {"causal", AttrType::kBool},
    // Keys that a query sees, itself included; 0 = all. Causal: the last ones; else those around
    // it.
    {"window", AttrType::kInt},
    {"query_offset", AttrType::kInt},  // Causal: keys in front of the first query's own.
    {.name = "kernel", .type = AttrType::kString, .choices = "flash unfused"},
    {"dropout", AttrType::kFloat, false, 0, 1},
    {"softcap", AttrType::kFloat, false, 0, 1e6},
    {"scale", AttrType::kFloat, false, 0, 1e6},
    {"sinks", AttrType::kBool},
    {"alibi", AttrType::kBool},
};

std::vector<OpDef::Example> examples() {
  const TensorType q{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 8}, {"head_dim", 8}}};
  const TensorType k{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"kv_heads", 2}, {"head_dim", 8}}};
  const TensorType v{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"kv_heads", 2}, {"head_dim", 6}}};
  const TensorType bias{DType::kBf16, {{"heads", 8}, {"seq", 16}, {"keys", 16}}};
  const TensorType sinks{DType::kBf16, {{"heads", 8}}};
  const TensorType half{DType::kBf16, {{"batch", 4}, {"seq", 8}, {"heads", 8}, {"head_dim", 8}}};
  const TensorType grid{
      DType::kBf16,
      {{"batch", 2}, {"sequences", 4}, {"residues", 6}, {"heads", 8}, {"head_dim", 8}}};
  const TensorType pair_bias{DType::kBf16,
                             {{"batch", 2}, {"heads", 8}, {"residues", 6}, {"residues2", 6}}};
  const Attr unfused = std::string("unfused");
  return {{{{"causal", true}}, {q, k, v}},
          {{{"kernel", unfused}, {"dropout", 0.1}}, {q, q, q, bias}},
          {{{"causal", true}, {"window", std::int64_t{4}}, {"sinks", true}}, {q, k, k, sinks}},
          {{{"kernel", unfused}}, {q, k, v, bias, sinks}},
          {{{"causal", true}, {"query_offset", std::int64_t{8}}}, {half, k, v}},
          {{{"kernel", unfused}}, {grid, grid, grid, pair_bias}},
          {{}, {grid, grid, grid}}};
}

// Keys and values of the kv heads that the local query heads read, one per query head: query head h
// reads kv head h / r.
Slot repeat_heads(KernelBuilder& k, Slot x, const Box& box, const Interval& heads,
                  std::int64_t repeat, std::size_t at) {
  if (repeat == 1 && heads == box[at]) return x;
  const auto dim = static_cast<std::int64_t>(at);
  const auto slice = [&](Slot from, std::int64_t begin, std::int64_t end) {
    return k.call("aten::slice.Tensor", {from, dim, begin, end});
  };
  if (heads.empty()) return slice(x, 0, 0);
  const Interval read = {heads.begin / repeat, (heads.end + repeat - 1) / repeat};
  if (read.begin < box[at].begin || read.end > box[at].end) {
    throw Error(
        fmt::format("query heads {}..{} read kv heads {}..{}, but the part has {}..{}", heads.begin,
                    heads.end, read.begin, read.end, box[at].begin, box[at].end),
        {}, "split the heads into parts whose number divides that of the kv heads");
  }
  x = slice(x, read.begin - box[at].begin, read.begin - box[at].begin + read.size());
  std::vector<std::int64_t> sizes = sizes_of(box);
  sizes[at] = read.size();
  sizes.insert(sizes.begin() + dim + 1, repeat);
  x = k.call("aten::expand", {k.call("aten::unsqueeze", {x, dim + 1}), sizes});
  x = k.call("aten::flatten.using_ints", {x, dim, dim + 1});
  const std::int64_t first = heads.begin - read.begin * repeat;
  return slice(x, first, first + heads.size());
}

// Slopes of ALiBi (Press et al. 2022, section 3, and their code for numbers of heads that are no
// power of two): 2^(-8 i / P) for the first P = 2^n heads, the odd ones of twice as many heads
// after.
Slot alibi_slopes(KernelBuilder& k, const Interval& heads, std::int64_t count) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count)));
  const double step = -8.0 / static_cast<double>(power);
  const auto exponents = [&](std::int64_t begin, std::int64_t end, double factor, double shift) {
    const Slot index = cast(k, indices(k, {begin, std::max(begin, end)}), DType::kF32);
    return k.call("aten::add.Scalar", {k.call("aten::mul.Scalar", {index, factor}), shift});
  };
  const std::vector<Slot> both = {
      exponents(heads.begin, std::min(heads.end, power), step, step),
      exponents(std::max(heads.begin, power) - power, heads.end - power, step, step / 2)};
  return k.call("aten::exp2", {k.call("aten::cat", {both, std::int64_t{0}})});
}

// What the mask hides: [s, t], or nothing.
std::optional<Slot> hidden_keys(KernelBuilder& k, const KernelContext& c, Slot distance) {
  const bool causal = attr_bool(c.attrs, "causal", false);
  const std::int64_t window = attr_int(c.attrs, "window", 0);
  const auto above = [&](std::int64_t limit) {
    return k.call("aten::gt.Scalar", {distance, limit});
  };
  const auto below = [&](std::int64_t limit) {
    return k.call("aten::lt.Scalar", {distance, limit});
  };
  if (!causal && window == 0) return std::nullopt;
  if (window == 0) return below(0);
  const Slot early = above(causal ? window - 1 : window / 2);
  return k.call("aten::logical_or", {early, below(causal ? 0 : -((window - 1) / 2))});
}

// Unfused: scores, softmax, sum of values.
Kernel kernel(const KernelContext& c) {
  KernelBuilder k(c);
  const std::size_t at = c.inputs[0].rank() == 5 ? 2 : 1;
  const auto dim = static_cast<std::int64_t>(at);
  const Box& q = c.input_boxes[0];
  const Interval queries = q[at];
  const Interval keys = c.input_boxes[1][at];
  const Interval heads = q[at + 1];
  const DType dtype = c.inputs[0].dtype;
  const std::int64_t all_heads = c.inputs[0].dims[at + 1].size;
  const std::int64_t repeat = all_heads / c.inputs[1].dims[at + 1].size;
  const auto swap = [&](Slot x, std::int64_t a, std::int64_t b) {
    return k.call("aten::transpose.int", {x, a, b});
  };
  const auto sum = [&](Slot x, Slot y) { return k.call("aten::add.Tensor", {x, y}); };
  const auto in_front = [&](int operand) {  // Heads before positions.
    const Box& box = c.input_boxes[static_cast<std::size_t>(operand)];
    if (operand == 0) return swap({0}, dim, dim + 1);
    return swap(repeat_heads(k, {operand}, box, heads, repeat, at + 1), dim, dim + 1);
  };

  const double width = static_cast<double>(c.inputs[0].dims[at + 2].size);
  const double scale = attr_float(c.attrs, "scale", 1 / std::sqrt(width));
  const Slot scaled = k.call("aten::mul.Scalar", {in_front(0), scale});
  Slot scores = k.call("aten::matmul", {scaled, swap(in_front(1), -1, -2)});
  const double cap = attr_float(c.attrs, "softcap", 0);
  if (cap > 0) {
    const Slot bounded = k.call("aten::tanh", {k.call("aten::mul.Scalar", {scores, 1 / cap})});
    scores = k.call("aten::mul.Scalar", {bounded, cap});
  }
  std::optional<Slot> sinks;
  for (std::size_t i = 3; i < c.inputs.size(); ++i) {
    Slot operand = cast(k, {static_cast<int>(i)}, dtype);
    if (!is_bias(c.inputs[i])) {
      sinks = operand;
      continue;
    }
    // A bias per sample serves all its rows.
    if (c.inputs[i].rank() == 4 && at == 2) {
      operand = k.call("aten::unsqueeze", {operand, std::int64_t{1}});
    }
    scores = sum(scores, operand);
  }
  const std::int64_t offset = attr_int(c.attrs, "query_offset", 0);
  const Slot rows =
      k.call("aten::unsqueeze",
             {indices(k, {queries.begin + offset, queries.end + offset}), std::int64_t{-1}});
  const Slot distance = k.call("aten::sub.Tensor", {rows, indices(k, keys)});
  if (attr_bool(c.attrs, "alibi", false)) {
    const std::vector<std::int64_t> shape = {heads.size(), 1, 1};
    const Slot slopes = k.call("aten::reshape", {alibi_slopes(k, heads, all_heads), shape});
    const Slot far = k.call("aten::neg", {k.call("aten::abs", {distance})});
    scores = sum(scores, cast(k, k.call("aten::mul.Tensor", {slopes, far}), dtype));
  }
  // A finite score, so that queries which see no key have weights that can be hidden after.
  const std::optional<Slot> hidden = hidden_keys(k, c, distance);
  const auto hide = [&](Slot x, double value) {
    return k.call("aten::masked_fill.Scalar", {x, *hidden, value});
  };
  if (hidden) scores = hide(scores, -1e30);
  std::vector<std::int64_t> sizes = sizes_of(q);
  std::swap(sizes[at], sizes[at + 1]);
  if (sinks) {  // One more column, without a value.
    sizes.back() = 1;
    const std::vector<std::int64_t> shape = {heads.size(), 1, 1};
    const Slot column = k.call("aten::expand", {k.call("aten::reshape", {*sinks, shape}), sizes});
    scores = k.call("aten::cat", {std::vector<Slot>{scores, column}, std::int64_t{-1}});
  }
  Slot weights = k.call("aten::softmax.int", {scores, std::int64_t{-1}});
  if (sinks) {
    weights =
        k.call("aten::slice.Tensor", {weights, std::int64_t{-1}, std::int64_t{0}, keys.size()});
  }
  const std::int64_t window = attr_int(c.attrs, "window", 0);
  if (window > 0 && offset + queries.end - keys.end >= window / 2) weights = hide(weights, 0);

  TensorType whole = c.inputs[0];
  Box box = q;
  whole.dims[at] = c.inputs[0].dims[at + 1];
  whole.dims[at + 1] = c.inputs[0].dims[at];
  whole.dims[at + 2] = c.inputs[1].dims[at];
  std::swap(box[at], box[at + 1]);
  box[at + 2] = keys;
  weights = drop(k, weights, attr_float(c.attrs, "dropout", 0), whole, box);
  const Slot out = k.call("aten::matmul", {weights, in_front(2)});
  return k.finish({k.call("aten::contiguous", {swap(out, dim, dim + 1)})});
}

}  // namespace

const OpDef kAttention = {
    .kind = "attention",
    .summary =
        "q [b, s, H, d], k [b, t, G, d], v [b, t, G, e] (bias [H, s, t]) (sinks [H]) -> [b, s, H, "
        "e]; or all with rows, [b, n, s, H, d]",
    .aten = "",
    .operands = {3, 5},
    .attrs = kAttrs,
    .ring = true,
    .annotation = annotation,
    .relabel = relabel,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
