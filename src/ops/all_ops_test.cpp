// Properties that hold of every operator, over the examples of its definition.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

// A rational resize of one factor: shards have multiply = 1.
struct Resize {
  std::size_t factor;
  std::int64_t multiply = 1;
  std::int64_t divide = 1;
};

// The tensor with every dim that ranges over the factor resized; false when a dim does not divide.
bool resize(TensorType& type, const RuleTensor& tensor, const Resize& r) {
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    for (const int f : tensor.dims[d].factors) {
      if (static_cast<std::size_t>(f) != r.factor) continue;
      Dim& dim = type.dims[d];
      if (dim.size * r.multiply % r.divide != 0) return false;
      dim.size = dim.size * r.multiply / r.divide;
      if (dim.size % dim.unit != 0) return false;
    }
  }
  return true;
}

bool resize(std::vector<TensorType>& types, const std::vector<RuleTensor>& tensors,
            const Resize& r) {
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!resize(types[i], tensors[i], r)) return false;
  }
  return true;
}

// Whether parts of the factor are parts of every dim that has it: it leads each of its groups.
bool may_split(const Rule& rule, std::size_t factor) {
  const FactorKind kind = rule.factors[factor].kind;
  if (kind != FactorKind::kSpatial && kind != FactorKind::kSum) return false;
  for (const auto* tensors : {&rule.inputs, &rule.outputs}) {
    for (const RuleTensor& tensor : *tensors) {
      for (const RuleDim& dim : tensor.dims) {
        for (std::size_t k = 1; k < dim.factors.size(); ++k) {
          if (static_cast<std::size_t>(dim.factors[k]) == factor) return false;
        }
      }
    }
  }
  return true;
}

Bytes saved_bytes(const OpDef& def, const OpContext& c) {
  const Saved saved = saved_of(def, c);
  Bytes total = saved.extra;
  for (const int i : saved.inputs) total += c.inputs[static_cast<std::size_t>(i)].bytes();
  for (const int i : saved.outputs) total += c.outputs[static_cast<std::size_t>(i)].bytes();
  return total;
}

std::string types_text(const std::vector<TensorType>& types) {
  std::string text;
  for (const TensorType& t : types) text += to_string(t) + " ";
  return text;
}

class AllOps : public testing::TestWithParam<const OpDef*> {
 protected:
  const OpDef& def() const { return *GetParam(); }

  // An example with its rule and results.
  struct Case {
    Attrs attrs;
    std::vector<TensorType> inputs;
    Rule rule;
    std::vector<TensorType> outputs;
    OpContext context() const { return {attrs, inputs, outputs}; }
  };
  Case make(Attrs attrs, std::vector<TensorType> inputs) const {
    Case c{std::move(attrs), std::move(inputs), {}, {}};
    c.rule = rule_of(def(), c.context());
    c.outputs = infer(def(), c.context());
    return c;
  }
  std::vector<Case> cases() const {
    std::vector<Case> result;
    for (OpDef::Example& e : def().examples()) {
      result.push_back(make(std::move(e.attrs), std::move(e.inputs)));
    }
    return result;
  }

  // A message when the operator accepts the operands or answers with anything but an Error.
  std::string accepted(const Attrs& attrs, const std::vector<TensorType>& inputs) const {
    try {
      infer(def(), {attrs, inputs, {}});
    } catch (const Error&) {
      return "";
    }
    return "accepted " + types_text(inputs);
  }

  void expect_split(const Case& whole, std::size_t factor, std::int64_t parts) const {
    std::vector<TensorType> inputs = whole.inputs;
    std::vector<TensorType> outputs = whole.outputs;
    const Resize split{factor, 1, parts};
    if (!resize(inputs, whole.rule.inputs, split)) return;
    if (!resize(outputs, whole.rule.outputs, split)) return;
    const std::string what =
        fmt::format("{}: factor {} of {} into {}", def().kind, whole.rule.factors[factor].id,
                    to_string(whole.rule), parts);
    const Case part = make(whole.attrs, inputs);
    EXPECT_EQ(part.outputs, outputs) << what << types_text(part.outputs);

    const Work a = work_of(def(), whole.context());
    const Work b = work_of(def(), part.context());
    const double n = static_cast<double>(parts);
    const auto sums = [&](double all, double one, const char* field) {
      EXPECT_THAT(one * n, DoubleNear(all, 1e-9 * all)) << what << " " << field;
    };
    sums(a.forward_flops.value, b.forward_flops.value, "forward");
    // An embedding's parts each see all gradients, whatever rows they hold.
    if (def().kind != "embedding" || whole.rule.factors[factor].kind == FactorKind::kSpatial) {
      const auto backward = [](const Work& w) {
        return (w.backward_input_flops + w.backward_weight_flops).value;
      };
      sums(backward(a), backward(b), "backward");
    }
    for (const auto field : {&Work::forward_traffic, &Work::backward_traffic,
                             &Work::forward_pointwise, &Work::backward_pointwise}) {
      EXPECT_LE((b.*field).value, (a.*field).value * (1 + 1e-9)) << what;
      EXPECT_GE((b.*field).value * n, (a.*field).value * (1 - 1e-9)) << what;
    }
    EXPECT_EQ(a.kernel, b.kernel) << what;
    const Bytes kept = saved_bytes(def(), part.context());
    EXPECT_LE(kept, saved_bytes(def(), whole.context())) << what;
    EXPECT_GE(kept * n * (1 + 1e-9), saved_bytes(def(), whole.context())) << what;
  }
};

TEST_P(AllOps, DefinitionIsComplete) {
  EXPECT_FALSE(def().kind.empty());
  EXPECT_FALSE(def().summary.empty());
  EXPECT_EQ(&find_op(def().kind), &def());
  const std::vector<Case> all = cases();
  EXPECT_GE(all.size(), 2u);
  for (const Case& c : all) {
    EXPECT_FALSE(c.outputs.empty());
    EXPECT_EQ(c.rule.outputs.size(), c.outputs.size());
    for (const Factor& f : c.rule.factors) {
      EXPECT_GE(f.size, 1) << f.id;
      EXPECT_FALSE(f.label.empty()) << f.id;
      EXPECT_EQ(f.size % f.unit, 0) << f.id;
    }
  }
}

TEST_P(AllOps, RuleSurvivesPrinting) {
  for (const Case& c : cases()) {
    std::vector<int> ranks;
    for (const TensorType& t : c.inputs) ranks.push_back(t.rank());
    const std::string text = to_string(c.rule);
    const Rule again = parse_rule(text, ranks);
    EXPECT_EQ(to_string(again), text);
    ASSERT_EQ(again.factors.size(), c.rule.factors.size());
    for (std::size_t i = 0; i < again.factors.size(); ++i) {
      EXPECT_EQ(again.factors[i].kind, c.rule.factors[i].kind);
    }
    for (std::size_t i = 0; i < again.outputs.size(); ++i) {
      EXPECT_EQ(again.outputs[i].dims, c.rule.outputs[i].dims);
    }
  }
}

TEST_P(AllOps, ShardsTileTheWhole) {
  int splits = 0;
  for (const Case& c : cases()) {
    for (std::size_t f = 0; f < c.rule.factors.size(); ++f) {
      if (!may_split(c.rule, f)) continue;
      ++splits;
      expect_split(c, f, 2);
    }
  }
  if (def().kind != "opaque") {
    EXPECT_GT(splits, 0);
  }
}

TEST_P(AllOps, ShardsOfRandomShapesTileTheWhole) {
  ::setenv("RC_PARAMS", "seed=11 max_success=200", 0);
  const std::vector<Case> all = cases();
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    Case whole = all[below(all.size())];
    for (std::size_t f = 0; f < whole.rule.factors.size(); ++f) {
      if (!may_split(whole.rule, f)) continue;
      const Resize grow{f, std::array{1, 2, 3, 5, 8}[below(5)], 1};
      RC_ASSERT(resize(whole.inputs, whole.rule.inputs, grow));
      RC_ASSERT(resize(whole.outputs, whole.rule.outputs, grow));
    }
    const std::vector<TensorType> expected = whole.outputs;
    whole = make(whole.attrs, whole.inputs);
    RC_ASSERT(whole.outputs == expected);
    for (std::size_t f = 0; f < whole.rule.factors.size(); ++f) {
      if (may_split(whole.rule, f)) expect_split(whole, f, std::array{2, 3, 4, 6}[below(4)]);
    }
    RC_ASSERT(!HasFailure());
  }));
}

TEST_P(AllOps, WorkAndSavedAreSane) {
  for (const Case& c : cases()) {
    const Work w = work_of(def(), c.context());
    for (const double v :
         {w.forward_flops.value, w.backward_input_flops.value, w.backward_weight_flops.value,
          w.forward_traffic.value, w.backward_traffic.value, w.forward_pointwise.value,
          w.backward_pointwise.value}) {
      EXPECT_TRUE(std::isfinite(v) && v >= 0);
    }
    if (w.kernel == KernelClass::kMatmul) {
      EXPECT_GT(w.matmul.batch * w.matmul.m * w.matmul.n * w.matmul.k, 0);
    }
    if (w.kernel == KernelClass::kView) {
      EXPECT_EQ(w.forward_kernels + w.backward_kernels, 0);
      EXPECT_EQ(w.forward_traffic, Bytes(0));
    } else {
      EXPECT_GE(w.forward_kernels, 1);
      EXPECT_GT(w.forward_traffic, Bytes(0));
    }
    const Saved saved = saved_of(def(), c.context());
    for (const int i : saved.inputs) {
      EXPECT_GE(i, 0);
      EXPECT_LT(static_cast<std::size_t>(i), c.inputs.size());
    }
    for (const int i : saved.outputs) {
      EXPECT_GE(i, 0);
      EXPECT_LT(static_cast<std::size_t>(i), c.outputs.size());
    }
    EXPECT_GE(saved.extra, Bytes(0));
    if (def().view) {
      EXPECT_EQ(c.outputs[0].bytes(), c.inputs[0].bytes());
    }
  }
}

TEST_P(AllOps, WrongOperandCountsAreErrors) {
  for (const Case& c : cases()) {
    std::vector<TensorType> fewer = c.inputs;
    fewer.resize(static_cast<std::size_t>(def().operands.min) - 1);
    EXPECT_EQ(accepted(c.attrs, fewer), "");
    std::vector<TensorType> more = c.inputs;
    while (more.size() <= static_cast<std::size_t>(def().operands.max)) more.push_back(more.back());
    EXPECT_EQ(accepted(c.attrs, more), "");
    EXPECT_EQ(accepted(c.attrs, {}), "");
  }
}

TEST_P(AllOps, WrongAttributesAreErrors) {
  for (const Case& c : cases()) {
    Attrs attrs = c.attrs;
    attrs["no_such_attribute"] = true;
    EXPECT_EQ(accepted(attrs, c.inputs), "");
    for (const AttrSpec& spec : def().attrs) {
      const std::string name(spec.name);
      attrs = c.attrs;
      attrs.erase(name);
      if (spec.required) {
        EXPECT_EQ(accepted(attrs, c.inputs), "") << "without " << name;
      }
      const bool number = spec.type == AttrType::kInt || spec.type == AttrType::kFloat ||
                          spec.type == AttrType::kIntOrInts;
      attrs[name] = spec.type == AttrType::kBool ? Attr(1.5) : Attr(true);
      EXPECT_EQ(accepted(attrs, c.inputs), "") << name << " of a wrong type";
      if (number && spec.min > -1e18) {
        attrs[name] = static_cast<std::int64_t>(spec.min) - 1;
        EXPECT_EQ(accepted(attrs, c.inputs), "") << name << " below its minimum";
        attrs[name] = static_cast<std::int64_t>(spec.max) + 1;
        EXPECT_EQ(accepted(attrs, c.inputs), "") << name << " above its maximum";
      }
      if (spec.type == AttrType::kInts) {
        attrs[name] = std::vector<std::int64_t>(1, static_cast<std::int64_t>(spec.max) + 1);
        EXPECT_EQ(accepted(attrs, c.inputs), "") << name << " above its maximum";
      }
      if (!spec.choices.empty()) {
        attrs[name] = std::string("no_such_choice");
        EXPECT_EQ(accepted(attrs, c.inputs), "") << name;
      }
    }
  }
}

TEST_P(AllOps, WrongElementTypesAreErrors) {
  for (const Case& c : cases()) {
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      const char wanted = def().element_types[std::min(i, def().element_types.size() - 1)];
      if (wanted == 'a') continue;
      std::vector<TensorType> inputs = c.inputs;
      inputs[i].dtype = wanted == 'f' ? DType::kI64 : DType::kBf16;
      EXPECT_EQ(accepted(c.attrs, inputs), "");
      inputs[i].dtype = DType::kBool;
      EXPECT_EQ(accepted(c.attrs, inputs), "");
    }
  }
}

// Any operands and attributes whatever get results that are legal types, or an Error.
TEST_P(AllOps, RandomOperandsNeverCrash) {
  ::setenv("RC_PARAMS", "seed=11 max_success=200", 0);
  const std::vector<Case> all = cases();
  EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    const std::array<std::int64_t, 8> sizes = {
        0, 1, 2, 7, 1'000'000'000'000, std::int64_t{1} << 40, (std::int64_t{1} << 40) + 1, -5};
    const Case& base = all[below(all.size())];
    std::vector<TensorType> inputs = base.inputs;
    Attrs attrs = base.attrs;
    for (std::size_t change = below(3) + 1; change > 0; --change) {
      TensorType& type = inputs[below(inputs.size())];
      const std::size_t dim = type.dims.empty() ? 0 : below(type.dims.size());
      switch (below(6)) {
        case 0:
          if (!type.dims.empty()) type.dims[dim].size = sizes[below(sizes.size())];
          break;
        case 1:
          if (!type.dims.empty()) type.dims[dim].unit = sizes[below(sizes.size())];
          break;
        case 2:
          if (!type.dims.empty()) type.dims.pop_back();
          break;
        case 3:
          type.dims.push_back({"more", sizes[below(sizes.size())], 1});
          break;
        case 4:
          type.dtype = static_cast<DType>(below(9));
          break;
        default:
          if (def().attrs.empty()) break;
          const AttrSpec& spec = def().attrs[below(def().attrs.size())];
          const std::int64_t number = sizes[below(sizes.size())];
          const Attr values[] = {number, static_cast<double>(number),
                                 std::vector<std::int64_t>(below(3), number),
                                 std::string(std::array{"", "a b -> b a", "((", "a=1", "* -> *",
                                                        "d=99999999999999999999"}[below(6)])};
          attrs[std::string(spec.name)] = values[below(std::size(values))];
      }
    }
    try {
      const Case c = make(attrs, inputs);
      for (const TensorType& type : c.outputs) check_tensor_type(type, "result");
      work_of(def(), c.context());
      saved_of(def(), c.context());
    } catch (const Error&) {
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Table, AllOps, testing::ValuesIn(all_ops().begin(), all_ops().end()),
                         [](const auto& param) { return std::string(param.param->kind); });

TEST(FindOp, NamesNearSpellings) {
  try {
    find_op("linaer");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("unknown operator kind \"linaer\""));
    EXPECT_THAT(e.what(), HasSubstr("linear"));
  }
}

}  // namespace
}  // namespace meshwright
