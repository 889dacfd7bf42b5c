// Vision-language models: an image encoder before one of the language models. The image's tokens
// take the place of as many text tokens of each sequence.
#include <fmt/format.h>

#include "import/hf/families.h"
#include "import/hf/readers.h"
#include "import/hf/vision.h"

namespace meshwright::hf {
namespace {

// The language model's part: nested in newer files, the file itself in older ones.
Config text_of(const Config& config) {
  return config.has("text_config") ? config.nested("text_config") : config;
}

// The wrapper's flag wins over a nested one that is missing.
void read_tie(Decoder& d, const Config& config, const Config& text) {
  if (!text.has("tie_word_embeddings")) {
    d.tied = config.flag_or({"tie_word_embeddings"}, d.tied);
  }
}

void rename_layers(Decoder& d) {
  d.names.layers = "model.language_model.layers";
  d.names.embed = "model.language_model.embed_tokens";
  d.names.final_norm = "model.language_model.norm";
}

Model build_qwen_vl(const Config& config, const ImportOptions& options) {
  const std::string type = config.text_or({"model_type"}, "");
  const Config text = text_of(config);
  Decoder d = type == "qwen3_vl"       ? read_qwen3(text)
              : type == "qwen3_vl_moe" ? read_qwen3_moe(text)
                                       : read_qwen2(text);
  d.family = type.empty() ? "qwen2_vl" : type;
  read_tie(d, config, text);
  rename_layers(d);
  if (config.has_nested("vision_config")) {
    const Config vision = config.nested("vision_config");
    d.vision = type == "qwen2_5_vl"        ? read_qwen2_5_vision(vision)
               : type.starts_with("qwen3") ? read_qwen3_vision(vision)
                                           : read_qwen2_vision(vision);
  }
  return build_decoder(d, config, options);
}

Model build_gemma3(const Config& config, const ImportOptions& options) {
  const Config text = text_of(config);
  Decoder d = read_gemma3(text);
  read_tie(d, config, text);
  rename_layers(d);
  if (config.has_nested("vision_config")) {
    d.vision = read_siglip_vision(config.nested("vision_config"),
                                  config.size_or({"mm_tokens_per_image"}, 256));
  }
  return build_decoder(d, config, options);
}

Model build_kimi(const Config& config, const ImportOptions& options) {
  const Config text = config.nested("text_config");
  Decoder d = read_deepseek_v3(text);
  d.family = "kimi_k25";
  d.names.layers = "language_model.model.layers";
  d.names.embed = "language_model.model.embed_tokens";
  d.names.final_norm = "language_model.model.norm";
  d.names.head = "language_model.lm_head";
  read_tie(d, config, text);
  if (config.has_nested("vision_config")) {
    d.vision = read_kimi_vision(config.nested("vision_config"));
  }
  return build_decoder(d, config, options);
}

Model build_llama4(const Config& config, const ImportOptions& options) {
  const Config text = text_of(config);
  Decoder d = read_llama4(text);
  d.names.layers = "language_model.model.layers";
  d.names.embed = "language_model.model.embed_tokens";
  d.names.final_norm = "language_model.model.norm";
  d.names.head = "language_model.lm_head";
  if (config.has("vision_config")) {
    d.vision = read_llama4_vision(config.nested("vision_config"));
  } else {
    d.notes.push_back("the file describes no image encoder; only the language model is imported");
  }
  return build_decoder(d, config, options);
}

using Names = const std::string_view[];
constexpr Names kQwenVlTypes = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"};
constexpr Names kGemma3VlTypes = {"gemma3"};
constexpr Names kKimiTypes = {"kimi_k25"};
constexpr Names kLlama4Types = {"llama4"};
constexpr Names kLlama4Classes = {"Llama4"};

}  // namespace

const Family kQwenVl{
    "qwen_vl", "Qwen 2, 2.5 and 3 vision-language models", kQwenVlTypes, {}, build_qwen_vl};
const Family kGemma3Vl{
    "gemma3_vl", "Gemma 3 with its image encoder", kGemma3VlTypes, {}, build_gemma3};
const Family kKimiK25{"kimi_k25", "Kimi K2.5 and K2.6", kKimiTypes, {}, build_kimi};

const Family kLlama4Vl{"llama4", "Llama 4 with its image encoder", kLlama4Types, kLlama4Classes,
                       build_llama4};

}  // namespace meshwright::hf
