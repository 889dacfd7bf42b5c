#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "plan/micro_batch_tables.h"
#include "verify/gradient_terms.h"
#include "verify/spans.h"
#include "verify/verify.h"

// Private to the verifier.

namespace meshwright {

/// Thrown inside the verifier when something does not hold.
struct Disproof {
  CounterExample example;
};

/// What is known of the graph and the plan, the same for all replays.
struct VerifyContext {
  const Graph& graph;
  const GraphUses& uses;
  const std::vector<Segment>& segments;
  MicroBatchTables& tables;
  std::int64_t samples = 1;

  const TensorType& type(ValueId id) const { return tables.type(id, samples); }
};

/// Where a buffer's part lies, as spans, and its text.
struct Placement {
  std::vector<SpanId> dims;
  std::uint32_t mask = 0;  ///< Axes that `dims` depend on.
  AxisList flat;
  Halo halo;
};
Placement placement_of(const TensorType& type, const Buffer& buffer, SpanTable& spans);
bool same_place(const Placement& a, const Placement& b);
/// The region on the device at `coordinates`, for people.
std::string region_text(const TensorType& type, const Placement& place, const SpanTable& spans,
                        std::span<const int> coordinates);

/// What a device's buffer holds while a program is replayed, on all devices at once.
struct BufferState {
  bool alive = false;
  bool was_whole = false;    ///< Held a value on which no sum was due.
  std::int32_t writer = -1;  ///< Step of the trace that filled it.
  std::int32_t freed = -1;   ///< Step that freed it.
  Terms terms;
};

/// What a collective makes of its operand. Returns the fault, "" when there is none; fills `terms`.
std::string apply_collective(const Instr& instr, const Placement& in, const Terms& before,
                             const Placement& out, SpanTable& spans, Terms& terms);
std::string apply_slice(const Placement& in, const Placement& out, SpanTable& spans);
std::string axis_names(std::uint32_t mask, const Mesh& mesh);

/// Replays one segment's lists (forward, backward, weight: one micro-batch) on the devices of one
/// mesh. Throws Disproof.
class SegmentReplay {
 public:
  SegmentReplay(const VerifyContext& context, const SegmentProgram& program, SpanTable& spans);
  void run();
  std::int64_t instruction_count() const { return static_cast<std::int64_t>(trace_.size()); }

 private:
  enum List { kForwardList, kBackwardList, kWeightList };
  struct Step {
    int list, index;
    std::uint32_t first_writer;  // Into writers_: one per operand read.
  };
  // The factors of an operator as its latest forward run had them.
  struct OpRun {
    bool done = false;
    std::vector<SpanId> factors;
    std::vector<AxisList> lists;  // The axes of the first dimension that fixed each factor.
  };

  const std::vector<Instr>& list(int which) const;
  void start();
  void run_list(List which);
  void run(const Instr& instr);
  void compute_forward(const Instr& instr);
  void compute_backward(const Instr& instr);
  void collective(const Instr& instr);
  void slice(const Instr& instr);
  void add(const Instr& instr);
  void accumulate(const Instr& instr);
  void free(const Instr& instr);
  void finish_forward();
  void finish();

  // Throws unless the index is a buffer that may be read now.
  const BufferState& read(std::int32_t buffer);
  void write(std::int32_t buffer, Terms terms);
  const Buffer& buffer(std::int32_t b) const {
    return program_.buffers[static_cast<std::size_t>(b)];
  }
  const Placement& place(std::int32_t b) const { return places_[static_cast<std::size_t>(b)]; }
  BufferState& state(std::int32_t b) { return states_[static_cast<std::size_t>(b)]; }
  // Reads the factors off one operand; false when it holds something else.
  void fix_factors(const Rule& rule, const RuleTensor& tensor, std::int32_t b, OpRun& run,
                   bool scaled_dims, const char* role);
  void check_tensor(const Rule& rule, const RuleTensor& tensor, std::int32_t b, const OpRun& run,
                    const char* role);
  // Operand `k` must reach over its borders as far as the operator's windows do.
  void check_halo(const Op& op, const Rule& rule, const OpRun& run, std::size_t k, std::int32_t b);
  void expect(std::int32_t b, BufferKind kind, ValueId value, const char* role);
  // The sources that owe a gradient to a value, sorted.
  std::vector<std::int64_t> owed(ValueId id) const;
  std::string term_text(std::int64_t source) const;
  // "" when `terms` are exactly those that are owed to the value.
  std::string incomplete(const Terms& terms, ValueId id) const;
  std::string missing_operand(const Instr& instr, const Rule& rule) const;
  void check_gradient_results();

  [[noreturn]] void fail(std::string message, std::int32_t buffer = -1, SpanId wanted = kNoSpan,
                         SpanId held = kNoSpan);
  std::string instruction_text(int which, int index) const;

  const VerifyContext& context_;
  const SegmentProgram& program_;
  const Segment& segment_;
  SpanTable& spans_;
  std::vector<Placement> places_;
  std::vector<BufferState> states_;
  std::vector<bool> kept_;  // Arguments and results: not the segment's to free.
  std::unordered_map<int, OpRun> runs_;
  std::vector<Step> trace_;
  std::vector<std::int32_t> writers_;
  std::vector<std::int64_t> scratch_sizes_;
  std::vector<SpanId> scratch_spans_;
  List current_ = kForwardList;
};

}  // namespace meshwright
