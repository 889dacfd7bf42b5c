#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/program.h"

namespace meshwright {

/// Where a Program is wrong.
struct CounterExample {
  std::string check;    ///< "segment", "links", "transfers", "order" or "step".
  std::string message;  ///< What does not hold.
  std::string
      instruction;  ///< "backward[12] of segment layers.0: all_reduce for layers.0.mlp.down".
  int rank = -1;    ///< A device on which it does not hold; -1 = no single one.
  std::string tensor;
  std::string region;  ///< What of the tensor: "[batch 0:4, seq 0:128]".
  /// The instructions that lead there from the operators that computed what it reads, in order.
  std::vector<std::string> history;
};

/// What was looked at until the proof was complete or failed.
struct VerifyCounts {
  std::int64_t segments = 0;             ///< Distinct segment programs.
  std::int64_t instructions = 0;         ///< Of those and of the steps.
  std::int64_t device_instructions = 0;  ///< The same, times the devices they stand for.
  std::int64_t links = 0;                ///< Values and gradients between segment instances.
  std::int64_t transfers = 0;            ///< Values and gradients between stages.
  std::int64_t passes = 0;               ///< Entries of the orders.
  std::int64_t parameters = 0;           ///< Parameters, each on every stage that holds it.
  std::int64_t devices = 0;
};

struct VerifyReport {
  std::optional<CounterExample> failure;
  VerifyCounts counts;
  bool proved() const { return !failure; }
};

/// Proves that `program` computes on its devices what `graph` says on one: replays every list of
/// instructions on symbolic views (which part of which tensor a device holds, and which terms of
/// its sum), then follows values and gradients from segment to segment and stage to stage, the
/// orders of all lanes under blocking semantics, and the step at the end. Only what the program's
/// own buffers and operands say is used, nothing of how it was made. See docs/verify.md for what is
/// proved and on which assumptions. Linear in the size of the program, whatever the number of
/// devices. `segments` are those that the plan counts in. Throws Error when the program refers to
/// what is not there.
VerifyReport verify(const Program& program, const Plan& plan, const Graph& graph,
                    const std::vector<Segment>& segments);

/// What was proved, or the counter-example, for people.
std::string to_string(const VerifyReport& report);

}  // namespace meshwright
