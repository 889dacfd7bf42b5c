// From the text of a config.json to a family's builder: which object of the file is the model,
// which family reads it, and why not when none does.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "import/hf/family.h"
#include "import/hf/vision.h"
#include "import/import.h"

namespace meshwright {
namespace hf {
namespace {

// Where multimodal wrappers keep their language model.
constexpr std::string_view kTextKeys[] = {"text_config", "llm_config", "language_config"};
// Where tools' own files keep a whole configuration.
constexpr std::string_view kWrapperKeys[] = {"network", "model_config", "hf_config", "config",
                                             "model"};

std::string supported_families() {
  std::string text = "supported families: ";
  bool first = true;
  for (const Family* family : families()) {
    text += fmt::format("{}{}", first ? "" : ", ", family->name);
    first = false;
  }
  return text;
}

bool has_all(const Config& config, std::span<const std::string_view> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](std::string_view k) { return config.has(k); });
}

const Family* by_name(std::string_view name) {
  for (const Family* family : families()) {
    if (family->name == name) return family;
  }
  return nullptr;
}

const Family* by_model_type(std::string_view model_type) {
  for (const Family* family : families()) {
    const auto& types = family->model_types;
    if (std::find(types.begin(), types.end(), model_type) != types.end()) return family;
  }
  return nullptr;
}

std::vector<std::string> architectures_of(const Config& config) {
  return config.texts_or_empty("architectures");
}

const Family* by_architecture(const Config& config) {
  for (const std::string& name : architectures_of(config)) {
    const std::string_view stem = architecture_stem(name);
    for (const Family* family : families()) {
      const auto& stems = family->architectures;
      if (std::find(stems.begin(), stems.end(), stem) != stems.end()) return family;
    }
  }
  return nullptr;
}

// Key sets that only one family's files have. Files that name no class at all are rare; these are
// the shapes met in practice.
struct Shape {
  std::string_view family;
  std::span<const std::string_view> keys;
};
constexpr std::string_view kT5Keys[] = {"d_model", "d_ff", "num_heads", "num_layers"};
constexpr std::string_view kBartKeys[] = {"d_model", "encoder_layers", "decoder_layers",
                                          "encoder_ffn_dim"};
constexpr std::string_view kBertKeys[] = {"hidden_size", "num_hidden_layers", "num_attention_heads",
                                          "intermediate_size", "type_vocab_size"};
constexpr std::string_view kGptKeys[] = {"n_embd", "n_head", "n_layer", "vocab_size"};
constexpr std::string_view kLlamaKeys[] = {
    "hidden_size", "num_hidden_layers", "num_key_value_heads", "intermediate_size", "rms_norm_eps"};
constexpr Shape kShapes[] = {
    {"t5", kT5Keys},    {"bart", kBartKeys},   {"bert", kBertKeys},
    {"gpt2", kGptKeys}, {"llama", kLlamaKeys},
};

const Family* by_shape(const Config& config) {
  for (const Shape& shape : kShapes) {
    if (has_all(config, shape.keys)) return by_name(shape.family);
  }
  return nullptr;
}

bool names_a_model(const Config& config) {
  return config.has("model_type") || config.has("architectures");
}

// Well-known types that no family reads, and why.
struct Refusal {
  std::string_view model_type, reason;
};
constexpr std::string_view kLinear = "its linear-attention layers (gated delta rule)";
constexpr std::string_view kMamba = "its state-space (Mamba) layers";
constexpr Refusal kRefusals[] = {
    {"qwen3_next", kLinear},
    {"qwen3_5", kLinear},
    {"qwen3_5_text", kLinear},
    {"qwen3_5_moe", kLinear},
    {"qwen3_5_moe_text", kLinear},
    {"kimi_linear", kLinear},
    {"olmo_hybrid", kLinear},
    {"minimax", "its linear-attention layers (lightning attention)"},
    {"minimax_m1", "its linear-attention layers (lightning attention)"},
    {"minimax_text_01", "its linear-attention layers (lightning attention)"},
    {"minimax_m3", "its block-sparse attention"},
    {"deepseek_v4", "its compressed attention and hyper-connections"},
    {"deepseek_ref", "its compressed attention and hyper-connections"},
    {"nemotron_h", kMamba},
    {"mamba", kMamba},
    {"mamba2", kMamba},
    {"falcon_mamba", kMamba},
    {"falcon_h1", kMamba},
    {"jamba", kMamba},
    {"bamba", kMamba},
    {"zamba", kMamba},
    {"zamba2", kMamba},
    {"granitemoehybrid", kMamba},
    {"recurrent_gemma", "its recurrent layers"},
    {"rwkv", "its recurrent layers"},
    {"lfm2", "its short-convolution layers"},
    {"lfm2_moe", "its short-convolution layers"},
    {"mllama_text_model", "its cross-attention to images"},
    {"gemma3n_text", "its per-layer embeddings and alternating updates"},
    {"gemma4_text", "its global layers with shared keys and values"},
    {"nemotron-nas", "its layers that all differ"},
    {"whisper", "its audio encoder"},
};

[[noreturn]] void refuse(const Config& config) {
  const std::string type = config.text_or({"model_type"}, "");
  for (const Refusal& refusal : kRefusals) {
    if (refusal.model_type != type) continue;
    config.fail("model_type",
                fmt::format("model_type '{}' is not supported: the importer cannot express {}",
                            type, refusal.reason),
                supported_families());
  }
  if (config.has("model_type")) {
    config.fail("model_type", fmt::format("model_type '{}' is not supported", type),
                supported_families());
  }
  const std::vector<std::string> classes = architectures_of(config);
  if (!classes.empty()) {
    config.fail("architectures", fmt::format("architecture '{}' is not supported", classes[0]),
                supported_families());
  }
  if (config.has("hidden_dim") && config.has("ffn_embed_dim")) {
    throw Error(
        "this is a size summary (hidden_dim, ffn_embed_dim, …) that does not say which "
        "architecture the model has, not a Hugging Face config.json",
        config.source(), "pass the model's own config.json");
  }
  throw Error(
      "this is not a model configuration: it has no model_type, no architectures and no "
      "known set of sizes",
      config.source(), "pass a Hugging Face config.json; " + supported_families());
}

Model build(const Family& family, const Config& config, const ImportOptions& options) {
  Model model = family.build(config, options);
  if (!config.has("model_type")) {
    model.notes.push_back(fmt::format(
        "the file names no model_type; read as {}, with the library's defaults for what it leaves "
        "out",
        family.name));
  }
  for (const std::string& name : architectures_of(config)) {
    if (!name.starts_with("Llava")) continue;
    model.notes.push_back(
        fmt::format("the image encoder of '{}' is not described in the file and left out", name));
  }
  return model;
}

// Files that look like a family's, but describe something else.
void refuse_lookalikes(const Config& config) {
  if (config.has("hidden_dim") && config.has("ffn_embed_dim")) {
    throw Error(
        "this is a size summary (hidden_dim, ffn_embed_dim, …) with names of its own, not "
        "a Hugging Face config.json",
        config.source(), "pass the model's own config.json");
  }
  for (const std::string& name : architectures_of(config)) {
    for (std::string_view mark : {"Eagle", "Draft", "Medusa"}) {
      if (name.find(mark) == std::string::npos) continue;
      config.fail(
          "architectures",
          fmt::format("'{}' is a draft model for speculative decoding, which is not supported",
                      name),
          "import the target model");
    }
  }
}

// A wrapper that no family reads as a whole: what of it is left out.
void note_missing_towers(const Config& config, std::string_view text_key,
                         std::vector<std::string>& notes) {
  std::string left_out;
  if (config.has_nested("vision_config")) {
    const double size = estimate_vision_parameters(config.nested("vision_config"));
    left_out = size > 0
                   ? fmt::format("the image encoder (about {:.0f} million parameters)", size / 1e6)
                   : "the image encoder";
  }
  if (config.has_nested("audio_config")) {
    left_out += left_out.empty() ? "the audio encoder" : " and the audio encoder";
  }
  notes.push_back(fmt::format("only the language model ({}) of this '{}' file is imported; {}",
                              text_key, config.text_or({"model_type"}, "multimodal"),
                              left_out.empty() ? "it describes no other part"
                                               : left_out + " with its connector is left out"));
}

Model dispatch(const Config& config, const ImportOptions& options) {
  refuse_lookalikes(config);
  if (const Family* family = find_family(config)) return build(*family, config, options);
  for (std::string_view key : kTextKeys) {
    if (!config.has_nested(key)) continue;
    const Config text = config.nested(key);
    const Family* family = find_family(text);
    if (family == nullptr) refuse(text);
    Model model = build(*family, text, options);
    note_missing_towers(config, key, model.notes);
    return model;
  }
  for (std::string_view key : kWrapperKeys) {
    if (config.has_nested(key) && names_a_model(config.nested(key))) {
      return dispatch(config.nested(key), options);
    }
  }
  refuse(config);
}

}  // namespace

std::string_view architecture_stem(std::string_view class_name) {
  constexpr std::string_view kEnds[] = {"For",        "LMHead", "DoubleHeads",
                                        "WithLMHead", "Model",  "PreTrained"};
  std::size_t end = class_name.size();
  for (std::string_view suffix : kEnds) {
    // A stem is never empty, and ends before a whole word ("MixFormer" has no "For").
    std::size_t at = class_name.find(suffix, 1);
    while (at != std::string_view::npos && at + suffix.size() < class_name.size() &&
           std::islower(static_cast<unsigned char>(class_name[at + suffix.size()])) != 0) {
      at = class_name.find(suffix, at + 1);
    }
    if (at != std::string_view::npos) end = std::min(end, at);
  }
  return class_name.substr(0, end);
}

const Family* find_family(const Config& config) {
  if (config.has("model_type")) {
    if (const Family* family = by_model_type(config.text_or({"model_type"}, ""))) return family;
  }
  if (const Family* family = by_architecture(config)) return family;
  return names_a_model(config) ? nullptr : by_shape(config);
}

TokenShape token_shape(const ImportOptions& options, std::int64_t max_positions) {
  constexpr std::int64_t kMax = std::int64_t{1} << 31;
  if (options.global_batch < 1 || options.global_batch > kMax) {
    throw Error(fmt::format("the global batch must be from 1 to {} samples, but is {}", kMax,
                            options.global_batch),
                "--global-batch");
  }
  if (options.seq < 0 || options.seq > kMax) {
    throw Error(fmt::format("the sequence length must be from 1 to {} tokens, but is {}", kMax,
                            options.seq),
                "--seq");
  }
  const std::int64_t fallback = std::min<std::int64_t>(max_positions, 4096);
  return {options.global_batch, options.seq == 0 ? fallback : options.seq};
}

TokenShape learned_token_shape(const Config& config, const ImportOptions& options,
                               std::int64_t max_positions, Keys keys) {
  const TokenShape shape = token_shape(options, max_positions);
  if (shape.seq > max_positions) {
    const std::string_view key = config.present_key(keys);
    config.fail(key,
                fmt::format("a sequence of {} tokens needs {} learned positions, but {} is {}",
                            shape.seq, shape.seq, key, max_positions),
                fmt::format("at most --seq {}", max_positions));
  }
  return shape;
}

std::int64_t layer_count(const Config& config, Keys keys, std::int64_t fallback) {
  constexpr std::int64_t kMaxLayers = 10'000;
  const std::int64_t layers = config.core_size_or(keys, fallback);
  if (layers > kMaxLayers) {
    const std::string_view key = config.present_key(keys);
    config.fail(key, fmt::format("{} must be at most {}, but is {}", key, kMaxLayers, layers));
  }
  return layers;
}

}  // namespace hf

Model import_hf_config(std::string_view json_text, std::string_view source,
                       const ImportOptions& options) {
  const Json json = parse_json(json_text, source);
  try {
    return hf::dispatch(hf::Config(json, std::string(source)), options);
  } catch (const Error& e) {
    // Errors found while building operators name the operator only.
    if (e.where().starts_with(source)) throw;
    throw e.within(source);
  }
}

}  // namespace meshwright
