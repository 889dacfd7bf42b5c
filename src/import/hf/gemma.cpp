// Gemma 1 to 3: wide heads, scaled embedding, tied head. Gemma 2 adds norms of results, capped
// logits and windows in every second layer; Gemma 3 norms of queries and keys and windows in five
// layers of six.
#include <cmath>

#include "import/hf/families.h"
#include "import/hf/readers.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

Plain read_gemma_plain(const Config& config, std::string_view family, const SizeDefaults& sizes) {
  Plain p = read_plain(config, family, sizes);
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  p.decoder.embed_scale = std::sqrt(static_cast<double>(p.sizes.hidden));
  // Files of the first releases say "gelu" in hidden_act and mean the tanh form.
  p.layer.mlp->act = read_activation(config, {"hidden_activation"}, "gelu_pytorch_tanh");
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = false;
  return p;
}

Decoder read_gemma(const Config& config) {
  Plain p = read_gemma_plain(config, "gemma",
                             {.hidden = 3072,
                              .ffn = 24576,
                              .layers = 28,
                              .heads = 16,
                              .kv_heads = 16,
                              .head_dim = 256,
                              .vocab = 256000,
                              .positions = 8192});
  p.decoder.repeat(p.layer, p.sizes.layers);
  return std::move(p.decoder);
}

void sandwich_norms(Plain& p) {
  p.layer.out_norm = true;
  p.decoder.names.mlp_norm = "pre_feedforward_layernorm";
}

Decoder alternate(Plain p, const Config& config, std::int64_t window, std::int64_t pattern) {
  const std::vector<bool> sliding = read_sliding_layers(config, p.sizes.layers);
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool local =
        sliding.empty() ? (i + 1) % pattern != 0 : sliding[static_cast<std::size_t>(i)];
    p.layer.attention->window = local ? window : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

Decoder read_gemma2(const Config& config) {
  Plain p = read_gemma_plain(config, "gemma2",
                             {.hidden = 2304,
                              .ffn = 9216,
                              .layers = 26,
                              .heads = 8,
                              .kv_heads = 4,
                              .head_dim = 256,
                              .vocab = 256000,
                              .positions = 8192});
  sandwich_norms(p);
  const auto cap = [&](std::string_view key, double fallback) {
    return config.number_or({key}, config.is_null(key) ? 0 : fallback);
  };
  p.layer.attention->softcap = cap("attn_logit_softcapping", 50);
  p.decoder.logit_softcap = cap("final_logit_softcapping", 30);
  return alternate(std::move(p), config, config.size_or({"sliding_window"}, 4096), 2);
}

}  // namespace

Decoder read_gemma3(const Config& config) {
  Plain p = read_gemma_plain(config, "gemma3",
                             {.hidden = 2304,
                              .ffn = 9216,
                              .layers = 26,
                              .heads = 8,
                              .kv_heads = 4,
                              .head_dim = 256,
                              .vocab = 262208,
                              .positions = 131072});
  sandwich_norms(p);
  p.layer.attention->qk_norm = QkNorm::kPerHead;
  p.decoder.logit_softcap = config.number_or({"final_logit_softcapping"}, 0);
  const std::int64_t pattern =
      config.size_or({"sliding_window_pattern", "_sliding_window_pattern"}, 6);
  return alternate(std::move(p), config, config.size_or({"sliding_window"}, 4096), pattern);
}

namespace {

using Names = const std::string_view[];
constexpr Names kGemmaTypes = {"gemma"};
constexpr Names kGemmaClasses = {"Gemma"};
constexpr Names kGemma2Types = {"gemma2"};
constexpr Names kGemma2Classes = {"Gemma2"};
constexpr Names kGemma3Types = {"gemma3_text"};

}  // namespace

const Family kGemma{"gemma", "Gemma 1", kGemmaTypes, kGemmaClasses, build_with<read_gemma>};
const Family kGemma2{"gemma2", "Gemma 2", kGemma2Types, kGemma2Classes, build_with<read_gemma2>};
const Family kGemma3{
    "gemma3", "Gemma 3 (language model)", kGemma3Types, {}, build_with<read_gemma3>};

}  // namespace meshwright::hf
