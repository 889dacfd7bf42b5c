#include <fmt/format.h>

#include "ops/dim_list.h"
#include "ops/kernel_dims.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

bool is_arg(const OpContext& c) { return attr_string(c.attrs, "fn", "").starts_with("arg"); }

// Sums of parts add up to the sum; of other functions (means, maxima, norms) they do not.
std::string annotation(const OpContext& c) {
  const std::string fn = attr_string(c.attrs, "fn", "");
  const bool adds = fn == "sum" || fn == "l1" || fn == "sum_square";
  const bool keep = attr_bool(c.attrs, "keep", false);
  const std::vector<bool> reduced = listed_dims(c);
  std::string operand;
  std::string result;
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    operand += fmt::format("a{}{} ", i, !reduced[i] ? "" : adds ? "+" : "^");
    if (!reduced[i]) result += fmt::format(" a{}", i);
    if (reduced[i] && keep) result += " 1";
  }
  return operand + "->" + result;
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  if (is_arg(c)) results[0].dtype = DType::kI64;
  return results;
}

Work work(const OpContext& c) {
  Work work;
  work.forward_flops = work.backward_input_flops = Flops(c.inputs[0].elements());
  work.forward_traffic = work.backward_traffic = operand_traffic(c);
  return work;
}

Saved saved(const OpContext& c) {
  const std::string fn = attr_string(c.attrs, "fn", "");
  if (fn == "sum" || fn == "mean" || is_arg(c)) return {};
  return {{0}, {}, Bytes(0)};
}

// The place of the first extremum, counted over all reduced dims together.
Kernel arg_kernel(const KernelContext& c, const std::string& fn) {
  const JoinedDims dims(sizes_of(c.input_boxes[0]), listed_dims(op_context(c)));
  KernelBuilder k(c);
  Slot x =
      c.inputs[0].dtype == DType::kBool ? k.call("aten::to.dtype", {Slot{0}, DType::kU8}) : Slot{0};
  x = k.call("aten::" + fn, {dims.join(k, x), std::int64_t{-1}, false});
  return k.finish({k.call("aten::reshape", {x, sizes_of(c.output_boxes[0])})});
}

Kernel kernel(const KernelContext& c) {
  const std::string fn = attr_string(c.attrs, "fn", "");
  if (is_arg(op_context(c))) return arg_kernel(c, fn);
  const std::vector<bool> listed = listed_dims(op_context(c));
  bool keep = attr_bool(c.attrs, "keep", false);
  std::vector<std::int64_t> dims;
  for (std::size_t d = 0; d < listed.size(); ++d) {
    if (listed[d]) dims.push_back(static_cast<std::int64_t>(d));
  }
  KernelBuilder k(c);
  Slot x{0};
  if (fn == "mean" || fn == "l2" || fn.starts_with("log_")) {
    x = as_floating(k, c);
  } else if (c.inputs[0].dtype == DType::kBool) {
    x = k.call("aten::to.dtype", {x, DType::kI64});
  }
  if (dims.empty()) {
    // ATen takes an empty list for all dims.
    x = k.call("aten::unsqueeze", {x, std::int64_t{-1}});
    dims = {c.inputs[0].rank()};
    keep = false;
  }
  const auto sum = [&](Slot of) { return k.call("aten::sum.dim_IntList", {of, dims, keep}); };
  Slot y;
  if (fn == "sum") {
    y = sum(x);
  } else if (fn == "mean") {
    y = k.call("aten::mean.dim", {x, dims, keep});
  } else if (fn == "max" || fn == "min") {
    y = k.call("aten::a" + fn, {x, dims, keep});
  } else if (fn == "prod") {
    y = x;
    // The last one first: positions of the others stay.
    for (std::size_t i = dims.size(); i-- > 0;) {
      y = k.call("aten::prod.dim_int", {y, dims[i], keep});
    }
  } else if (fn == "l1") {
    y = sum(k.call("aten::abs", {x}));
  } else if (fn == "l2") {
    y = k.call("aten::linalg_vector_norm", {x, 2.0, dims, keep});
  } else if (fn == "sum_square") {
    y = sum(k.call("aten::mul.Tensor", {x, x}));
  } else if (fn == "log_sum") {
    y = k.call("aten::log", {sum(x)});
  } else {
    y = k.call("aten::logsumexp", {x, dims, keep});
  }
  return k.finish({y});
}

constexpr AttrSpec kAttrs[] = {
    {.name = "fn",
     .type = AttrType::kString,
     .required = true,
     .choices = "sum mean max min prod l1 l2 sum_square log_sum log_sum_exp argmax argmin"},
    {"dims", AttrType::kInts, true, -8, 7},
    {"keep", AttrType::kBool},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const auto text = [](const char* t) { return Attr(std::string(t)); };
  const auto dims = [](std::vector<std::int64_t> d) { return Attr(std::move(d)); };
  return {{{{"fn", text("sum")}, {"dims", dims({1})}}, {x}},
          {{{"fn", text("mean")}, {"dims", dims({-1})}, {"keep", true}}, {x}},
          {{{"fn", text("argmax")}, {"dims", dims({1, 2})}}, {x}}};
}

}  // namespace

const OpDef kReduce = {
    .kind = "reduce",
    .summary = "Function 'fn' over some dims, which vanish or (keep) become 1",
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
