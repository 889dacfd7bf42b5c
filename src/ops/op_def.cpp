#include "ops/op_def.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::string_view kTypeNames[] = {
    "true or false", "an integer",         "a number",
    "a string",      "a list of integers", "an integer or a list of integers"};

void check_number(const AttrSpec& spec, double value) {
  if (value >= spec.min && value <= spec.max) return;
  throw Error(fmt::format("attribute '{}' must be between {} and {}: {}", spec.name, spec.min,
                          spec.max, value));
}

bool is_choice(std::string_view choices, std::string_view value) {
  for (std::size_t begin = 0; begin < choices.size();) {
    const std::size_t end = std::min(choices.find(' ', begin), choices.size());
    if (choices.substr(begin, end - begin) == value) return true;
    begin = end + 1;
  }
  return false;
}

void check_attr(const AttrSpec& spec, const Attr& attr) {
  const auto* integer = std::get_if<std::int64_t>(&attr);
  const auto* number = std::get_if<double>(&attr);
  const auto* text = std::get_if<std::string>(&attr);
  const auto* list = std::get_if<std::vector<std::int64_t>>(&attr);
  bool fits = false;
  switch (spec.type) {
    case AttrType::kBool:
      fits = std::holds_alternative<bool>(attr);
      break;
    case AttrType::kInt:
      fits = integer != nullptr;
      break;
    case AttrType::kFloat:
      fits = integer != nullptr || number != nullptr;
      break;
    case AttrType::kString:
      fits = text != nullptr;
      break;
    case AttrType::kInts:
      fits = list != nullptr;
      break;
    case AttrType::kIntOrInts:
      fits = integer != nullptr || list != nullptr;
      break;
  }
  if (!fits) {
    throw Error(fmt::format("attribute '{}' must be {}", spec.name,
                            kTypeNames[static_cast<std::size_t>(spec.type)]));
  }
  if (integer != nullptr) check_number(spec, static_cast<double>(*integer));
  if (number != nullptr) check_number(spec, *number);
  if (list != nullptr) {
    if (list->size() > 64) throw Error(fmt::format("attribute '{}' is too long", spec.name));
    for (std::int64_t v : *list) check_number(spec, static_cast<double>(v));
  }
  if (text != nullptr && !spec.choices.empty() && !is_choice(spec.choices, *text)) {
    throw Error(fmt::format("attribute '{}' cannot be '{}'", spec.name, text->substr(0, 40)), {},
                fmt::format("legal: {}", spec.choices));
  }
}

void check_attrs(const OpDef& def, const Attrs& attrs) {
  for (const auto& [name, attr] : attrs) {
    const auto spec = std::ranges::find(def.attrs, name, &AttrSpec::name);
    if (spec == def.attrs.end()) {
      std::string legal;
      for (const AttrSpec& s : def.attrs) legal += fmt::format(" {}", s.name);
      throw Error(fmt::format("unknown attribute '{}'", name.substr(0, 40)), {},
                  legal.empty() ? "takes no attributes" : "legal:" + legal);
    }
    check_attr(*spec, attr);
  }
  for (const AttrSpec& spec : def.attrs) {
    if (spec.required && !attrs.contains(spec.name)) {
      throw Error(fmt::format("attribute '{}' is missing", spec.name));
    }
  }
}

}  // namespace

void check_operands(const OpDef& def, const OpContext& context) {
  const std::size_t count = context.inputs.size();
  const auto [min, max] = def.operands;
  if (count < static_cast<std::size_t>(min) || count > static_cast<std::size_t>(max)) {
    const std::string legal = min == max ? std::to_string(min) : fmt::format("{} to {}", min, max);
    throw Error(fmt::format("takes {} operands, not {}", legal, count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const TensorType& type = context.inputs[i];
    const char wanted = def.element_types[std::min(i, def.element_types.size() - 1)];
    const bool integer = !is_floating(type.dtype) && type.dtype != DType::kBool;
    if ((wanted == 'f' && !is_floating(type.dtype)) || (wanted == 'i' && !integer)) {
      throw Error(fmt::format("operand {} must be {}: {}", i,
                              wanted == 'f' ? "floating-point" : "of an integer type",
                              to_string(type)));
    }
  }
  check_attrs(def, context.attrs);
}

Rule rule_of(const OpDef& def, const OpContext& context) {
  check_operands(def, context);
  std::vector<int> ranks;
  for (const TensorType& input : context.inputs) ranks.push_back(input.rank());
  Rule rule = parse_rule(def.annotation(context), ranks);
  if (def.factor_sizes != nullptr) {
    bind_rule(rule, context.inputs, def.factor_sizes(context));
  } else {
    bind_rule(rule, context.inputs);
  }
  if (def.relabel != nullptr) def.relabel(context, rule);
  return rule;
}

std::vector<TensorType> infer(const OpDef& def, const OpContext& context) {
  const Rule rule = rule_of(def, context);
  std::vector<TensorType> results =
      def.infer != nullptr ? def.infer(context, rule) : infer_from_rule(rule, context.inputs);
  for (const TensorType& result : results) check_tensor_type(result, "");
  return results;
}

Bytes operand_traffic(const OpContext& context) {
  Bytes total;
  for (const TensorType& t : context.inputs) total += t.bytes();
  for (const TensorType& t : context.outputs) total += t.bytes();
  return total;
}

Work memory_work(const OpContext& context, double flops_per_element, double backward_ratio) {
  Work work;
  const double elements = context.outputs.empty() ? 0 : context.outputs[0].elements();
  work.forward_flops = Flops(flops_per_element * elements);
  work.forward_traffic = operand_traffic(context);
  work.backward_input_flops = Flops(2 * flops_per_element * elements);
  work.backward_traffic = work.forward_traffic * backward_ratio;
  return work;
}

Work matmul_work(const OpContext& context, MatmulShape shape, bool b_is_parameter) {
  Work work;
  work.kernel = KernelClass::kMatmul;
  work.matmul = shape;
  work.forward_flops = Flops(2 * shape.batch * shape.m * shape.n * shape.k);
  work.forward_traffic = operand_traffic(context);
  work.backward_input_flops = work.forward_flops;
  if (b_is_parameter)
    work.backward_weight_flops = work.forward_flops;
  else
    work.backward_input_flops *= 2;
  work.backward_traffic = work.forward_traffic * 2;
  work.backward_kernels = 2;
  return work;
}

Work work_of(const OpDef& def, const OpContext& context) {
  if (def.work != nullptr) return def.work(context);
  const Rule rule = rule_of(def, context);
  double product = 2;
  bool contraction = false;
  for (const Factor& f : rule.factors) {
    product *= static_cast<double>(f.size);
    contraction |= f.kind == FactorKind::kSum;
  }
  if (!contraction) return memory_work(context);
  const double out = context.outputs.empty() ? 1 : context.outputs[0].elements();
  return matmul_work(context, {1, out, 1, product / 2 / out}, false);
}

Saved saved_of(const OpDef& def, const OpContext& context) {
  if (def.saved != nullptr) return def.saved(context);
  Saved saved;
  for (std::size_t i = 0; i < context.inputs.size(); ++i) {
    if (is_floating(context.inputs[i].dtype)) saved.inputs.push_back(static_cast<int>(i));
  }
  return saved;
}

std::vector<ValueId> storage_roots(const Graph& graph) {
  std::vector<ValueId> roots(graph.values.size());
  for (std::size_t i = 0; i < roots.size(); ++i) roots[i] = ValueId(static_cast<std::int64_t>(i));
  for (const Op& op : graph.ops) {
    if (!find_op(op.kind).view) continue;
    for (ValueId result : op.outputs) roots[result.index()] = roots[op.inputs[0].index()];
  }
  return roots;
}

Kernel kernel_of(const OpDef& def, const KernelContext& context) {
  if (def.kernel != nullptr) return def.kernel(context);
  if (!def.aten.empty()) return one_call(context, def.aten);
  throw Error(fmt::format("operator {} cannot be run: what it computes is not known", def.kind));
}

}  // namespace meshwright
