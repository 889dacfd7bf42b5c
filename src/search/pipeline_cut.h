#pragma once

#include <vector>

namespace meshwright {

/// A chain of segments to be cut into consecutive chunks.
struct CutInstance {
  std::vector<double> time;          ///< Per segment, seconds.
  std::vector<double> fixed_memory;  ///< Per segment: held whatever the schedule does, bytes.
  std::vector<double> saved;         ///< Per segment and micro-batch in flight, bytes.
  std::vector<double> flight;        ///< Per chunk: micro-batches in flight.
  std::vector<double> capacity;      ///< Per chunk, bytes available to the above.
  std::vector<double> slowness;  ///< Per chunk: factor on the times of its stage; empty = all 1.
  std::vector<char> may_end;     ///< Per segment: a chunk may end after it.
  std::vector<int> stage;        ///< Per chunk where it runs; empty = chunks go round the stages.
  std::vector<std::vector<char>> banned;  ///< Per chunk and segment: must not hold it; empty = may.
};

/// Cuts so that the slowest chunk is as fast as possible while every chunk fits, then as evenly as
/// that allows. Exact for the maximum: parametric search; a probe is greedy and, where later chunks
/// can hold more than earlier ones, a reachability table. O(n k log n log(1/precision)).
struct Cut {
  bool feasible = false;
  double slowest = 0;      ///< Time of the slowest chunk.
  std::vector<int> first;  ///< First segment of chunks 1, 2, …
};
Cut cut_chain(const CutInstance& instance);

/// With several chunks on each of `stages` stages, moves single cuts as long as
/// micro_batches * slowest stage + (stages - 1) * slowest chunk falls and every chunk still fits. A
/// local optimum; what even chunks alone miss is the embedding and the head on top of equal layers.
void balance_stages(const CutInstance& instance, int stages, double micro_batches, Cut& cut);

}  // namespace meshwright
