// Kernels on parts agree with kernels on the whole, in results and in gradients, for every operator
// and every way to split it.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/split_kernel.h"

namespace meshwright {
namespace {

constexpr double kTolerance = 1e-12;

// Operators that cannot be run, one a line.
constexpr std::string_view kWithoutKernel[] = {
    "adamw",  // The run updates parameters itself.
    "sgd",
    "opaque",  // What it computes is not known.
};

bool has_kernel(const OpDef& def) {
  return std::ranges::find(kWithoutKernel, def.kind) == std::end(kWithoutKernel);
}

std::vector<const OpDef*> ops_with_kernels() {
  std::vector<const OpDef*> result;
  for (const OpDef* def : all_ops()) {
    if (has_kernel(*def)) result.push_back(def);
  }
  return result;
}

Attr integer(std::int64_t v) { return v; }
Attr text(const char* v) { return std::string(v); }

// Besides the examples of the definitions: what attributes and shapes change inside a kernel.
std::vector<OpDef::Example> more_examples(std::string_view kind) {
  const auto tensor = [](std::vector<Dim> dims) { return TensorType{DType::kBf16, dims}; };
  if (kind == "dropout") return {{{{"p", 0.5}}, {tensor({{"batch", 12, 3}, {"hidden", 5}})}}};
  if (kind == "cross_entropy") {
    return {{{{"z_loss", 0.1}}, {tensor({{"seq", 7}, {"vocab", 2}}), {DType::kI32, {{"seq", 7}}}}}};
  }
  if (kind == "moe_router") {
    const TensorType x = tensor({{"batch", 3}, {"seq", 5}, {"hidden", 4}});
    const TensorType w = tensor({{"experts", 12}, {"hidden", 4}});
    const TensorType bias = tensor({{"experts", 12}});
    return {{{{"top_k", integer(3)}, {"groups", integer(4)}, {"top_k_groups", integer(2)}}, {x, w}},
            {{{"top_k", integer(2)}}, {x, w, bias}}};
  }
  // Windows of unequal widths.
  const TensorType probs{DType::kF32, {{"batch", 2}, {"seq", 10}, {"experts", 6}}};
  if (kind == "moe_dispatch") {
    const TensorType x = tensor({{"batch", 2}, {"seq", 10}, {"hidden", 4}});
    return {{{{"top_k", integer(2)}}, {x, probs}}};
  }
  if (kind == "moe_combine") {
    const TensorType y = tensor({{"experts", 6}, {"batch", 2}, {"seq", 4}, {"hidden", 4}});
    return {{{{"top_k", integer(2)}}, {y, probs}}};
  }
  if (kind == "relative_bias") {
    const TensorType table = tensor({{"buckets", 25}, {"heads", 4}});
    return {{{{"query_length", integer(9)}, {"key_length", integer(9)}}, {table}}};
  }
  if (kind == "gated") {
    const TensorType x = tensor({{"seq", 5}, {"ffn", 6}});
    std::vector<OpDef::Example> all;
    for (const char* act :
         {"gelu", "gelu_tanh", "quick_gelu", "relu", "sigmoid", "clamped_silu", "identity"}) {
      all.push_back({{{"act", text(act)}}, {x, x}});
    }
    return all;
  }
  if (kind == "attention") {
    const TensorType q = tensor({{"batch", 4, 2}, {"seq", 9}, {"heads", 6}, {"head_dim", 4}});
    const TensorType k = tensor({{"batch", 4, 2}, {"seq", 7}, {"kv_heads", 3}, {"head_dim", 4}});
    const TensorType one = tensor({{"batch", 4, 2}, {"seq", 7}, {"kv_heads", 1}, {"head_dim", 4}});
    return {{{{"alibi", true}, {"causal", true}, {"softcap", 2.0}}, {q, one, one}},
            {{{"window", integer(2)}, {"scale", 0.3}}, {q, k, k}},
            {{{"window", integer(3)}, {"alibi", true}, {"dropout", 0.3}}, {q, one, one}}};
  }
  return {};
}

std::vector<OpDef::Example> all_examples(const OpDef& def) {
  std::vector<OpDef::Example> all = def.examples();
  for (OpDef::Example& e : more_examples(def.kind)) all.push_back(std::move(e));
  return all;
}

class Kernels : public testing::TestWithParam<const OpDef*> {
 protected:
  const OpDef& def() const { return *GetParam(); }

  // Frozen positions of queries too, which ring attention splits.
  bool may_split(const Rule& rule, std::size_t factor) const {
    if (rule.factors[factor].kind != FactorKind::kFrozen) return true;
    const auto is_position = [&](const RuleDim& dim) {
      return dim.factors.size() == 1 && static_cast<std::size_t>(dim.factors[0]) == factor;
    };
    return def().ring && std::ranges::any_of(rule.outputs[0].dims, is_position) &&
           is_sequence_label(rule.factors[factor].label);
  }

  static bool splits_queries_only(const KernelCase& c, const Strategy& strategy, const Mesh& mesh) {
    if (c.def->kind != "attention") return false;
    for (std::size_t f = 0; f < strategy.factors.size(); ++f) {
      if (mesh.size(strategy.factors[f]) > 1 && c.rule.factors[f].id != "r") return false;
    }
    return true;
  }

  // Whether the split is legal; then its parts must make up the whole.
  bool expect_parts_agree(const KernelCase& c, const KernelRun& whole, const Strategy& strategy,
                          const Mesh& mesh) const {
    KernelRun run;
    std::string what = fmt::format("{} {}, split", def().kind, to_string(c.rule));
    for (std::size_t f = 0; f < strategy.factors.size(); ++f) {
      const int parts = mesh.size(strategy.factors[f]);
      if (parts > 1) what += fmt::format(" {} by {}", c.rule.factors[f].id, parts);
    }
    try {
      check_strategy(strategy, c.rule, c.inputs, c.outputs, mesh);
    } catch (const Error&) {
      // Query heads may be split without their kv heads, which are then whole.
      if (!splits_queries_only(c, strategy, mesh)) return false;
    }
    try {
      run = run_split(c, strategy, mesh);
    } catch (const Error& e) {
      // Windows of a halo need not fit every number of parts.
      for (std::size_t f = 0; f < strategy.factors.size(); ++f) {
        if (c.rule.factors[f].kind == FactorKind::kHalo && !strategy.factors[f].empty()) {
          return false;
        }
      }
      ADD_FAILURE() << what << ": " << e.what();
      return false;
    } catch (const std::exception& e) {
      ADD_FAILURE() << what << ": " << e.what();
      return false;
    }
    for (std::size_t k = 0; k < whole.results.size(); ++k) {
      EXPECT_LE(difference(run.results[k], whole.results[k]), kTolerance)
          << what << ": result " << k;
    }
    for (std::size_t k = 0; k < whole.gradients.size(); ++k) {
      if (!whole.gradients[k].defined()) continue;
      EXPECT_LE(difference(run.gradients[k], whole.gradients[k]), kTolerance)
          << what << ": gradient of operand " << k;
    }
    return true;
  }

  void check_example(const OpDef::Example& example) {
    const KernelCase c = draw_case(def(), example);
    const KernelRun whole = run_whole(c);
    for (const at::Tensor& t : whole.results) {
      ASSERT_TRUE(t.isfinite().all().item<bool>()) << def().kind;
    }
    for (const at::Tensor& t : whole.gradients) {
      ASSERT_TRUE(!t.defined() || t.isfinite().all().item<bool>()) << def().kind;
    }
    std::vector<std::size_t> factors;
    for (std::size_t f = 0; f < c.rule.factors.size(); ++f) {
      if (may_split(c.rule, f)) factors.push_back(f);
    }
    int splits = 0;
    Strategy strategy;
    for (const std::size_t f : factors) {
      // One part more than elements leaves a part empty.
      std::set<int> counts = {2, 3};
      if (c.rule.factors[f].size < 6) counts.insert(static_cast<int>(c.rule.factors[f].size) + 1);
      for (const int parts : counts) {
        strategy.factors.assign(c.rule.factors.size(), {});
        strategy.factors[f] = {0};
        splits += expect_parts_agree(c, whole, strategy, test_mesh({parts})) ? 1 : 0;
      }
    }
    for (const std::size_t f : factors) {
      for (const std::size_t g : factors) {
        if (g <= f) continue;
        for (const auto& [a, b] : {std::pair{2, 2}, {2, 3}, {3, 2}, {3, 3}}) {
          strategy.factors.assign(c.rule.factors.size(), {});
          strategy.factors[f] = {0};
          strategy.factors[g] = {1};
          splits += expect_parts_agree(c, whole, strategy, test_mesh({a, b})) ? 1 : 0;
        }
      }
    }
    EXPECT_TRUE(splits > 0 || factors.empty()) << def().kind << ": no split was tried";
  }
};

TEST_P(Kernels, PartsMakeUpTheWhole) {
  for (const OpDef::Example& example : all_examples(def())) {
    try {
      check_example(example);
    } catch (const std::exception& e) {
      ADD_FAILURE() << def().kind << ": " << e.what();
    }
  }
}

// Inference: the same calls without a record of them.
TEST_P(Kernels, RunWithoutGradients) {
  for (const OpDef::Example& example : all_examples(def())) {
    const KernelCase c = draw_case(def(), example);
    const KernelRun with = run_whole(c);
    const at::NoGradGuard guard;
    const KernelRun without = run_whole(c);
    for (std::size_t k = 0; k < with.results.size(); ++k) {
      EXPECT_EQ(difference(without.results[k], with.results[k]), 0) << def().kind;
    }
  }
}

// Operands of a graph's narrow and wide types meet in one kernel; the result must not be far off.
TEST_P(Kernels, RunInNarrowerNumbers) {
  for (const OpDef::Example& example : all_examples(def())) {
    const KernelCase c = draw_case(def(), example);
    const KernelRun exact = run_whole(c);
    for (const auto& [name, tolerance] : {std::pair{"float32", 1e-4}, {"bfloat16", 0.1}}) {
      KernelRun run;
      try {
        run = run_whole(c, name);
      } catch (const std::exception& e) {
        ADD_FAILURE() << def().kind << " in " << name << ": " << e.what();
        continue;
      }
      // Rounding changes which experts are chosen, and which element is the largest.
      const bool chooses = def().kind == "moe_router" || def().kind == "resample";
      if (chooses && name != std::string_view("float32")) continue;
      for (std::size_t k = 0; k < run.results.size(); ++k) {
        EXPECT_LE(difference(run.results[k], exact.results[k]), tolerance)
            << def().kind << " in " << name << ": result " << k;
      }
      for (std::size_t k = 0; k < run.gradients.size(); ++k) {
        if (!run.gradients[k].defined()) continue;
        EXPECT_LE(difference(run.gradients[k], exact.gradients[k]), tolerance)
            << def().kind << " in " << name << ": gradient " << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Kernels, testing::ValuesIn(ops_with_kernels()),
                         [](const auto& op) { return std::string(op.param->kind); });

TEST(KernelTable, OperatorsWithoutAKernelSaySo) {
  for (const std::string_view kind : {"adamw", "sgd", "opaque"}) {
    const OpDef& def = find_op(kind);
    const Attrs attrs;
    EXPECT_THROW(kernel_of(def, {attrs, {}, {}, {}, {}}), Error) << kind;
  }
}

}  // namespace
}  // namespace meshwright
