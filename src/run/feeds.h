#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "run/draw.h"

namespace meshwright {

/// Tokens of a data file, in order.
struct TokenFile {
  std::string path;
  std::vector<std::int32_t> tokens;
};
/// A file named *.u16 or *.bin holds little-endian 16-bit tokens, any other one token a byte.
/// Throws Error.
TokenFile read_token_file(const std::string& path);

/// What goes into a graph: the numbers of inputs, constants and parameters before the first step.
/// Each is a function of the seed, the name of the value and the place of the element in the whole
/// tensor (for inputs: over the global batch, and the step), so that every device makes its own
/// part and all parts agree with the whole.
class Feeds {
 public:
  /// With tokens the graph must have an integer input [batch, seq] that an embedding reads and one
  /// of the same shape that cross_entropy reads: the next token. Throws Error where it has not, or
  /// for tokens that the model's tables do not hold.
  Feeds(const Graph& graph, std::uint64_t seed, std::int64_t global_batch,
        std::shared_ptr<const TokenFile> tokens = nullptr);

  /// The elements of `box` of a value whose whole type (of one micro-batch) is `type`; for inputs
  /// the micro-batch's first sample in the global batch.
  void fill(ValueId id, const TensorType& type, const Box& box, std::int64_t step,
            std::int64_t first_sample, std::span<double> out) const;
  void fill(ValueId id, const TensorType& type, const Box& box, std::int64_t step,
            std::int64_t first_sample, std::span<std::int64_t> out) const;

  /// The derivative of the loss by the elements of a result that no operator reads. The loss is
  /// the mean of cross_entropy's results over the global batch; of a graph without one, the sum of
  /// each floating-point result times random numbers of mean 1, divided by its size.
  void fill_loss_weights(ValueId id, const TensorType& type, const Box& box,
                         std::int64_t first_sample, std::span<double> out) const;

 private:
  struct Kind {
    double offset = 0, scale = 0;  // Floats: offset + scale * uniform(-1, 1).
    std::int64_t bound = 2;        // Integers: [0, bound).
    int token_shift = -1;          // 0: tokens of the file, 1: the ones after them.
  };
  std::uint64_t key(ValueId id, std::int64_t step) const;

  const Graph& graph_;
  std::uint64_t seed_;
  std::int64_t global_batch_;
  std::shared_ptr<const TokenFile> tokens_;
  std::vector<Kind> kinds_;
};

/// The dimension named "batch", or -1.
int batch_dim_of(const TensorType& type);

}  // namespace meshwright
