// Kernels of convolutions, norms of images, and functions by name: against ATen's own operators on
// whole tensors; rows of neighbours; what cannot be known.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/call_kernel.h"
#include "engine/split_kernel.h"

namespace meshwright {
namespace {

using testing::HasSubstr;
using Ints = std::vector<std::int64_t>;

Ints sizes(const TensorType& type) {
  Ints result;
  for (const Dim& dim : type.dims) result.push_back(dim.size);
  return result;
}

TensorType tensor(const Ints& dims, DType dtype = DType::kF64) {
  TensorType type{dtype, {}};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    type.dims.push_back({fmt::format("d{}", i), dims[i], 1});
  }
  return type;
}

KernelCase make(std::string_view kind, const Attrs& attrs, std::vector<TensorType> inputs,
                std::vector<at::Tensor> operands = {}) {
  KernelCase c = draw_case(find_op(kind), {attrs, std::move(inputs)});
  if (!operands.empty()) c.operands = std::move(operands);
  return c;
}

at::Tensor result(std::string_view kind, const Attrs& attrs, std::vector<TensorType> inputs,
                  std::vector<at::Tensor> operands = {}) {
  return run_whole(make(kind, attrs, std::move(inputs), std::move(operands))).results[0];
}

// Parts of a factor agree with the whole. Returns whether lowering takes the split.
bool expect_parts(const KernelCase& c, std::size_t factor, int parts) {
  Strategy strategy;
  strategy.factors.assign(c.rule.factors.size(), {});
  strategy.factors[factor] = {0};
  const std::string what =
      fmt::format("{} {} into {} parts", to_string(c.rule), c.rule.factors[factor].id, parts);
  KernelRun run;
  try {
    run = run_split(c, strategy, test_mesh({parts}));
  } catch (const Error&) {
    return false;
  }
  const KernelRun whole = run_whole(c);
  EXPECT_LE(difference(run.results[0], whole.results[0]), 1e-12) << what;
  for (std::size_t k = 0; k < c.inputs.size(); ++k) {
    if (!whole.gradients[k].defined()) continue;
    EXPECT_LE(difference(run.gradients[k], whole.gradients[k]), 1e-12) << what << ", operand " << k;
  }
  return true;
}

std::string failure(std::string_view kind, const Attrs& attrs,
                    const std::vector<TensorType>& inputs) {
  try {
    result(kind, attrs, inputs);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(WindowKernels, HalosOfEveryWidth) {
  int splits = 0;
  for (const std::int64_t kernel : {1, 2, 3, 5, 6}) {
    for (const std::int64_t stride : {1, 2}) {
      for (std::int64_t padding = 0; padding < kernel; ++padding) {
        const KernelCase c =
            make("conv2d", {{"stride", stride}, {"padding", padding}},
                 {tensor({1, 2, 24, 16}), tensor({2, 2, kernel, kernel}), tensor({2})});
        for (std::size_t f = 0; f < c.rule.factors.size(); ++f) {
          if (c.rule.factors[f].kind != FactorKind::kHalo) continue;
          for (const int parts : {2, 4}) splits += expect_parts(c, f, parts) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GE(splits, 20);
}

Box whole_box(const TensorType& type) {
  Box box;
  for (const Dim& dim : type.dims) box.push_back({0, dim.size});
  return box;
}

// A part of a convolution: rows `in` of the image, rows `out` of the result.
at::Tensor rows(const KernelCase& c, Interval in, Interval out) {
  std::vector<Box> inputs = {whole_box(c.inputs[0]), whole_box(c.inputs[1])};
  std::vector<Box> outputs = {whole_box(c.outputs[0])};
  inputs[0][2] = in;
  outputs[0][2] = out;
  const Kernel kernel = kernel_of(*c.def, {c.attrs, c.inputs, c.outputs, inputs, outputs});
  const std::vector<at::Tensor> operands = {c.operands[0].slice(2, in.begin, in.end),
                                            c.operands[1]};
  const DType type = c.outputs[0].dtype;
  return call_kernel(kernel, operands, {&type, 1}, parse_numerics("float64"), {})[0];
}

// Parts that read little but padding, or nothing else.
TEST(WindowKernels, RowsOfPadding) {
  const KernelCase c =
      make("conv2d", {{"padding", std::int64_t{4}}}, {tensor({1, 2, 6, 6}), tensor({2, 2, 3, 3})});
  ASSERT_EQ(sizes(c.outputs[0]), (Ints{1, 2, 12, 12}));
  const at::Tensor expected = at::conv2d(c.operands[0], c.operands[1], {}, 1, 4);
  for (std::int64_t row = 0; row < 12; ++row) {
    const Interval in = {std::clamp<std::int64_t>(row - 4, 0, 6),
                         std::clamp<std::int64_t>(row - 1, 0, 6)};
    EXPECT_TRUE(at::allclose(rows(c, in, {row, row + 1}), expected.slice(2, row, row + 1))) << row;
    // Rows that are there but not read.
    EXPECT_TRUE(at::allclose(rows(c, {0, 6}, {row, row + 1}), expected.slice(2, row, row + 1)));
  }
}

TEST(WindowKernels, MissingRowsAreFound) {
  const KernelCase c =
      make("conv2d", {{"padding", std::int64_t{1}}}, {tensor({1, 2, 8, 8}), tensor({2, 2, 3, 3})});
  EXPECT_THROW(rows(c, {0, 4}, {0, 4}), InternalError);
  EXPECT_THROW(rows(c, {4, 8}, {4, 8}), InternalError);
  EXPECT_EQ(rows(c, {0, 5}, {0, 4}).size(2), 4);
}

TEST(WindowKernels, ConvolutionsAgreeWithAten) {
  const auto ints = [](Ints v) { return Attr(std::move(v)); };
  const TensorType x = tensor({2, 4, 9, 7});
  const TensorType b = tensor({6});
  KernelCase c = make("conv",
                      {{"transposed", true},
                       {"stride", ints({2, 3})},
                       {"dilation", ints({2, 1})},
                       {"padding", ints({1, 2, 1, 2})},
                       {"output_padding", ints({1, 0})}},
                      {x, tensor({4, 6, 3, 2}), b});
  EXPECT_TRUE(at::allclose(run_whole(c).results[0],
                           at::conv_transpose2d(c.operands[0], c.operands[1], c.operands[2], {2, 3},
                                                {1, 2}, {1, 0}, 1, {2, 1})));
  for (const std::size_t f : {0, 1}) EXPECT_TRUE(expect_parts(c, f, 2));
  c = make(
      "conv",
      {{"groups", std::int64_t{2}}, {"stride", ints({1, 2})}, {"padding", ints({2, -1, 0, 3})}},
      {x, tensor({6, 2, 3, 2}), b});
  const at::Tensor padded = at::constant_pad_nd(c.operands[0], {-1, 3, 2, 0}, 0);
  EXPECT_TRUE(at::allclose(run_whole(c).results[0], at::conv2d(padded, c.operands[1], c.operands[2],
                                                               {1, 2}, Ints{0, 0}, Ints{1, 1}, 2)));
  EXPECT_TRUE(expect_parts(c, 0, 2));
  EXPECT_THAT(failure("conv", {}, {tensor({1, 1, 2, 2, 2, 2}), tensor({1, 1, 1, 1, 1, 1})}),
              HasSubstr("over 4 dims cannot be run"));
}

// In the numbers that a run may choose, near what float64 gives.
TEST(WindowKernels, NarrowNumbersComeNear) {
  for (const OpDef* def : all_ops()) {
    for (const OpDef::Example& example : def->examples()) {
      const KernelCase c = draw_case(*def, example);
      std::vector<Box> inputs, outputs;
      for (const TensorType& t : c.inputs) inputs.push_back(whole_box(t));
      for (const TensorType& t : c.outputs) outputs.push_back(whole_box(t));
      std::vector<DType> types;
      for (const TensorType& t : c.outputs) types.push_back(t.dtype);
      Kernel kernel;
      try {
        kernel = kernel_of(*def, {c.attrs, c.inputs, c.outputs, inputs, outputs});
      } catch (const Error&) {
        continue;
      }
      const auto run = [&](const char* name) {
        const Numerics numerics = parse_numerics(name);
        std::vector<at::Tensor> operands;
        for (std::size_t k = 0; k < c.inputs.size(); ++k) {
          const DType type = c.inputs[k].dtype;
          operands.push_back(c.operands[k].to(numerics.type_of(type)).clone());
          if (is_floating(type)) operands.back().set_requires_grad(true);
        }
        const at::Tensor y = call_kernel(kernel, operands, types, numerics, {})[0];
        if (y.requires_grad()) y.backward(at::ones_like(y));
        return y.detach().to(at::kDouble);
      };
      for (const auto& [name, tolerance] : {std::pair{"float32", 1e-4}, {"bfloat16", 0.1}}) {
        SCOPED_TRACE(fmt::format("{} {} in {}", def->kind, to_string(c.rule), name));
        try {
          EXPECT_LE(difference(run(name), run("float64")), tolerance);
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what();
        }
      }
    }
  }
}

TEST(WindowKernels, NormsAgreeWithAten) {
  const std::vector<TensorType> image = {tensor({3, 6, 4, 5}), tensor({6}), tensor({6})};
  at::manual_seed(3);
  std::vector<at::Tensor> o;
  for (const TensorType& t : image) o.push_back(at::randn(sizes(t), at::kDouble));
  EXPECT_TRUE(at::allclose(result("group_norm", {{"groups", std::int64_t{2}}}, image, o),
                           at::group_norm(o[0], 2, o[1], o[2], 1e-5)));
  EXPECT_TRUE(at::allclose(result("instance_norm", {}, image, o),
                           at::instance_norm(o[0], o[1], o[2], {}, {}, true, 0, 1e-5, false)));
  std::vector<TensorType> more = image;
  more.push_back(tensor({6}));
  more.push_back(tensor({6}));
  o.push_back(at::randn({6}, at::kDouble));
  o.push_back(at::rand({6}, at::kDouble));
  EXPECT_TRUE(at::allclose(result("batch_norm", {{"eps", 1e-3}}, more, o),
                           at::batch_norm(o[0], o[1], o[2], o[3], o[4], false, 0, 1e-3, false)));
}

TEST(WindowKernels, ReductionsTakeNoDimsAndMany) {
  const at::Tensor x = at::randn({3, 4, 5}, at::kDouble);
  const auto y = [&](const char* fn, Ints dims, bool keep = false) {
    return result("reduce", {{"fn", std::string(fn)}, {"dims", std::move(dims)}, {"keep", keep}},
                  {tensor({3, 4, 5})}, {x});
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
    return result("over_dims", {{"fn", std::string(fn)}, {"dims", std::move(dims)}},
                  {tensor({3, 4, 5})}, {x});
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
  const auto y = [&](const Attrs& a) { return result("resample", a, {type}, {x}); };
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
  EXPECT_TRUE(
      at::equal(result("resample", attrs("expand", {1}, {5}), {tensor({2, 1, 3})}).select(1, 4),
                result("resample", attrs("expand", {1}, {5}), {tensor({2, 1, 3})}).select(1, 0)));
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
  const auto y = result("gather", {{"dim", std::int64_t{1}}},
                        {tensor({2, 5, 3}), tensor({2, 2}, DType::kI64)}, {x, ids.reshape({2, 2})});
  EXPECT_TRUE(
      at::equal(y.reshape({2, 4, 3}), x.index_select(1, at::tensor(Ints{4, 0, 0, 4}, at::kLong))));
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

// Whatever the element types, a function runs or says why not.
TEST(WindowKernels, PointwiseFunctionsRunOnAllElementTypes) {
  for (const auto& [fn, operands] : kFunctions) {
    for (const DType dtype :
         {DType::kF64, DType::kBf16, DType::kI64, DType::kI32, DType::kU8, DType::kBool}) {
      const std::vector<TensorType> inputs(static_cast<std::size_t>(operands),
                                           tensor({3, 4}, dtype));
      KernelCase c = make("pointwise", {{"fn", std::string(fn)}}, inputs);
      // Integers are not divided by zero.
      if (divides(fn)) c.operands[1].fill_(1);
      SCOPED_TRACE(fmt::format("{} of {}", fn, dtype_name(dtype)));
      try {
        run_whole(c);
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
    return result("pointwise", {{"fn", std::string(fn)}}, types, std::move(operands));
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
