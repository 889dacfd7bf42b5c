#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "plan/program.h"

namespace meshwright {

/// One way to spoil a program.
struct Mutation {
  std::string_view name;     ///< "drop collective".
  std::string_view summary;  ///< What it does.
  /// Changes the program at a random place; returns where, or "" when there is nothing to change.
  std::string (*apply)(Program& program, std::mt19937_64& random);
};

/// Every kind of mutation, one line each.
std::span<const Mutation> all_mutations();

struct MutantTally {
  std::string_view name;
  std::int64_t made = 0;
  std::int64_t rejected = 0;    ///< verify gives a counter-example.
  std::int64_t equivalent = 0;  ///< Proved, and computes the same numbers.
  std::int64_t missed = 0;      ///< Proved, but computes other numbers: a hole in the proof.
};

struct MutantReport {
  std::vector<MutantTally> kinds;
  std::vector<std::string> missed;  ///< Where, and what differs; at most 20.
  MutantTally total() const;
};

/// Makes `count` mutants, kinds in turn, and judges each: verify must reject it unless an
/// evaluation with numbers (verify/evaluate.h) finds it equal to one device. The program itself
/// must be proved. `stop` (Ctrl-C) ends early with what was judged so far. Throws Error when the
/// graph is too large to evaluate.
MutantReport judge_mutants(const Program& program, const Plan& plan, const Graph& graph,
                           const std::vector<Segment>& segments, std::int64_t count,
                           std::uint64_t seed, const std::atomic<bool>* stop = nullptr);

/// A table, one line per kind, and what was missed.
std::string to_string(const MutantReport& report);

}  // namespace meshwright
