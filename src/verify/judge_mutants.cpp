#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "verify/evaluate.h"
#include "verify/mutate.h"
#include "verify/verify.h"

namespace meshwright {

MutantTally MutantReport::total() const {
  MutantTally sum{"all"};
  for (const MutantTally& k : this->kinds) {
    sum.made += k.made;
    sum.rejected += k.rejected;
    sum.equivalent += k.equivalent;
    sum.missed += k.missed;
  }
  return sum;
}

MutantReport judge_mutants(const Program& program, const Plan& plan, const Graph& graph,
                           const std::vector<Segment>& segments, std::int64_t count,
                           std::uint64_t seed, const std::atomic<bool>* stop) {
  const std::span<const Mutation> kinds = all_mutations();
  MutantReport report;
  Evaluator evaluator(plan, graph, segments, seed);
  if (const VerifyReport own = verify(program, plan, graph, segments); !own.proved()) {
    throw Error("the program itself is not proved: " + own.failure->message, "mutants");
  }
  if (const std::string own = evaluator.difference(program); !own.empty()) {
    // Operators that the stand-in does not know to split, such as windows over borders.
    throw Error("mutants of this program cannot be judged: evaluated, it differs in " + own,
                "mutants");
  }
  for (const Mutation& m : kinds) report.kinds.push_back({m.name});
  std::mt19937_64 random(seed);
  std::vector<int> idle(kinds.size());
  constexpr int kGiveUp = 64;
  std::int64_t made = 0;
  for (std::size_t k = 0; made < count; k = (k + 1) % kinds.size()) {
    if (std::all_of(idle.begin(), idle.end(), [](int i) { return i >= kGiveUp; })) break;
    if (stop != nullptr && stop->load()) break;
    if (idle[k] >= kGiveUp) continue;
    Program mutant = program;
    const std::string where = kinds[k].apply(mutant, random);
    if (where.empty()) {
      ++idle[k];
      continue;
    }
    idle[k] = 0;
    ++made;
    MutantTally& tally = report.kinds[k];
    ++tally.made;
    bool proved = false;
    try {
      proved = verify(mutant, plan, graph, segments).proved();
    } catch (const Error&) {
      // Refers to what is not there.
    }
    if (!proved) {
      ++tally.rejected;
      continue;
    }
    const std::string difference = evaluator.difference(mutant);
    if (difference.empty()) {
      ++tally.equivalent;
      continue;
    }
    ++tally.missed;
    if (report.missed.size() < 20) {
      report.missed.push_back(fmt::format("{} at {}: {}", kinds[k].name, where, difference));
    }
  }
  return report;
}

std::string to_string(const MutantReport& report) {
  std::string text = fmt::format("{:<22}{:>8}{:>10}{:>12}{:>8}\n", "mutation", "made", "rejected",
                                 "equivalent", "missed");
  const auto line = [&](const MutantTally& k) {
    text += fmt::format("{:<22}{:>8}{:>10}{:>12}{:>8}\n", k.name, k.made, k.rejected, k.equivalent,
                        k.missed);
  };
  for (const MutantTally& k : report.kinds) {
    if (k.made > 0) line(k);
  }
  line(report.total());
  for (const std::string& m : report.missed) text += fmt::format("missed: {}\n", m);
  return text;
}

}  // namespace meshwright
