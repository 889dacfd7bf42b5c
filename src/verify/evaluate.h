#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/program.h"

namespace meshwright {

/// Runs whole training steps with numbers: every device's arrays, instruction by instruction, with
/// operators replaced by random multilinear maps over their rules, exactly, modulo a prime. Nothing
/// of it is shared with verify but the definition of operators. Made for tiny shapes: the time is
/// that of naive loops over all elements.
class Evaluator {
 public:
  /// Evaluates the graph on one device. Throws Error when it is too large to evaluate.
  Evaluator(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments,
            std::uint64_t seed);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Runs the program. Empty when every loss and, on every device, every parameter after the step
  /// equal those of one device (a false equality has probability below 1e-8 per run); otherwise
  /// what differs first, or that it hangs.
  std::string difference(const Program& program);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshwright
