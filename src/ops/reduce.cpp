#include <fmt/format.h>

#include "ops/dim_list.h"
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
    .examples = examples,
};

}  // namespace meshwright
