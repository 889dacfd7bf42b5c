#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Every function that acts element by element and is no operator of its own. Operands broadcast
// together by NumPy's rule. Names are ATen's where it has the function.

enum class Keeps { kNothing, kOperands, kResult };

struct Function {
  std::string_view name;
  double flops;  // Per element of the result; transcendental functions count 8.
  Keeps keeps;
  bool gives_bool = false;
};

constexpr Function kFunctions[] = {
    {"abs", 1, Keeps::kOperands},
    {"acos", 8, Keeps::kOperands},
    {"acosh", 8, Keeps::kOperands},
    {"add", 1, Keeps::kNothing},
    {"asin", 8, Keeps::kOperands},
    {"asinh", 8, Keeps::kOperands},
    {"atan", 8, Keeps::kOperands},
    {"atanh", 8, Keeps::kOperands},
    {"bernoulli", 1, Keeps::kNothing},
    {"bitwise_and", 1, Keeps::kNothing},
    {"bitwise_not", 1, Keeps::kNothing},
    {"bitwise_or", 1, Keeps::kNothing},
    {"bitwise_shift", 1, Keeps::kNothing},
    {"bitwise_xor", 1, Keeps::kNothing},
    {"cast", 1, Keeps::kNothing},
    {"ceil", 1, Keeps::kNothing},
    {"celu", 8, Keeps::kOperands},
    {"clamp", 2, Keeps::kOperands},
    {"cos", 8, Keeps::kOperands},
    {"cosh", 8, Keeps::kOperands},
    {"dequantize", 2, Keeps::kNothing},
    {"div", 1, Keeps::kOperands},
    {"elu", 8, Keeps::kOperands},
    {"eq", 1, Keeps::kNothing, true},
    {"erf", 8, Keeps::kOperands},
    {"exp", 8, Keeps::kResult},
    {"floor", 1, Keeps::kNothing},
    {"ge", 1, Keeps::kNothing, true},
    {"gt", 1, Keeps::kNothing, true},
    {"hardsigmoid", 3, Keeps::kOperands},
    {"hardswish", 4, Keeps::kOperands},
    {"isinf", 1, Keeps::kNothing, true},
    {"isnan", 1, Keeps::kNothing, true},
    {"le", 1, Keeps::kNothing, true},
    {"leaky_relu", 2, Keeps::kOperands},
    {"log", 8, Keeps::kOperands},
    {"logical_and", 1, Keeps::kNothing, true},
    {"logical_not", 1, Keeps::kNothing, true},
    {"logical_or", 1, Keeps::kNothing, true},
    {"logical_xor", 1, Keeps::kNothing, true},
    {"lt", 1, Keeps::kNothing, true},
    {"maximum", 1, Keeps::kOperands},
    {"mean", 1, Keeps::kNothing},
    {"minimum", 1, Keeps::kOperands},
    {"mish", 16, Keeps::kOperands},
    {"mul", 1, Keeps::kOperands},
    {"neg", 1, Keeps::kNothing},
    {"pow", 8, Keeps::kOperands},
    {"prelu", 2, Keeps::kOperands},
    {"quantize", 3, Keeps::kNothing},
    {"rand_like", 1, Keeps::kNothing},
    {"reciprocal", 1, Keeps::kResult},
    {"remainder", 2, Keeps::kOperands},
    {"round", 1, Keeps::kNothing},
    {"selu", 8, Keeps::kOperands},
    {"shrink", 2, Keeps::kOperands},
    {"sign", 1, Keeps::kNothing},
    {"sin", 8, Keeps::kOperands},
    {"sinh", 8, Keeps::kOperands},
    {"softplus", 8, Keeps::kOperands},
    {"softsign", 2, Keeps::kOperands},
    {"sqrt", 4, Keeps::kResult},
    {"sub", 1, Keeps::kNothing},
    {"swish", 8, Keeps::kOperands},
    {"tan", 8, Keeps::kResult},
    {"threshold", 1, Keeps::kOperands},
    {"where", 1, Keeps::kOperands},
};

const Function& function(const OpContext& c) {
  const std::string name = attr_string(c.attrs, "fn", "");
  const auto it = std::ranges::find(kFunctions, name, &Function::name);
  if (it == std::end(kFunctions)) {
    throw Error(fmt::format("attribute 'fn' cannot be '{}'", name.substr(0, 40)), {},
                "the names are those of ops/pointwise.cpp, ATen's mostly");
  }
  return *it;
}

std::string annotation(const OpContext& c) {
  function(c);
  std::vector<std::int64_t> sizes;
  for (const TensorType& t : c.inputs) sizes.resize(std::max(sizes.size(), t.dims.size()), 1);
  for (const TensorType& t : c.inputs) {
    const std::size_t shift = sizes.size() - t.dims.size();
    for (std::size_t i = 0; i < t.dims.size(); ++i) {
      sizes[i + shift] = std::max(sizes[i + shift], t.dims[i].size);
    }
  }
  std::string text;
  std::vector<bool> named(sizes.size());
  for (const TensorType& t : c.inputs) {
    if (&t != &c.inputs[0]) text += ", ";
    const std::size_t shift = sizes.size() - t.dims.size();
    for (std::size_t i = shift; i < sizes.size(); ++i) {
      const bool stretched = t.dims[i - shift].size == 1 && sizes[i] != 1;
      text += stretched ? "1 " : fmt::format("a{} ", i);
      named[i] = named[i] || !stretched;
    }
  }
  text += "->";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += named[i] ? fmt::format(" a{}", i) : fmt::format(" {}", sizes[i]);
  }
  return text;
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  const Function& f = function(c);
  const std::string dtype = attr_string(c.attrs, "dtype", "");
  if (!dtype.empty()) {
    results[0].dtype = parse_dtype(dtype);
  } else if (f.gives_bool) {
    results[0].dtype = DType::kBool;
  } else if (f.name == "where" && c.inputs.size() > 1) {
    results[0].dtype = c.inputs[1].dtype;
  }
  return results;
}

Work work(const OpContext& c) {
  const Function& f = function(c);
  return memory_work(c,
                     f.flops * static_cast<double>(std::max<std::size_t>(2, c.inputs.size()) - 1),
                     f.keeps == Keeps::kNothing ? 1 : 1.5);
}

Saved saved(const OpContext& c) {
  Saved saved;
  const Keeps keeps = function(c).keeps;
  if (keeps == Keeps::kResult) saved.outputs = {0};
  for (std::size_t i = 0; keeps == Keeps::kOperands && i < c.inputs.size(); ++i) {
    saved.inputs.push_back(static_cast<int>(i));
  }
  return saved;
}

constexpr AttrSpec kAttrs[] = {
    {.name = "fn", .type = AttrType::kString, .required = true},
    {.name = "dtype", .type = AttrType::kString},  // Of the result: "bf16", "bool", …
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType row{DType::kBf16, {{"seq", 16}, {"one", 1}}};
  const TensorType ids{DType::kI64, {{"batch", 4}, {"one", 1}, {"hidden", 32}}};
  const TensorType mask{DType::kBool, {{"batch", 4}, {"seq", 16}, {"one", 1}}};
  const auto text = [](const char* t) { return Attr(std::string(t)); };
  return {{{{"fn", text("exp")}}, {x}},
          {{{"fn", text("div")}}, {row, x}},
          {{{"fn", text("where")}}, {mask, x, row}},
          {{{"fn", text("lt")}}, {ids, ids}},
          {{{"fn", text("cast")}, {"dtype", text("f32")}}, {ids}}};
}

}  // namespace

const OpDef kPointwise = {
    .kind = "pointwise",
    .summary = "Function 'fn' of each element; operands broadcast together: [*], … -> [*]",
    .operands = {1, 64},
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
