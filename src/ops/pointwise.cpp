#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/kernel_dims.h"
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
    {"fmod", 2, Keeps::kOperands},
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

// What functions need besides their operands.
struct Lack {
  std::string_view fn, what;
};
constexpr Lack kLacks[] = {
    {"bernoulli", "the seed of its draws"},
    {"bitwise_shift", "its direction"},
    {"celu", "its alpha"},
    {"clamp", "its bounds"},
    {"dequantize", "its scale and zero point"},
    {"elu", "its alpha"},
    {"hardsigmoid", "its alpha and beta"},
    {"leaky_relu", "its slope"},
    {"quantize", "its scale and zero point"},
    {"rand_like", "its distribution"},
    {"shrink", "its bounds"},
    {"swish", "its alpha"},
    {"threshold", "its threshold"},
};

// Functions of any number of operands, two at a time.
struct Chain {
  std::string_view fn, aten;
};
constexpr Chain kChains[] = {
    {"add", "aten::add.Tensor"},
    {"bitwise_and", "aten::bitwise_and.Tensor"},
    {"bitwise_or", "aten::bitwise_or.Tensor"},
    {"bitwise_xor", "aten::bitwise_xor.Tensor"},
    {"logical_and", "aten::logical_and"},
    {"logical_or", "aten::logical_or"},
    {"logical_xor", "aten::logical_xor"},
    {"maximum", "aten::maximum"},
    {"mean", "aten::add.Tensor"},
    {"minimum", "aten::minimum"},
    {"mul", "aten::mul.Tensor"},
};

// Functions that ATen has for floating-point operands only, or for numbers only.
constexpr std::string_view kOfFloats[] = {"hardswish", "mish", "selu", "softplus", "softsign"};
constexpr std::string_view kOfNumbers[] = {"abs", "ceil", "div",       "floor", "fmod",
                                           "neg", "pow",  "remainder", "round", "sub"};

Slot composed(KernelBuilder& k, const KernelContext& c, std::string_view fn,
              const std::vector<Slot>& x) {
  const auto count = [&](std::size_t wanted) {
    if (x.size() == wanted) return;
    throw Error(fmt::format("pointwise '{}' takes {} operands, not {}", fn, wanted, x.size()));
  };
  if (const auto chain = std::ranges::find(kChains, fn, &Chain::fn); chain != std::end(kChains)) {
    Slot y = x[0];
    for (std::size_t i = 1; i < x.size(); ++i) y = k.call(chain->aten, {y, x[i]});
    if (x.size() == 1 && fn.starts_with("logical_"))
      y = k.call("aten::to.dtype", {y, DType::kBool});
    if (fn != "mean" || x.size() == 1) return y;
    return k.call("aten::div.Scalar", {y, static_cast<double>(x.size())});
  }
  if (fn == "div") {
    count(2);
    // Integers divide to integers, towards zero.
    const bool integers =
        std::ranges::all_of(c.inputs, [](const TensorType& t) { return !is_floating(t.dtype); });
    if (!integers || is_floating(c.outputs[0].dtype))
      return k.call("aten::div.Tensor", {x[0], x[1]});
    return k.call("aten::div.Tensor_mode", {x[0], x[1], std::string("trunc")});
  }
  if (fn == "pow") {
    count(2);
    return k.call("aten::pow.Tensor_Tensor", {x[0], x[1]});
  }
  if (fn == "prelu") {
    count(2);
    // aten::prelu takes no slopes that stretch.
    const Slot positive = k.call("aten::gt.Scalar", {x[0], 0.0});
    return k.call("aten::where.self", {positive, x[0], k.call("aten::mul.Tensor", {x[0], x[1]})});
  }
  if (fn == "where") {
    count(3);
    return k.call("aten::where.self", {k.call("aten::to.dtype", {x[0], DType::kBool}), x[1], x[2]});
  }
  if (fn == "softsign") {
    count(1);
    const Slot denominator = k.call("aten::add.Scalar", {k.call("aten::abs", {x[0]}), 1.0});
    return k.call("aten::div.Tensor", {x[0], denominator});
  }
  constexpr std::string_view kPairs[] = {"eq", "fmod", "ge", "gt", "le", "lt", "remainder", "sub"};
  if (std::ranges::find(kPairs, fn) != std::end(kPairs)) {
    count(2);
    return k.call(fmt::format("aten::{}.Tensor", fn), {x[0], x[1]});
  }
  count(1);
  return fn == "cast" ? x[0] : k.call(fmt::format("aten::{}", fn), {x[0]});
}

// The interpreter gives results the element types that the graph declares.
Kernel kernel(const KernelContext& c) {
  const std::string_view fn = function(op_context(c)).name;
  if (const auto lack = std::ranges::find(kLacks, fn, &Lack::fn); lack != std::end(kLacks)) {
    cannot_run("pointwise", fn, lack->what);
  }
  KernelBuilder k(c);
  std::vector<Slot> operands;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const DType dtype = c.inputs[i].dtype;
    Slot x{static_cast<int>(i)};
    if (fn.starts_with("bitwise_") && is_floating(dtype)) {
      throw Error(fmt::format("pointwise '{}' takes no floating-point operands", fn));
    }
    if (!is_floating(dtype) && std::ranges::find(kOfFloats, fn) != std::end(kOfFloats)) {
      x = k.call("aten::to.dtype", {x, DType::kF64});
    }
    if (dtype == DType::kBool && std::ranges::find(kOfNumbers, fn) != std::end(kOfNumbers)) {
      x = k.call("aten::to.dtype", {x, DType::kI64});
    }
    operands.push_back(x);
  }
  return k.finish({composed(k, c, fn, operands)});
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
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
