#pragma once

#include "ir/graph.h"

namespace meshwright {

/// A small Llama-style or mixture-of-experts model, built operator by operator, for tests of the
/// layers that know no importer.
struct TestModelSizes {
  std::int64_t batch = 16, seq = 128, hidden = 64, heads = 8, kv_heads = 4, head_dim = 8;
  std::int64_t ffn = 256, vocab = 1000, layers = 4;
  std::int64_t experts = 0, top_k = 2;
  bool tied = false;
};
Graph test_model(const TestModelSizes& sizes);

/// Sizes at which a model trains in milliseconds.
inline constexpr TestModelSizes kSmallTestModel{.batch = 8,
                                                .seq = 16,
                                                .hidden = 32,
                                                .heads = 4,
                                                .kv_heads = 2,
                                                .head_dim = 8,
                                                .ffn = 64,
                                                .vocab = 64};

}  // namespace meshwright
