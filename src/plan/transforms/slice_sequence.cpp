#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "plan/transform.h"
#include "plan/transforms/graph_writer.h"

namespace meshwright {
namespace {

// Token-level slices (TeraPipe, Li et al. 2021, ICML, section 3): in a causal model position i
// needs no later position, so the tokens of a sequence can be run slice by slice, and a pipeline
// filled with slices has smaller bubbles. Every operator along the sequence becomes one operator
// per slice, slice after slice; parameters are shared. Causal attention of slice t reads the keys
// and values of slices 0 to t, joined, and says by `query_offset` where its queries stand; rotary
// positions start at the slice. Equal slices: TeraPipe's uneven ones, which level the growing
// attention, are not made. Operators that no token enters (an encoder's, a position bias's) run
// once, in front.
//
// The joined keys are copied once per slice, half the square of the number of slices in all: many
// slices of short sequences lose to that.

class SliceSequence {
 public:
  SliceSequence(const Graph& graph, std::string dim, int parts)
      : graph_(graph),
        dim_(std::move(dim)),
        parts_(parts),
        writer_(graph),
        whole_(graph.values.size()),
        sliced_dim_(graph.values.size(), -1),
        plans_(graph.ops.size()),
        slices_(graph.values.size()) {}

  Graph run() {
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const Value& value = graph_.values[v];
      if (value.kind == ValueKind::kActivation) continue;
      whole_[v] = writer_.add_value(value.name, value.type, value.kind);
      if (value.kind != ValueKind::kParameter) sliced_dim_[v] = named_dim(value);
    }
    bool any = false;
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) any |= plan(o);
    if (!any) {
      throw Error(fmt::format("no operator reads a sequence: no input has a dimension '{}'", dim_));
    }
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      if (!plans_[o].sliced) write_whole(o);
    }
    for (int t = 0; t < parts_; ++t) {
      cuts_.clear();
      for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
        if (plans_[o].sliced) write_slice(o, t);
      }
    }
    return writer_.finish();
  }

 private:
  // How an operator is sliced: the dim of each operand and result that is, or -1.
  struct OpPlan {
    bool sliced = false;
    bool causal = false;  ///< Attention over the sequence itself.
    std::vector<int> inputs, outputs;
  };

  const Op& op(std::size_t o) const { return graph_.ops[o]; }

  int named_dim(const Value& value) const {
    int found = -1;
    for (std::size_t d = 0; d < value.type.dims.size(); ++d) {
      if (value.type.dims[d].name != dim_) continue;
      if (found >= 0) {
        throw Error(fmt::format("two dimensions are named '{}'", dim_), value.name);
      }
      found = static_cast<int>(d);
    }
    return found;
  }

  [[noreturn]] void mixes(std::size_t o) const {
    throw Error(fmt::format("{} mixes positions of '{}'", op(o).kind, dim_), op(o).name,
                "only what treats every token by itself, and causal attention, can be sliced");
  }

  // The factor that leads dim `d` alone; none in a group's inside.
  static std::optional<int> leading_factor(const RuleTensor& tensor, int d) {
    const std::vector<int>& factors = tensor.dims[static_cast<std::size_t>(d)].factors;
    return factors.empty() ? std::nullopt : std::optional(factors[0]);
  }

  static std::vector<int> dims_of(const std::vector<RuleTensor>& tensors, int factor) {
    std::vector<int> dims;
    for (const RuleTensor& tensor : tensors) {
      dims.push_back(-1);
      for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
        if (leading_factor(tensor, static_cast<int>(d)) == factor)
          dims.back() = static_cast<int>(d);
      }
    }
    return dims;
  }

  bool plan(std::size_t o) {
    const std::vector<ValueId>& inputs = op(o).inputs;
    if (std::ranges::all_of(inputs, [&](ValueId id) { return sliced_dim_[id.index()] < 0; })) {
      return false;
    }
    const Rule rule = rule_in(graph_, op(o));
    std::optional<int> along;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const int d = sliced_dim_[inputs[i].index()];
      if (d < 0) continue;
      const std::optional<int> factor = leading_factor(rule.inputs[i], d);
      if (!factor) mixes(o);
      const FactorKind kind = rule.factors[static_cast<std::size_t>(*factor)].kind;
      if (op(o).kind == "attention" && kind == FactorKind::kFrozen) return plan_attention(o, rule);
      if (kind != FactorKind::kSpatial || (along && along != factor)) mixes(o);
      along = factor;
    }
    OpPlan& plan = plans_[o];
    plan = {true, false, dims_of(rule.inputs, *along), dims_of(rule.outputs, *along)};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (plan.inputs[i] >= 0) check_size(o, inputs[i], plan.inputs[i]);
    }
    finish(o);
    return true;
  }

  bool plan_attention(std::size_t o, const Rule& rule) {
    const std::vector<ValueId>& inputs = op(o).inputs;
    const int seq = static_cast<int>(graph_.value(inputs[0]).type.rank()) - 3;
    const auto is_sliced = [&](std::size_t i) { return sliced_dim_[inputs[i].index()] == seq; };
    if (!is_sliced(0)) not_causal(o);
    if (is_sliced(1) != is_sliced(2)) mixes(o);
    OpPlan& plan = plans_[o];
    plan.sliced = true;
    plan.causal = is_sliced(1);
    const bool causal = attr_bool(op(o).attrs, "causal", false);
    if (plan.causal && !causal) not_causal(o);
    // Positions that count in attention to another sequence: nothing says where a slice begins.
    const bool positions =
        causal || attr_int(op(o).attrs, "window", 0) > 0 || attr_bool(op(o).attrs, "alibi", false);
    if (!plan.causal && positions) mixes(o);
    if (op(o).attrs.contains("query_offset")) {
      throw Error("the attention is of a slice already", op(o).name);
    }
    if (plan.causal && graph_.value(inputs[0]).type.dims[static_cast<std::size_t>(seq)].size !=
                           graph_.value(inputs[1]).type.dims[static_cast<std::size_t>(seq)].size) {
      mixes(o);
    }
    const int factor = *leading_factor(rule.inputs[0], seq);
    plan.inputs = dims_of(rule.inputs, factor);
    plan.outputs = dims_of(rule.outputs, factor);
    if (plan.causal) plan.inputs[1] = plan.inputs[2] = seq;
    check_size(o, inputs[0], seq);
    finish(o);
    return true;
  }

  [[noreturn]] void not_causal(std::size_t o) const {
    throw Error(
        fmt::format("the attention is not causal: a query of the first slice would need the keys "
                    "of slices that have not run yet ('{}')",
                    dim_),
        op(o).name, "token slices are for causal (decoder) models");
  }

  void check_size(std::size_t o, ValueId id, int d) const {
    // What an operator's own inference sizes (tokens per expert) only has to give some result.
    const Value& value = graph_.value(id);
    if (sliced_dim_[id.index()] >= 0 && value.kind == ValueKind::kActivation) return;
    const std::int64_t size = value.type.dims[static_cast<std::size_t>(d)].size;
    if (size % parts_ == 0) return;
    throw Error(
        fmt::format("{} slices do not divide '{}' of {} ({})", parts_, dim_, size, value.name),
        op(o).name, fmt::format("a divisor of {}", size));
  }

  void finish(std::size_t o) {
    for (std::size_t i = 0; i < op(o).outputs.size(); ++i) {
      if (plans_[o].outputs[i] < 0) mixes(o);
      sliced_dim_[op(o).outputs[i].index()] = plans_[o].outputs[i];
    }
  }

  std::vector<std::string> result_names(std::size_t o, std::string_view prefix) const {
    std::vector<std::string> names;
    for (const ValueId id : op(o).outputs) {
      names.push_back(fmt::format("{}{}", prefix, graph_.value(id).name));
    }
    return names;
  }

  void write_whole(std::size_t o) {
    std::vector<ValueId> inputs;
    for (const ValueId id : op(o).inputs) inputs.push_back(whole_[id.index()]);
    const std::vector<ValueId> results =
        writer_.add_op(op(o).kind, op(o).name, std::move(inputs), op(o).attrs, result_names(o, ""));
    for (std::size_t i = 0; i < results.size(); ++i) whole_[op(o).outputs[i].index()] = results[i];
  }

  std::string slice_name(std::size_t o, int t) const {
    return fmt::format("slice{}.{}", t, op(o).name);
  }

  // Slice `t` of operand `i` along dim `d`: computed by slice t, or cut out of a whole value.
  ValueId slice_of(std::size_t o, std::size_t i, int d, int t) {
    const std::size_t v = op(o).inputs[i].index();
    if (!slices_[v].empty()) return slices_[v][static_cast<std::size_t>(t)];
    const auto dim = static_cast<std::size_t>(d);
    const std::int64_t length = graph_.values[v].type.dims[dim].size / parts_;
    const auto [it, fresh] = cuts_.try_emplace({v, d});
    if (fresh) {
      it->second = writer_.slice(fmt::format("{}.slice{}", slice_name(o, t), i), whole_[v], dim,
                                 t * length, length);
    }
    return it->second;
  }

  void write_slice(std::size_t o, int t) {
    const OpPlan& plan = plans_[o];
    Attrs attrs = op(o).attrs;
    std::vector<ValueId> inputs;
    if (plan.causal) {
      inputs = attention_operands(o, t, attrs);
    } else {
      for (std::size_t i = 0; i < op(o).inputs.size(); ++i) {
        const int d = plan.inputs[i];
        inputs.push_back(d < 0 ? whole_[op(o).inputs[i].index()] : slice_of(o, i, d, t));
      }
    }
    if (op(o).kind == "rope") {
      const std::int64_t length =
          writer_.type(inputs[0]).dims[static_cast<std::size_t>(plan.inputs[0])].size;
      attrs["offset"] = attr_int(attrs, "offset", 0) + t * length;
    }
    const std::string prefix = fmt::format("slice{}.", t);
    const std::vector<ValueId> results = writer_.add_op(
        op(o).kind, slice_name(o, t), std::move(inputs), std::move(attrs), result_names(o, prefix));
    for (std::size_t i = 0; i < results.size(); ++i) {
      slices_[op(o).outputs[i].index()].push_back(results[i]);
    }
  }

  // Queries of slice t, keys and values of all slices that they see, the bias of both.
  std::vector<ValueId> attention_operands(std::size_t o, int t, Attrs& attrs) {
    const OpPlan& plan = plans_[o];
    const int seq = plan.inputs[0];
    const ValueId q = slice_of(o, 0, seq, t);
    const std::int64_t length = writer_.type(q).dims[static_cast<std::size_t>(seq)].size;
    const std::int64_t window = attr_int(attrs, "window", 0);
    // Slices that lie wholly behind the window of the first query are not read.
    const std::int64_t first =
        window > 0 ? std::max<std::int64_t>(t * length - window, 0) / length : 0;
    const std::int64_t count = t + 1 - first;
    attrs["query_offset"] = (t - first) * length;
    std::vector<ValueId> operands = {q};
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      std::vector<ValueId> seen;
      for (std::int64_t s = first; s <= t; ++s) {
        seen.push_back(slice_of_past(o, i, seq, static_cast<int>(s), t));
      }
      const std::string name = fmt::format("{}.{}", slice_name(o, t), i == 1 ? "keys" : "values");
      operands.push_back(count == 1 ? seen[0]
                                    : writer_.concat(name, seen, static_cast<std::size_t>(seq)));
    }
    for (std::size_t i = 3; i < op(o).inputs.size(); ++i) {
      if (plan.inputs[i] < 0) {  // Sinks.
        operands.push_back(whole_[op(o).inputs[i].index()]);
        continue;
      }
      const ValueId rows = slice_of(o, i, plan.inputs[i], t);
      const std::size_t keys = writer_.type(rows).dims.size() - 1;
      const bool all = writer_.type(rows).dims[keys].size == count * length;
      operands.push_back(all ? rows
                             : writer_.slice(fmt::format("{}.bias", slice_name(o, t)), rows, keys,
                                             first * length, count * length));
    }
    return operands;
  }

  // Keys that are an input of the model are cut anew for every slice that reads them.
  ValueId slice_of_past(std::size_t o, std::size_t i, int d, int s, int t) {
    const std::size_t v = op(o).inputs[i].index();
    if (!slices_[v].empty()) return slices_[v][static_cast<std::size_t>(s)];
    const auto dim = static_cast<std::size_t>(d);
    const std::int64_t length = graph_.values[v].type.dims[dim].size / parts_;
    return writer_.slice(fmt::format("{}.past{}_{}", slice_name(o, t), i, s), whole_[v], dim,
                         s * length, length);
  }

  const Graph& graph_;
  const std::string dim_;
  const int parts_;
  GraphWriter writer_;
  std::vector<ValueId> whole_;                // Per value of the source graph.
  std::vector<int> sliced_dim_;               // Per value the dim of the sequence, or -1.
  std::vector<OpPlan> plans_;                 // Per operator.
  std::vector<std::vector<ValueId>> slices_;  // Activations, as far as written.
  std::map<std::pair<std::size_t, int>, ValueId> cuts_;  // Of the slice being written.
};

Graph apply(const Graph& graph, const TransformRequest& request) {
  if (!request.match.empty() && request.match != "**") {
    throw Error("slice_sequence rewrites every operator along the sequence, not a selection", {},
                "leave match out");
  }
  const std::string dim = request.factor.empty() ? "seq" : request.factor;
  Graph result = SliceSequence(graph, dim, request.parts).run();
  return request.parts == 1 ? graph : result;
}

}  // namespace

const Transform kSliceSequence = {
    .name = "slice_sequence",
    .summary = "runs a causal model in slices of tokens; attention reads the slices before",
    .apply = apply,
};

}  // namespace meshwright
