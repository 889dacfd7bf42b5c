#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "api/request.h"
#include "search/judge.h"
#include "search/layout_search.h"

namespace meshwright {

/// What a public thread tells about a run, for the tests of docs/cases.md.
struct Case {
  std::string model;  ///< Empty = `sizes`.
  GptSizes sizes;
  std::string cluster;
  std::int64_t batch = 1, seq = 0;
  DType dtype = DType::kBf16;
  std::string attention = "flash";
  std::string engine = "default";
};

inline Loaded load(const Case& c) {
  Request r;
  r.model = c.model;
  r.sizes = c.sizes;
  r.cluster = c.cluster;
  r.import.global_batch = c.batch;
  r.import.seq = c.seq;
  r.import.dtype = c.dtype == DType::kF8 ? DType::kBf16 : c.dtype;
  r.import.attention = c.attention;
  r.training.dtype = c.dtype;
  r.engine = c.engine;
  return load(std::move(r));
}

/// A case run with some degrees.
struct CaseRun {
  Judged judged;
  MemoryBreakdown memory;  ///< Of the fullest stage.
  Bytes capacity;          ///< Of its device.

  bool fits() const { return memory.total() <= capacity; }
  double step() const { return judged.step().value; }
  double gigabytes() const { return memory.total().value / 1e9; }
  double share() const { return memory.total() / capacity; }
  Bytes states() const { return memory.parameters + memory.gradients + memory.optimizer; }
};

inline CaseRun run(const Case& c, const Degrees& degrees) {
  const Loaded loaded = load(c);
  const Problem problem = loaded.problem();
  CaseRun result{judge_degrees(problem, degrees), {}, {}};
  const auto stage = static_cast<std::size_t>(result.judged.fullest_stage);
  result.memory = result.judged.timeline.memory[stage];
  result.capacity = usable_memory(problem, result.judged.plan.stages[stage]) *
                    (1 / problem.restrictions.max_memory);
  return result;
}

}  // namespace meshwright
