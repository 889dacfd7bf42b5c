// Kernels of convolutions, norms of images, and functions by name: against ATen's own operators on
// whole tensors, and parts against the whole.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/call_kernel.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using Ints = std::vector<std::int64_t>;

const Numerics kDouble = parse_numerics("float64");

std::vector<std::int64_t> sizes(const TensorType& type) {
  Ints result;
  for (const Dim& dim : type.dims) result.push_back(dim.size);
  return result;
}

Box whole_box(const TensorType& type) {
  Box box;
  for (const Dim& dim : type.dims) box.push_back({0, dim.size});
  return box;
}

std::vector<Box> whole_boxes(const std::vector<TensorType>& types) {
  std::vector<Box> boxes;
  for (const TensorType& type : types) boxes.push_back(whole_box(type));
  return boxes;
}

at::Tensor cut(at::Tensor x, const Box& box) {
  for (std::size_t d = 0; d < box.size(); ++d) {
    x = x.slice(static_cast<std::int64_t>(d), box[d].begin, box[d].end);
  }
  return x;
}

struct Case {
  Attrs attrs;
  std::vector<TensorType> inputs, outputs;
  Rule rule;
  std::vector<at::Tensor> operands;
};

Case make(const OpDef& def, Attrs attrs, std::vector<TensorType> inputs) {
  Case c{std::move(attrs), std::move(inputs), {}, {}, {}};
  c.rule = rule_of(def, {c.attrs, c.inputs, {}});
  c.outputs = infer(def, {c.attrs, c.inputs, {}});
  at::manual_seed(7);
  for (const TensorType& type : c.inputs) {
    const at::ScalarType scalar = kDouble.type_of(type.dtype);
    at::Tensor x = is_floating(type.dtype) ? at::randn(sizes(type), scalar)
                   : type.dtype == DType::kBool
                       ? at::randint(0, 2, sizes(type), at::kLong).to(scalar)
                       : at::randint(1, 6, sizes(type), at::kLong).to(scalar);
    c.operands.push_back(x);
  }
  return c;
}

struct Ran {
  std::vector<at::Tensor> results, gradients;
};

// Results, and gradients of operands for the gradients `up` of results.
Ran run(const OpDef& def, const Case& c, const std::vector<Box>& in, const std::vector<Box>& out,
        const std::vector<at::Tensor>& up, int parts = 1, int part = 0) {
  const Kernel kernel = kernel_of(def, {c.attrs, c.inputs, c.outputs, in, out, parts, part});
  std::vector<at::Tensor> operands;
  for (std::size_t i = 0; i < in.size(); ++i) {
    operands.push_back(cut(c.operands[i], in[i]).clone());
    if (is_floating(c.inputs[i].dtype)) operands.back().set_requires_grad(true);
  }
  std::vector<DType> types;
  for (const TensorType& t : c.outputs) types.push_back(t.dtype);
  Ran ran;
  ran.results = call_kernel(kernel, operands, types, kDouble, {});
  for (std::size_t i = 0; i < out.size(); ++i) {
    Ints local;
    for (const Interval& d : out[i]) local.push_back(d.size());
    EXPECT_EQ(ran.results[i].sizes().vec(), local) << def.kind;
    if (ran.results[i].requires_grad()) ran.results[i].backward(cut(up[i], out[i]));
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    const at::Tensor g = operands[i].grad();
    ran.gradients.push_back(g.defined() ? g : at::zeros_like(operands[i]));
  }
  return ran;
}

// The box of a part of a factor that leads its dims.
Box part_box(const TensorType& type, const RuleTensor& tensor, int factor, std::int64_t size,
             Interval of) {
  Box box = whole_box(type);
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    const auto& factors = tensor.dims[d].factors;
    if (factors.empty() || factors[0] != factor) continue;
    const std::int64_t n = type.dims[d].size;
    box[d] = {of.begin * n / size, of.end * n / size};
  }
  return box;
}

bool has(const RuleTensor& tensor, int factor) {
  for (const RuleDim& d : tensor.dims) {
    if (!d.factors.empty() && d.factors[0] == factor) return true;
  }
  return false;
}

bool leads(const Rule& rule, int factor) {
  for (const auto* tensors : {&rule.inputs, &rule.outputs}) {
    for (const RuleTensor& t : *tensors) {
      for (const RuleDim& d : t.dims) {
        for (std::size_t k = 1; k < d.factors.size(); ++k) {
          if (d.factors[k] == factor) return false;
        }
      }
    }
  }
  return true;
}

// Parts [0, cuts[0]), [cuts[0], cuts[1]), … of a factor against the whole.
void expect_parts(const OpDef& def, const Case& c, int factor, const Ints& cuts) {
  const Factor& f = c.rule.factors[static_cast<std::size_t>(factor)];
  const std::string what =
      fmt::format("{} {} factor {} at {}", def.kind, to_string(c.rule), f.id, fmt::join(cuts, " "));
  std::vector<at::Tensor> up;
  for (const TensorType& t : c.outputs) up.push_back(at::randn(sizes(t), at::kDouble));
  const Ran whole = run(def, c, whole_boxes(c.inputs), whole_boxes(c.outputs), up);
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& t : whole.results) results.push_back(at::zeros_like(t));
  for (const at::Tensor& t : whole.gradients) gradients.push_back(at::zeros_like(t));
  const bool sum = f.kind == FactorKind::kSum;
  std::int64_t begin = 0;
  for (std::size_t p = 0; p < cuts.size(); ++p) {
    const Interval of = {begin, cuts[p]};
    begin = cuts[p];
    std::vector<Box> in;
    std::vector<Box> out;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      in.push_back(part_box(c.inputs[i], c.rule.inputs[i], factor, f.size, of));
      if (f.kind != FactorKind::kHalo || !has(c.rule.inputs[i], factor)) continue;
      const auto halo = def.halo({c.attrs, c.inputs, c.outputs}, f.id);
      ASSERT_TRUE(halo) << what;
      const std::size_t d = f.id == "y" ? 2 : 3;
      in[i][d].begin = std::max<std::int64_t>(0, in[i][d].begin - halo->before);
      in[i][d].end = std::min(c.inputs[i].dims[d].size, in[i][d].end + halo->after);
    }
    for (std::size_t i = 0; i < c.outputs.size(); ++i) {
      out.push_back(part_box(c.outputs[i], c.rule.outputs[i], factor, f.size, of));
    }
    const Ran ran = run(def, c, in, out, up, sum ? static_cast<int>(cuts.size()) : 1,
                        sum ? static_cast<int>(p) : 0);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (sum || has(c.rule.outputs[i], factor)) {
        cut(results[i], out[i]) += ran.results[i];
      } else {
        results[i].copy_(ran.results[i]);
      }
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      cut(gradients[i], in[i]) += ran.gradients[i];
    }
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(at::allclose(results[i], whole.results[i], 1e-9, 1e-9, true))
        << what << " result " << i;
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], whole.gradients[i], 1e-9, 1e-9, true))
        << what << " gradient " << i;
  }
}

void expect_all_parts(const OpDef& def, const Case& c) {
  for (int factor = 0; factor < static_cast<int>(c.rule.factors.size()); ++factor) {
    const Factor& f = c.rule.factors[static_cast<std::size_t>(factor)];
    if (f.kind == FactorKind::kFrozen || !leads(c.rule, factor)) continue;
    if (f.kind == FactorKind::kHalo) {
      const auto halo = def.halo({c.attrs, c.inputs, c.outputs}, f.id);
      for (const std::int64_t parts : {2, 4}) {
        if (!halo || f.size % parts != 0) continue;
        Ints cuts;
        for (std::int64_t p = 1; p <= parts; ++p) cuts.push_back(f.size / parts * p);
        expect_parts(def, c, factor, cuts);
      }
      continue;
    }
    if (f.size % f.unit != 0) continue;
    const std::int64_t middle = f.size / f.unit / 3 * f.unit;  // Uneven parts; 0 = an empty one.
    expect_parts(def, c, factor, {middle, f.size});
    expect_parts(def, c, factor, {f.size, f.size});
  }
}

constexpr const char* kKinds[] = {"conv2d",    "conv",       "pad",           "roll",
                                  "pointwise", "over_dims",  "reduce",        "resample",
                                  "gather",    "batch_norm", "instance_norm", "group_norm"};

TEST(WindowKernels, PartsOfExamplesMakeTheWhole) {
  int ran = 0;
  for (const char* kind : kKinds) {
    const OpDef& def = find_op(kind);
    for (OpDef::Example& e : def.examples()) {
      const Case c = make(def, std::move(e.attrs), std::move(e.inputs));
      try {
        expect_all_parts(def, c);
        ++ran;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("cannot be run: the graph does not carry"));
      }
    }
  }
  EXPECT_GE(ran, 24);
}

TensorType tensor(const Ints& dims, DType dtype = DType::kF64) {
  TensorType type{dtype, {}};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    type.dims.push_back({fmt::format("d{}", i), dims[i], 1});
  }
  return type;
}

Ran whole(std::string_view kind, const Attrs& attrs, const std::vector<TensorType>& inputs,
          std::vector<at::Tensor> operands = {}) {
  const OpDef& def = find_op(kind);
  Case c = make(def, attrs, inputs);
  if (!operands.empty()) c.operands = std::move(operands);
  std::vector<at::Tensor> up;
  for (const TensorType& t : c.outputs) up.push_back(at::ones(sizes(t), at::kDouble));
  return run(def, c, whole_boxes(c.inputs), whole_boxes(c.outputs), up);
}

std::string failure(std::string_view kind, const Attrs& attrs,
                    const std::vector<TensorType>& inputs) {
  try {
    whole(kind, attrs, inputs);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(WindowKernels, HalosOfEveryWidth) {
  for (const std::int64_t kernel : {1, 2, 3, 5, 6}) {
    for (const std::int64_t stride : {1, 2}) {
      for (std::int64_t padding = 0; padding < kernel; ++padding) {
        const Attrs attrs = {{"stride", stride}, {"padding", padding}};
        const std::vector<TensorType> inputs = {tensor({1, 2, 24, 16}),
                                                tensor({2, 2, kernel, kernel}), tensor({2})};
        expect_all_parts(find_op("conv2d"), make(find_op("conv2d"), attrs, inputs));
      }
    }
  }
}

// Parts whose window reaches over more of the border than they have rows.
TEST(WindowKernels, RowsOfPaddingOnly) {
  const OpDef& def = find_op("conv2d");
  const Case c =
      make(def, {{"padding", std::int64_t{4}}}, {tensor({1, 2, 6, 6}), tensor({2, 2, 3, 3})});
  ASSERT_EQ(sizes(c.outputs[0]), (Ints{1, 2, 12, 12}));
  const at::Tensor expected = at::conv2d(c.operands[0], c.operands[1], {}, 1, 4);
  for (std::int64_t row = 0; row < 12; ++row) {
    std::vector<Box> in = whole_boxes(c.inputs);
    std::vector<Box> out = whole_boxes(c.outputs);
    out[0][2] = {row, row + 1};
    in[0][2] = {std::clamp<std::int64_t>(row - 4, 0, 6), std::clamp<std::int64_t>(row - 1, 0, 6)};
    const Ran ran = run(def, c, in, out, {at::ones({1, 2, 12, 12}, at::kDouble)});
    EXPECT_TRUE(at::allclose(ran.results[0], cut(expected, out[0]))) << row;
  }
}

TEST(WindowKernels, MissingRowsAreFound) {
  const OpDef& def = find_op("conv2d");
  const Case c =
      make(def, {{"padding", std::int64_t{1}}}, {tensor({1, 2, 8, 8}), tensor({2, 2, 3, 3})});
  std::vector<Box> in = whole_boxes(c.inputs);
  std::vector<Box> out = whole_boxes(c.outputs);
  in[0][2] = out[0][2] = {0, 4};
  EXPECT_THROW(kernel_of(def, {c.attrs, c.inputs, c.outputs, in, out}), InternalError);
}

TEST(WindowKernels, ConvolutionsAgreeWithAten) {
  const auto ints = [](Ints v) { return Attr(std::move(v)); };
  const TensorType x = tensor({2, 4, 9, 7});
  const TensorType w = tensor({4, 6, 3, 2});
  const TensorType b = tensor({6});
  const OpDef& def = find_op("conv");
  {
    const Attrs attrs = {{"transposed", true},
                         {"stride", ints({2, 3})},
                         {"dilation", ints({2, 1})},
                         {"padding", ints({1, 2, 1, 2})},
                         {"output_padding", ints({1, 0})}};
    const Case c = make(def, attrs, {x, w, b});
    const Ran ran = run(def, c, whole_boxes(c.inputs), whole_boxes(c.outputs),
                        {at::ones(sizes(c.outputs[0]), at::kDouble)});
    const at::Tensor y = at::conv_transpose2d(c.operands[0], c.operands[1], c.operands[2], {2, 3},
                                              {1, 2}, {1, 0}, 1, {2, 1});
    EXPECT_TRUE(at::allclose(ran.results[0], y));
    expect_all_parts(def, c);
  }
  {
    const Attrs attrs = {
        {"groups", std::int64_t{2}}, {"stride", ints({1, 2})}, {"padding", ints({2, -1, 0, 3})}};
    const Case c = make(def, attrs, {x, tensor({6, 2, 3, 2}), b});
    const Ran ran = run(def, c, whole_boxes(c.inputs), whole_boxes(c.outputs),
                        {at::ones(sizes(c.outputs[0]), at::kDouble)});
    const at::Tensor y =
        at::conv2d(at::constant_pad_nd(c.operands[0], {-1, 3, 2, 0}, 0), c.operands[1],
                   c.operands[2], {1, 2}, Ints{0, 0}, Ints{1, 1}, 2);
    EXPECT_TRUE(at::allclose(ran.results[0], y));
    expect_all_parts(def, c);
  }
  EXPECT_THAT(failure("conv", {}, {tensor({1, 1, 2, 2, 2, 2}), tensor({1, 1, 1, 1, 1, 1})}),
              HasSubstr("over 4 dims cannot be run"));
}

TEST(WindowKernels, NormsAgreeWithAten) {
  const std::vector<TensorType> image = {tensor({3, 6, 4, 5}), tensor({6}), tensor({6})};
  at::manual_seed(3);
  std::vector<at::Tensor> o;
  for (const TensorType& t : image) o.push_back(at::randn(sizes(t), at::kDouble));
  EXPECT_TRUE(at::allclose(whole("group_norm", {{"groups", std::int64_t{2}}}, image, o).results[0],
                           at::group_norm(o[0], 2, o[1], o[2], 1e-5)));
  EXPECT_TRUE(at::allclose(whole("instance_norm", {}, image, o).results[0],
                           at::instance_norm(o[0], o[1], o[2], {}, {}, true, 0, 1e-5, false)));
  std::vector<TensorType> more = image;
  more.push_back(tensor({6}));
  more.push_back(tensor({6}));
  o.push_back(at::randn({6}, at::kDouble));
  o.push_back(at::rand({6}, at::kDouble));
  EXPECT_TRUE(at::allclose(whole("batch_norm", {{"eps", 1e-3}}, more, o).results[0],
                           at::batch_norm(o[0], o[1], o[2], o[3], o[4], false, 0, 1e-3, false)));
}

TEST(WindowKernels, ReductionsTakeNoDimsAndMany) {
  const at::Tensor x = at::randn({3, 4, 5}, at::kDouble);
  const auto y = [&](const char* fn, Ints dims, bool keep = false) {
    return whole("reduce", {{"fn", std::string(fn)}, {"dims", std::move(dims)}, {"keep", keep}},
                 {tensor({3, 4, 5})}, {x})
        .results[0];
  };
  for (const char* fn : {"sum", "mean", "max", "min", "prod"}) {
    EXPECT_TRUE(at::equal(y(fn, {}), x)) << fn;
  }
  EXPECT_TRUE(at::allclose(y("l1", {}), x.abs()));
  EXPECT_TRUE(at::allclose(y("l2", {}), x.abs()));
  EXPECT_TRUE(at::allclose(y("log_sum_exp", {}), x));
  EXPECT_TRUE(at::allclose(y("log_sum_exp", {-1, 0}), x.exp().sum(Ints{0, 2}).log()));
  EXPECT_TRUE(at::allclose(y("prod", {0, 2}), x.prod(0).prod(-1)));
  EXPECT_TRUE(at::allclose(y("l2", {1}, true), (x * x).sum(Ints{1}, true).sqrt()));
  EXPECT_TRUE(at::equal(y("argmax", {1, 2}), x.reshape({3, 20}).argmax(1)));
  EXPECT_TRUE(at::equal(y("argmin", {0}, true), x.argmin(0, true)));
}

TEST(WindowKernels, OverSeveralDims) {
  const at::Tensor x = at::randn({3, 4, 5}, at::kDouble);
  const auto y = [&](const char* fn, Ints dims) {
    return whole("over_dims", {{"fn", std::string(fn)}, {"dims", std::move(dims)}},
                 {tensor({3, 4, 5})}, {x})
        .results[0];
  };
  EXPECT_TRUE(at::allclose(y("softmax", {1}), x.softmax(1)));
  EXPECT_TRUE(at::allclose(
      y("softmax", {0, 2}),
      x.permute({1, 0, 2}).reshape({4, 15}).softmax(1).reshape({4, 3, 5}).permute({1, 0, 2})));
  const at::Tensor hard = y("hardmax", {1});
  EXPECT_TRUE(at::equal(hard.sum(1), at::ones({3, 5}, at::kDouble)));
  EXPECT_TRUE(at::equal(hard.argmax(1), x.argmax(1)));
  EXPECT_TRUE(at::allclose(y("cumsum", {-2}), x.cumsum(1)));
  EXPECT_TRUE(at::allclose(y("cumprod", {0}), x.cumprod(0)));
  const auto error = [&](const char* fn, Ints dims) {
    return failure("over_dims", {{"fn", std::string(fn)}, {"dims", std::move(dims)}},
                   {tensor({3, 4, 5})});
  };
  EXPECT_THAT(error("trilu", {1, 2}), HasSubstr("the graph does not carry which triangle"));
  EXPECT_THAT(error("local_response_norm", {1}), HasSubstr("does not carry its size, alpha"));
  EXPECT_THAT(error("sort", {1}), HasSubstr("over_dims 'sort' cannot be run"));
  EXPECT_THAT(error("cumsum", {1, 2}), HasSubstr("runs along one dim, not 2"));
}

TEST(WindowKernels, ResamplesWhatSizesTell) {
  const TensorType type = tensor({2, 3, 4, 6});
  const at::Tensor x = at::randn({2, 3, 4, 6}, at::kDouble);
  const auto attrs = [](const char* fn, Ints dims, Ints to, std::int64_t window = 1) {
    return Attrs{{"fn", std::string(fn)},
                 {"dims", std::move(dims)},
                 {"sizes", std::move(to)},
                 {"window", window}};
  };
  const auto y = [&](const Attrs& a) { return whole("resample", a, {type}, {x}).results[0]; };
  EXPECT_TRUE(at::equal(y(attrs("tile", {1}, {9})), x.repeat({1, 3, 1, 1})));
  EXPECT_TRUE(at::allclose(y(attrs("avg_pool", {2, 3}, {1, 1}, 24)), x.mean(Ints{2, 3}, true)));
  EXPECT_TRUE(at::equal(y(attrs("max_pool", {2, 3}, {1, 1}, 24)), x.amax({2, 3}, true)));
  // Every pixel's block, row by row, as ONNX orders SpaceToDepth.
  const at::Tensor deep = y(attrs("space_to_depth", {1, 2, 3}, {12, 2, 3}));
  for (const std::int64_t by : {0, 1}) {
    for (const std::int64_t bx : {0, 1}) {
      const std::int64_t first = (by * 2 + bx) * 3;
      EXPECT_TRUE(
          at::equal(deep.slice(1, first, first + 3), x.slice(2, by, 4, 2).slice(3, bx, 6, 2)));
    }
  }
  EXPECT_TRUE(at::equal(
      whole("resample", attrs("expand", {1}, {5}), {tensor({2, 1, 3})}).results[0].select(1, 4),
      whole("resample", attrs("expand", {1}, {5}), {tensor({2, 1, 3})}).results[0].select(1, 0)));
  const auto error = [&](const Attrs& a) { return failure("resample", a, {type}); };
  EXPECT_THAT(error(attrs("max_pool", {2, 3}, {2, 3}, 4)), HasSubstr("its strides and padding"));
  EXPECT_THAT(error(attrs("lp_pool", {2, 3}, {1, 1}, 24)), HasSubstr("does not carry its p"));
  EXPECT_THAT(error(attrs("resize", {2}, {8})),
              HasSubstr("'resize' cannot be run: the graph does"));
  EXPECT_THAT(error(attrs("tile", {1}, {5})), HasSubstr("cannot make 5 elements of 3"));
  EXPECT_THAT(error(attrs("expand", {1}, {5})), HasSubstr("cannot make 5 elements of 3"));
  EXPECT_THAT(error(attrs("space_to_depth", {1, 2, 3}, {12, 2, 4})), HasSubstr("square blocks"));
  EXPECT_THAT(error(attrs("dream", {1}, {5})), HasSubstr("does not carry what it computes"));
}

TEST(WindowKernels, GatherCountsFromTheEnd) {
  const at::Tensor x = at::randn({2, 5, 3}, at::kDouble);
  const at::Tensor ids = at::tensor(std::vector<std::int64_t>{-1, 0, -5, 4}, at::kLong);
  const auto y = whole("gather", {{"dim", std::int64_t{1}}},
                       {tensor({2, 5, 3}), tensor({2, 2}, DType::kI64)}, {x, ids.reshape({2, 2})});
  EXPECT_TRUE(at::equal(y.results[0].reshape({2, 4, 3}),
                        x.index_select(1, at::tensor(Ints{4, 0, 0, 4}, at::kLong))));
}

// Names of the table of ops/pointwise.cpp with the number of operands that they take.
struct Named {
  const char* fn;
  int operands;
};
constexpr Named kFunctions[] = {
    {"abs", 1},         {"acos", 1},        {"acosh", 1},       {"add", 3},
    {"asin", 1},        {"asinh", 1},       {"atan", 1},        {"atanh", 1},
    {"bitwise_and", 2}, {"bitwise_not", 1}, {"bitwise_or", 2},  {"bitwise_xor", 3},
    {"cast", 1},        {"ceil", 1},        {"cos", 1},         {"cosh", 1},
    {"div", 2},         {"eq", 2},          {"erf", 1},         {"exp", 1},
    {"floor", 1},       {"fmod", 2},        {"ge", 2},          {"gt", 2},
    {"hardswish", 1},   {"isinf", 1},       {"isnan", 1},       {"le", 2},
    {"log", 1},         {"logical_and", 2}, {"logical_not", 1}, {"logical_or", 1},
    {"logical_xor", 2}, {"lt", 2},          {"maximum", 3},     {"mean", 3},
    {"minimum", 1},     {"mish", 1},        {"mul", 2},         {"neg", 1},
    {"pow", 2},         {"prelu", 2},       {"reciprocal", 1},  {"remainder", 2},
    {"round", 1},       {"selu", 1},        {"sign", 1},        {"sin", 1},
    {"sinh", 1},        {"softplus", 1},    {"softsign", 1},    {"sqrt", 1},
    {"sub", 2},         {"tan", 1},         {"where", 3},
};

bool divides(std::string_view fn) { return fn == "div" || fn == "fmod" || fn == "remainder"; }

// Whatever the element types, a function runs or says why not; its result has the declared type.
TEST(WindowKernels, PointwiseFunctionsRunOnAllElementTypes) {
  for (const auto& [fn, operands] : kFunctions) {
    for (const DType dtype :
         {DType::kF64, DType::kBf16, DType::kI64, DType::kI32, DType::kU8, DType::kBool}) {
      const std::vector<TensorType> inputs(static_cast<std::size_t>(operands),
                                           tensor({3, 4}, dtype));
      const OpDef& def = find_op("pointwise");
      const Case c = make(def, {{"fn", std::string(fn)}}, inputs);
      // Integers of bools are not divided: half of them are zero.
      if (dtype == DType::kBool && divides(fn)) continue;
      SCOPED_TRACE(fmt::format("{} of {}", fn, dtype_name(dtype)));
      try {
        const Ran ran = run(def, c, whole_boxes(c.inputs), whole_boxes(c.outputs),
                            {at::ones({3, 4}, at::kDouble)});
        EXPECT_EQ(ran.results[0].scalar_type(), kDouble.type_of(c.outputs[0].dtype));
        if (dtype == DType::kF64) expect_parts(def, c, 0, {1, 3});
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr("takes no floating-point operands"));
      } catch (const InternalError& e) {
        ADD_FAILURE() << e.what();
      }
    }
  }
}

TEST(WindowKernels, PointwiseValues) {
  const at::Tensor x = at::tensor(std::vector<double>{-2, -0.5, 0, 0.5, 3}, at::kDouble);
  const at::Tensor s = at::tensor(std::vector<double>{2, 2, 2, 2, 2}, at::kDouble);
  const auto y = [&](const char* fn, std::vector<at::Tensor> operands, DType dtype = DType::kF64) {
    const std::vector<TensorType> types(operands.size(), tensor({operands[0].size(0)}, dtype));
    return whole("pointwise", {{"fn", std::string(fn)}}, types, std::move(operands)).results[0];
  };
  const auto expect = [](const at::Tensor& a, std::vector<double> b) {
    EXPECT_TRUE(at::allclose(a.to(at::kDouble), at::tensor(b, at::kDouble))) << a;
  };
  expect(y("round", {x}), {-2, 0, 0, 0, 3});
  expect(y("prelu", {x, s}), {-4, -1, 0, 0.5, 3});
  expect(y("softsign", {x}), {-2. / 3, -1. / 3, 0, 1. / 3, 0.75});
  expect(y("mean", {x, s, s}), {2. / 3, 3.5 / 3, 4. / 3, 4.5 / 3, 7. / 3});
  expect(y("remainder", {x, s}), {0, 1.5, 0, 0.5, 1});
  expect(y("fmod", {x, s}), {0, -0.5, 0, 0.5, 1});
  const at::Tensor n = at::tensor(Ints{-7, 7, 9}, at::kLong);
  const at::Tensor m = at::tensor(Ints{2, 2, 5}, at::kLong);
  expect(y("div", {n, m}, DType::kI64), {-3, 3, 1});
  const auto error = [&](const char* fn, int operands = 1) {
    return failure("pointwise", {{"fn", std::string(fn)}},
                   std::vector<TensorType>(static_cast<std::size_t>(operands), tensor({5})));
  };
  EXPECT_THAT(error("clamp"), HasSubstr("the graph does not carry its bounds"));
  EXPECT_THAT(error("leaky_relu"), HasSubstr("the graph does not carry its slope"));
  EXPECT_THAT(error("rand_like"), HasSubstr("the graph does not carry its distribution"));
  EXPECT_THAT(error("exp", 2), HasSubstr("'exp' takes 1 operands, not 2"));
  EXPECT_THAT(error("div", 3), HasSubstr("'div' takes 2 operands, not 3"));
}

TEST(WindowKernels, OpaqueOperatorsCannotBeRun) {
  EXPECT_THAT(failure("opaque", {{"op", std::string("Sort")}, {"results", std::string("f64[a=2]")}},
                      {tensor({2})}),
              HasSubstr("operator opaque cannot be run: what it computes is not known"));
}

}  // namespace
}  // namespace meshwright
