#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/box.h"

namespace meshwright {

/// Counter-based random numbers: a number is a function of a key and an index alone, so that every
/// device makes its own part of a tensor and all parts agree with the whole (Salmon et al. 2011,
/// "Parallel random numbers: as easy as 1, 2, 3").

/// Mixes values into a key.
std::uint64_t draw_key(std::uint64_t seed, std::uint64_t value);
std::uint64_t draw_key(std::uint64_t seed, std::string_view text);

/// 64 random bits (SplitMix64's finalizer over key and index, twice).
constexpr std::uint64_t draw_bits(std::uint64_t key, std::uint64_t index) {
  std::uint64_t x = key + 0x9e3779b97f4a7c15ull * (index + 1);
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    x += key;
  }
  return x;
}
/// In [0, 1), 53 bits.
constexpr double draw_uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<double>(draw_bits(key, index) >> 11) * 0x1p-53;
}

/// Calls f(position, index) for every element of `box`, last dimension fastest: its position in the
/// box and its index in the whole tensor of sizes `whole`. Along `batch_dim` (-1 = none) the box's
/// indices count from `batch_offset` on, and the dimension counts as the outermost, so that an
/// element's index does not depend on how many samples the tensor holds.
template <typename F>
void for_each_index(const Box& box, std::span<const std::int64_t> whole, int batch_dim,
                    std::int64_t batch_offset, F&& f) {
  const std::size_t rank = box.size();
  std::int64_t strides[16] = {};
  std::int64_t stride = 1;
  for (std::size_t d = rank; d-- > 0;) {
    if (static_cast<int>(d) == batch_dim) continue;
    strides[d] = stride;
    stride *= whole[d];
  }
  if (batch_dim >= 0) strides[batch_dim] = stride;
  std::int64_t count = 1, index = batch_dim < 0 ? 0 : batch_offset * stride;
  for (std::size_t d = 0; d < rank; ++d) {
    if (box[d].empty()) return;
    count *= box[d].size();
    index += box[d].begin * strides[d];
  }
  std::int64_t at[16] = {};
  for (std::int64_t position = 0; position < count; ++position) {
    f(position, index);
    for (std::size_t d = rank; d-- > 0;) {
      index += strides[d];
      if (++at[d] < box[d].size()) break;
      index -= strides[d] * box[d].size();
      at[d] = 0;
    }
  }
}

}  // namespace meshwright
