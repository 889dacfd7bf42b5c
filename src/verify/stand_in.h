#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "mesh/region.h"
#include "plan/micro_batch_tables.h"
#include "verify/operator_needs.h"

// Private to the evaluation of programs.

namespace meshwright {

/// Numbers modulo the prime 2^31 - 1.
using Number = std::uint32_t;
inline constexpr std::uint64_t kPrime = 2147483647;
constexpr Number times(Number a, Number b) {
  return static_cast<Number>(std::uint64_t{a} * b % kPrime);
}
constexpr Number plus(Number a, Number b) {
  const std::uint64_t sum = std::uint64_t{a} + b;
  return static_cast<Number>(sum >= kPrime ? sum - kPrime : sum);
}
/// A random number that depends on all of its arguments.
Number random_number(std::uint64_t a, std::uint64_t b, std::uint64_t c);

/// What a device has of one tensor: elements of `box`, last dimension fastest; no data = not given.
/// `core` is the box without rows of neighbours.
struct Part {
  const Box* box = nullptr;
  const Box* core = nullptr;
  const std::vector<Number>* data = nullptr;
};

/// Stands for operators: operator o computes the random multilinear map
///   result_j[.] = sum over the factors (and sizes) that result j lacks of c_{o,j}(all indices) *
///                 product of all operands,
/// and its backward pass the map in which the needed operands and results (gradient_needs) and the
/// results' gradients are multiplied. Any device that works on another part than the rule says, or
/// lacks some of it, computes something else. Splitting a frozen factor gives rubbish.
class StandIn {
 public:
  StandIn(const Graph& graph, MicroBatchTables& tables, std::int64_t samples, std::uint64_t seed)
      : graph_(graph), tables_(tables), samples_(samples), seed_(seed) {}

  /// Most operands and results of an operator.
  static constexpr std::size_t kMaxTensors = 16;

  /// False (and nothing computed) when the parts do not fit together.
  bool forward(int op, std::span<const Part> inputs, std::size_t output, const Box& box,
               std::vector<Number>& result);
  bool backward(int op, std::span<const Part> gradients, std::span<const Part> inputs,
                std::span<const Part> outputs, std::size_t operand, const Box& box, const Box& core,
                std::vector<Number>& result);

  const Rule& rule(int op) {
    return tables_.rule(op, find_op(graph_.ops[static_cast<std::size_t>(op)].kind), samples_);
  }

 private:
  // An operand or result in the loops; null = not given, not multiplied, not the target.
  struct Entry {
    const RuleTensor* rule = nullptr;
    const TensorType* type = nullptr;
    const Box* box = nullptr;
    const Number* factor = nullptr;
    Number* target = nullptr;
  };
  const TensorType& type(ValueId id) { return tables_.type(id, samples_); }
  // Narrows the factors to what the box holds of them; false when they are narrower otherwise.
  bool fix(const Rule& rule, const RuleTensor& tensor, const TensorType& type, const Box& box,
           std::vector<Interval>& factors) const;
  bool complete(int op, const Rule& rule, std::vector<Interval>& factors) const;
  // Rows beside its own that a result's row depends on, per factor.
  std::vector<Interval> windows(int op, const Rule& rule);
  // Adds to the target over all loops; entries are all operands and result `output`. False when
  // rows of neighbours are missing.
  bool accumulate(int op, std::size_t output, const Rule& rule,
                  const std::vector<Interval>& factors, std::span<const Entry> entries);

  const Graph& graph_;
  MicroBatchTables& tables_;
  std::int64_t samples_;
  std::uint64_t seed_;
};

}  // namespace meshwright
