#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace meshwright {

/// What the model's own description leaves open.
struct ImportOptions {
  std::int64_t global_batch = 1;    ///< Sequences (or images) per optimizer step.
  std::int64_t seq = 0;             ///< Tokens per sequence; 0 = the model's own (default_seq).
  DType dtype = DType::kBf16;       ///< Element type of weights and activations.
  std::string attention = "flash";  ///< "flash" or "unfused" attention kernels.
  bool dropout = false;  ///< Keep the configuration's dropout (most pretraining runs set it to 0).
  bool mtp = false;      ///< Include multi-token-prediction modules (DeepSeek-V3).
};

/// A model ready for planning.
struct Model {
  Graph graph;
  std::string family;  ///< "llama", "gpt2", …
  std::int64_t global_batch = 1;
  std::int64_t seq = 1;  ///< Tokens per sequence of the main (decoder) stream.
  /// What the graph leaves out or had to assume, one sentence each; shown to the user.
  std::vector<std::string> notes;
};

/// Reads a model: the name of a shipped one (`meshwright models` lists them), a Hugging Face
/// config.json (or a directory holding one), an ONNX model (.onnx) or a graph text file (.graph).
/// Throws Error for anything else.
Model import_model(std::string_view text, const ImportOptions& options);

/// Imports the text of a Hugging Face config.json; `source` names it in errors, whose places are
/// JSON pointers ("config.json: /num_attention_heads").
Model import_hf_config(std::string_view json_text, std::string_view source,
                       const ImportOptions& options);

/// A model that can be asked for by name (data/models/). `config` is its Hugging Face configuration
/// as JSON text.
struct NamedModel {
  std::string_view name;     ///< "llama-3-70b".
  std::string_view summary;  ///< "Llama 3 70B: 80 layers, hidden 8192, 64 heads (8 kv)".
  std::string_view config;
  double parameters = 0;  ///< Trained parameters of its graph.
};
/// Sorted by file, in each file's order.
std::span<const NamedModel> named_models();

/// Megatron-style sizes: `--layers 96 --hidden 12288 --heads 96 …`. Zero means the default.
struct GptSizes {
  std::int64_t layers = 0, hidden = 0, heads = 0;
  std::int64_t kv_heads = 0;  ///< Default: heads.
  std::int64_t ffn = 0;  ///< Default: 4 * hidden, or 8/3 * hidden rounded up to 256 when gated.
  std::int64_t head_dim = 0;  ///< Default: hidden / heads.
  std::int64_t vocab = 0;     ///< Default: 51200.
  std::int64_t experts = 0, top_k = 0, expert_ffn = 0;
  bool gated = false;  ///< SwiGLU MLP, RMSNorm, rotary positions, no biases (Llama style).
  bool tied = true;    ///< Output layer shares the embedding.
  std::int64_t max_positions = 0;  ///< Learned positions; default: the sequence length.
};
Model gpt_model(const GptSizes& sizes, const ImportOptions& options);

}  // namespace meshwright
