#include "plan/transforms/split_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

// Operators whose result over a contracted factor is the plain sum of the parts' results. (A
// router's is not: softmax follows. A loss or an embedding over a split vocabulary has an algorithm
// of its own.)
constexpr std::array<std::string_view, 4> kPlainSums = {"linear", "matmul", "conv2d",
                                                        "grouped_linear"};

bool sums(const Op& op) { return std::ranges::find(kPlainSums, op.kind) != kPlainSums.end(); }

// The factor along which a dim can be cut: its outermost one, not counting those of size 1 (the one
// key/value head of multi-query attention, in front of the queries that share it).
int leading_factor(const Rule& rule, const RuleDim& dim) {
  for (const int f : dim.factors) {
    if (rule.factors[static_cast<std::size_t>(f)].size > 1) return f;
  }
  return dim.factors.empty() ? -1 : dim.factors[0];
}

// The dim of a tensor that the factor leads, or -1.
int led_dim(const Rule& rule, const RuleTensor& tensor, int factor) {
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    if (leading_factor(rule, tensor.dims[d]) == factor) return static_cast<int>(d);
  }
  return -1;
}

bool stands_inside(const Rule& rule, int factor) {
  const auto inside = [&](const RuleTensor& tensor) {
    return std::ranges::any_of(tensor.dims, [&](const RuleDim& dim) {
      return leading_factor(rule, dim) != factor && std::ranges::count(dim.factors, factor) > 0;
    });
  };
  return std::ranges::any_of(rule.inputs, inside) || std::ranges::any_of(rule.outputs, inside);
}

bool may_split(const Op& op, const Rule& rule, int factor) {
  const Factor& f = rule.factors[static_cast<std::size_t>(factor)];
  if (stands_inside(rule, factor)) return false;
  if (f.kind == FactorKind::kSum) return sums(op);
  // Results that lack a spatial factor would be computed once per part.
  return f.kind == FactorKind::kSpatial &&
         std::ranges::all_of(rule.outputs,
                             [&](const RuleTensor& t) { return led_dim(rule, t, factor) >= 0; });
}

class Spread {
 public:
  Spread(const Graph& graph, const std::vector<bool>& selected, int parts)
      : graph_(graph),
        selected_(selected),
        parts_(parts),
        choices_(graph.ops.size()),
        rules_(graph.ops.size()),
        readers_(graph.values.size()) {
    for (std::size_t o = 0; o < graph.ops.size(); ++o) {
      if (!selected[o]) continue;
      rules_[o] = rule_in(graph, graph.ops[o]);
      for (const ValueId id : graph.ops[o].inputs) readers_[id.index()].push_back(o);
    }
  }

  std::vector<SplitChoice> run(std::string_view label) {
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      if (selected_[o]) seed(o, label);
    }
    if (pending_.empty()) nothing(label);
    while (!pending_.empty()) {
      const std::size_t o = pending_.back();
      pending_.pop_back();
      spread(o);
    }
    return std::move(choices_);
  }

 private:
  const Rule& rule(std::size_t o) const { return rules_[o]; }

  void seed(std::size_t o, std::string_view label) {
    int found = -1;
    for (std::size_t f = 0; f < rule(o).factors.size(); ++f) {
      const int factor = static_cast<int>(f);
      if (rule(o).factors[f].label != label || !may_split(graph_.ops[o], rule(o), factor)) continue;
      if (found >= 0) {
        throw Error(fmt::format("two factors are named '{}' in {}", label, to_string(rule(o))),
                    graph_.ops[o].name, "leave the operator out of the selection");
      }
      found = factor;
    }
    if (found >= 0) choose(o, found);
  }

  void choose(std::size_t o, int factor) {
    SplitChoice& choice = choices_[o];
    if (choice.factor == factor) return;
    const Op& op = graph_.ops[o];
    if (choice.split()) {
      const auto name = [&](int f) { return rule(o).factors[static_cast<std::size_t>(f)].label; };
      throw Error(fmt::format("the operator would be split along '{}' and along '{}'",
                              name(choice.factor), name(factor)),
                  op.name, "leave it, or what it reads, out of the selection");
    }
    const Factor& f = rule(o).factors[static_cast<std::size_t>(factor)];
    if (f.size / f.unit % parts_ != 0) {
      throw Error(
          fmt::format("{} parts do not divide factor '{}' of {}{}", parts_, f.label,
                      f.size / f.unit, f.unit > 1 ? fmt::format(" units of {}", f.unit) : ""),
          op.name, fmt::format("a divisor of {}", f.size / f.unit));
    }
    choice.factor = factor;
    choice.summed = f.kind == FactorKind::kSum;
    for (const RuleTensor& t : rule(o).inputs)
      choice.input_dims.push_back(led_dim(rule(o), t, factor));
    for (const RuleTensor& t : rule(o).outputs)
      choice.output_dims.push_back(led_dim(rule(o), t, factor));
    pending_.push_back(o);
  }

  // Operator `o` has a value whose dim `d` is split: split it too where its rule allows.
  void follow(std::size_t o, const RuleTensor& tensor, int d) {
    const int factor = leading_factor(rule(o), tensor.dims[static_cast<std::size_t>(d)]);
    if (factor >= 0 && may_split(graph_.ops[o], rule(o), factor)) choose(o, factor);
  }

  void follow_readers(ValueId id, int d) {
    for (const std::size_t reader : readers_[id.index()]) {
      const Op& op = graph_.ops[reader];
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        if (op.inputs[i] == id) follow(reader, rule(reader).inputs[i], d);
      }
    }
  }

  void spread(std::size_t o) {
    const Op& op = graph_.ops[o];
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const int d = choices_[o].input_dims[i];
      if (d < 0) continue;
      const Value& value = graph_.value(op.inputs[i]);
      if (value.kind == ValueKind::kParameter) follow_readers(op.inputs[i], d);
      if (!value.producer.valid() || !selected_[value.producer.index()]) continue;
      const std::size_t producer = value.producer.index();
      const std::vector<ValueId>& results = graph_.ops[producer].outputs;
      const auto at = std::ranges::find(results, op.inputs[i]) - results.begin();
      follow(producer, rule(producer).outputs[static_cast<std::size_t>(at)], d);
    }
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      if (choices_[o].output_dims[i] >= 0) {
        follow_readers(op.outputs[i], choices_[o].output_dims[i]);
      }
    }
  }

  [[noreturn]] void nothing(std::string_view label) const {
    std::set<std::string> labels;
    bool present = false;
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      for (std::size_t f = 0; f < rules_[o].factors.size(); ++f) {
        const std::string& name = rules_[o].factors[f].label;
        present |= name == label;
        if (may_split(graph_.ops[o], rules_[o], static_cast<int>(f))) labels.insert(name);
      }
    }
    throw Error(
        present ? fmt::format("no selected operator can be split along factor {}", in_quotes(label))
                : fmt::format("no selected operator has a factor {}", in_quotes(label)),
        {}, fmt::format("factors that can be split there: {}", fmt::join(labels, ", ")));
  }

  const Graph& graph_;
  const std::vector<bool>& selected_;
  const int parts_;
  std::vector<SplitChoice> choices_;
  std::vector<Rule> rules_;                        // Of selected operators.
  std::vector<std::vector<std::size_t>> readers_;  // Per value, selected operators only.
  std::vector<std::size_t> pending_;
};

}  // namespace

std::vector<SplitChoice> choose_splits(const Graph& graph, const std::vector<bool>& selected,
                                       std::string_view factor, int parts) {
  return Spread(graph, selected, parts).run(factor);
}

}  // namespace meshwright
