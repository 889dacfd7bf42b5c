#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/call_kernel.h"
#include "engine/comm.h"
#include "engine/optimizer.h"
#include "plan/program.h"
#include "plan/segments.h"
#include "run/device_view.h"
#include "run/feeds.h"

namespace meshwright {

/// Where a rank is in its program.
struct RunPlace {
  std::int64_t step = 0;
  const char* phase = "start";  ///< "forward", …, "step".
  int chunk = -1;               ///< Or transfer.
  int micro_batch = -1;
  int instruction = -1;
  const Instr* instr = nullptr;     ///< Null outside instructions.
  const std::string* op = nullptr;  ///< Of the operator that the instruction belongs to.
};

/// Told of everything that the executor does; calls must be cheap.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void begin(const RunPlace&) {}
  virtual void end(const RunPlace&) {}
};

struct ExecutorSettings {
  Numerics numerics;
  OptimizerSettings optimizer;
  double clip_norm = 0;  ///< Largest global norm of the gradient; 0 = any.
  std::uint64_t seed = 1;
};

struct StepResult {
  double loss = 0;
  double gradient_norm = 0;  ///< Before clipping; 0 where not asked for.
};

/// A (shard of a) parameter that a rank's optimizer updates.
struct HeldState {
  ValueId value;
  TensorType type;     ///< Of the whole parameter.
  LocalBuffer region;  ///< What `state` covers.
  bool owner = false;  ///< Exactly one of the ranks that hold this region.
  OptimizerState* state = nullptr;
};

/// Runs one rank of a program: its lane's order, instruction by instruction (Program is what is
/// simulated and proved; see plan/program.h for what each means), on libtorch. Rank = device.
class Executor {
 public:
  /// Throws Error when an operator of the program cannot be run. The referenced things must live
  /// as long as the executor.
  Executor(const Program& program, const Plan& plan, const Graph& graph,
           const std::vector<Segment>& segments, Comm& comm, const Feeds& feeds,
           const ExecutorSettings& settings, RunObserver* observer = nullptr);
  ~Executor();

  /// One training step; `step` numbers the data, the draws and Adam's corrections. All ranks call
  /// it together. Loss and norm are those of all ranks.
  StepResult step(std::int64_t step);

  /// What this rank's optimizer holds. Parameters that nothing trains are not among it.
  std::vector<HeldState> states();
  at::ScalarType precise() const;  ///< Of what the optimizer holds.
  int element_bytes() const;       ///< Of the values that are computed with.

  /// A parameter as this rank has it at rest. (Filling `data` changes the parameter.)
  struct HeldParameter {
    ValueId value;
    TensorType type;
    LocalBuffer region;
    bool owner = false;
    at::Tensor data;
  };
  std::vector<HeldParameter> parameters() const;

  /// Payload bytes sent for the program, without the sums of loss and norm.
  std::int64_t bytes_sent() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshwright
