// Dense models built like Llama: pre-RMSNorm, rotary positions, gated MLP. They differ in biases,
// query/key norms and sliding windows.
#include <fmt/format.h>

#include "import/hf/families.h"
#include "import/hf/readers.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

Decoder finish(Plain p) {
  p.decoder.repeat(p.layer, p.sizes.layers);
  return std::move(p.decoder);
}

void set_bias(Plain& p, bool qkv, bool out) {
  AttentionSpec& a = *p.layer.attention;
  a.q_bias = a.k_bias = a.v_bias = qkv;
  a.o_bias = out;
}

// Layers whose layer_types entry is sliding get `window`; without the list, those for which
// `fallback(layer)` holds.
template <class Fallback>
Decoder with_windows(Plain p, const Config& config, std::int64_t window, Fallback fallback) {
  const std::vector<bool> listed = read_sliding_layers(config, p.sizes.layers);
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool sliding = listed.empty() ? fallback(i) : listed[static_cast<std::size_t>(i)];
    p.layer.attention->window = sliding ? window : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

Decoder read_llama(const Config& config) {
  Plain p = read_plain(config, "llama",
                       {.hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 32000});
  return finish(std::move(p));
}

Decoder read_mistral(const Config& config) {
  Plain p = read_plain(config, "mistral",
                       {.hidden = 4096,
                        .ffn = 14336,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 8,
                        .vocab = 32000,
                        .positions = 131072});
  set_bias(p, false, false);
  const std::int64_t fallback = config.is_null("sliding_window") ? 0 : 4096;
  const std::int64_t window = config.size_or({"sliding_window"}, fallback);
  return with_windows(std::move(p), config, window, [](std::int64_t) { return true; });
}

Decoder read_ministral3(const Config& config) {
  Plain p = read_plain(config, "ministral3",
                       {.hidden = 4096,
                        .ffn = 14336,
                        .layers = 34,
                        .heads = 32,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .vocab = 131072,
                        .positions = 262144});
  const std::int64_t window = config.size_or({"sliding_window"}, 0);
  return with_windows(std::move(p), config, window, [](std::int64_t) { return true; });
}

// Qwen's rule: the first max_window_layers layers attend fully.
Decoder qwen_windows(Plain p, const Config& config) {
  const bool use = config.flag_or({"use_sliding_window"}, false);
  const std::int64_t window = use ? config.size_or({"sliding_window"}, 4096) : 0;
  const std::int64_t full = config.count_or({"max_window_layers"}, 28);
  return with_windows(std::move(p), config, window, [&](std::int64_t i) { return i >= full; });
}

}  // namespace

Decoder read_qwen2(const Config& config) {
  SizeDefaults sizes{.hidden = 4096,
                     .ffn = 22016,
                     .layers = 32,
                     .heads = 32,
                     .kv_heads = 32,
                     .vocab = 151936,
                     .positions = 32768};
  // Inside Qwen 2 and 2.5 VL the class has the sizes of the 72B model.
  if (config.text_or({"model_type"}, "").ends_with("_vl_text")) {
    sizes = {.hidden = 8192,
             .ffn = 29568,
             .layers = 80,
             .heads = 64,
             .kv_heads = 8,
             .vocab = 152064,
             .positions = 32768};
  }
  Plain p = read_plain(config, "qwen2", sizes);
  set_bias(p, true, false);
  return qwen_windows(std::move(p), config);
}

namespace {}  // namespace

Decoder read_qwen3(const Config& config) {
  Plain p = read_plain(config, "qwen3",
                       {.hidden = 4096,
                        .ffn = 22016,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 32,
                        .head_dim = 128,
                        .vocab = 151936,
                        .positions = 32768});
  p.layer.attention->qk_norm = QkNorm::kPerHead;
  return qwen_windows(std::move(p), config);
}

namespace {

// Qwen 1: intermediate_size counts gate and up together.
Decoder read_qwen(const Config& config) {
  Plain p = read_plain(config, "qwen",
                       {.hidden = 4096,
                        .ffn = 22016,
                        .layers = 32,
                        .heads = 32,
                        .head_dim = 128,
                        .vocab = 151936,
                        .positions = 8192});
  set_bias(p, true, !config.flag_or({"no_bias"}, true));
  if (p.sizes.ffn % 2 != 0) {
    config.fail("intermediate_size",
                fmt::format("intermediate_size counts both halves of the gated MLP and must be "
                            "even, but is {}",
                            p.sizes.ffn));
  }
  p.layer.mlp->ffn = p.sizes.ffn / 2;
  p.decoder.names = gpt_names();
  p.decoder.names.dense = {"w2", "w1", "c_proj"};
  return finish(std::move(p));
}

Decoder read_phi3(const Config& config) {
  Plain p = read_plain(config, "phi3",
                       {.hidden = 3072,
                        .ffn = 8192,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 32,
                        .vocab = 32064,
                        .positions = 4096});
  set_bias(p, false, false);
  p.decoder.hidden_dropout = config.number_or({"resid_pdrop"}, 0);
  p.decoder.embed_dropout = config.number_or({"embd_pdrop"}, 0);
  p.decoder.names.attn.q = "qkv_proj.q";
  p.decoder.names.attn.k = "qkv_proj.k";
  p.decoder.names.attn.v = "qkv_proj.v";
  p.decoder.names.dense.gate = "gate_up_proj.gate";
  p.decoder.names.dense.up = "gate_up_proj.up";
  const std::int64_t window = config.size_or({"sliding_window"}, 0);
  return with_windows(std::move(p), config, window, [](std::int64_t) { return true; });
}

Decoder read_internlm(const Config& config) {
  const std::string type = config.text_or({"model_type"}, "internlm");
  Plain p = read_plain(config, type,
                       {.hidden = 4096,
                        .ffn = 11008,
                        .layers = 32,
                        .heads = 32,
                        .vocab = type == "internlm3" ? 128512 : 103168,
                        .positions = 2048});
  const bool bias = config.flag_or({"bias"}, type == "internlm");
  set_bias(p, config.flag_or({"qkv_bias"}, bias), bias);
  // Only the third generation has biases in the MLP, under the same switch.
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = type == "internlm3" && bias;
  return finish(std::move(p));
}

// The 13B models have position biases instead of rotary positions, and no max_position_embeddings.
Decoder read_baichuan(const Config& config) {
  Plain p = read_plain(
      config, "baichuan",
      {.hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 64000, .positions = 4096});
  if (config.has("model_type") && !config.has("max_position_embeddings")) {
    p.layer.attention->alibi = true;
    p.layer.attention->rotary_dim = 0;
  }
  p.decoder.names.attn = {"W_pack.q", "W_pack.k", "W_pack.v", "o_proj", "", ""};
  return finish(std::move(p));
}

Decoder read_seed_oss(const Config& config) {
  Plain p = read_plain(config, "seed_oss",
                       {.hidden = 4096,
                        .ffn = 27648,
                        .layers = 64,
                        .heads = 80,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .vocab = 155136,
                        .positions = 524288});
  set_bias(p, config.flag_or({"attention_bias"}, true),
           config.flag_or({"attention_out_bias"}, false));
  p.layer.attention->dropout = config.number_or({"attention_dropout"}, 0.1);
  p.decoder.hidden_dropout = config.number_or({"residual_dropout"}, 0.1);
  return finish(std::move(p));
}

// Every fourth layer has no positions.
Decoder read_smollm3(const Config& config) {
  Plain p = read_plain(config, "smollm3",
                       {.hidden = 2048,
                        .ffn = 11008,
                        .layers = 36,
                        .heads = 16,
                        .kv_heads = 4,
                        .vocab = 128256,
                        .positions = 32768});
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  const std::vector<std::int64_t> rotary = config.sizes_or_empty("no_rope_layers");
  if (!rotary.empty()) check_layer_list(config, "no_rope_layers", rotary.size(), p.sizes.layers);
  const std::int64_t interval = config.size_or({"no_rope_layer_interval"}, 4);
  const std::int64_t rotary_dim = p.layer.attention->rotary_dim;
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    const bool rotate =
        rotary.empty() ? (i + 1) % interval != 0 : rotary[static_cast<std::size_t>(i)] != 0;
    p.layer.attention->rotary_dim = rotate ? rotary_dim : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

Decoder read_helium(const Config& config) {
  Plain p = read_plain(config, "helium",
                       {.hidden = 2560,
                        .ffn = 7040,
                        .layers = 24,
                        .heads = 20,
                        .head_dim = 128,
                        .vocab = 48000,
                        .positions = 4096});
  p.layer.attention->o_bias = false;
  return finish(std::move(p));
}

Decoder read_hunyuan(const Config& config) {
  Plain p = read_plain(config, "hunyuan_v1_dense",
                       {.hidden = 4096, .ffn = 11008, .layers = 32, .heads = 32, .vocab = 290943});
  p.layer.attention->qk_norm = QkNorm::kPerHead;
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = false;
  p.decoder.names.attn.q_norm = "query_layernorm";
  p.decoder.names.attn.k_norm = "key_layernorm";
  return finish(std::move(p));
}

Decoder read_ernie(const Config& config) {
  Plain p = read_plain(config, "ernie4_5",
                       {.hidden = 1024,
                        .ffn = 3072,
                        .layers = 18,
                        .heads = 16,
                        .kv_heads = 2,
                        .head_dim = 128,
                        .vocab = 103424,
                        .positions = 131072});
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  const bool bias = config.flag_or({"use_bias"}, false);
  set_bias(p, bias, bias);
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = bias;
  return finish(std::move(p));
}

// Squared ReLU, no gate.
Decoder read_arcee(const Config& config) {
  Plain p = read_plain(
      config, "arcee",
      {.hidden = 2560, .ffn = 18432, .layers = 32, .heads = 32, .vocab = 32000, .positions = 4096});
  p.layer.mlp->gated = false;
  p.layer.mlp->act = read_activation(config, {"hidden_act"}, "relu2");
  return finish(std::move(p));
}

using Names = const std::string_view[];
constexpr Names kLlamaTypes = {"llama", "code_llama", "Yi", "aquila", "xverse", "mobilellm"};
constexpr Names kLlamaClasses = {"Llama",     "LLaMA",  "LlaMA",  "Yi",        "NTKScaledLlama",
                                 "LongLlama", "Aquila", "Xverse", "LlavaLlama"};
constexpr Names kMistralTypes = {"mistral", "ministral"};
constexpr Names kMistralClasses = {"Mistral", "Ministral", "LlavaMistral"};
constexpr Names kMinistral3Types = {"ministral3"};
constexpr Names kMinistral3Classes = {"Ministral3"};
constexpr Names kQwen2Types = {"qwen2", "mimo", "qwen2_vl_text", "qwen2_5_vl_text"};
constexpr Names kQwen2Classes = {"Qwen2", "MiMo"};
constexpr Names kQwen3Types = {"qwen3", "qwen3_vl_text"};
constexpr Names kQwen3Classes = {"Qwen3"};
constexpr Names kQwenTypes = {"qwen"};
constexpr Names kQwenClasses = {"QWen"};
constexpr Names kPhi3Types = {"phi3"};
constexpr Names kPhi3Classes = {"Phi3"};
constexpr Names kInternlmTypes = {"internlm", "internlm2", "internlm3"};
constexpr Names kInternlmClasses = {"InternLM", "InternLM2", "InternLM3"};
constexpr Names kBaichuanTypes = {"baichuan"};
constexpr Names kBaichuanClasses = {"Baichuan", "BaiChuan"};
constexpr Names kSeedOssTypes = {"seed_oss"};
constexpr Names kSeedOssClasses = {"SeedOss"};
constexpr Names kSmolLm3Types = {"smollm3"};
constexpr Names kSmolLm3Classes = {"SmolLM3"};
constexpr Names kHeliumTypes = {"helium"};
constexpr Names kHeliumClasses = {"Helium"};
constexpr Names kHunyuanTypes = {"hunyuan_v1_dense"};
constexpr Names kHunyuanClasses = {"HunYuanDenseV1"};
constexpr Names kErnieTypes = {"ernie4_5"};
constexpr Names kErnieClasses = {"Ernie4_5"};
constexpr Names kArceeTypes = {"arcee"};
constexpr Names kArceeClasses = {"Arcee"};

}  // namespace

const Family kLlama{"llama", "Llama 1 to 3 and models of its shape (Yi, Aquila, Xverse)",
                    kLlamaTypes, kLlamaClasses, build_with<read_llama>};
const Family kMistral{"mistral", "Mistral, Ministral", kMistralTypes, kMistralClasses,
                      build_with<read_mistral>};
const Family kMinistral3{"ministral3", "Ministral 3", kMinistral3Types, kMinistral3Classes,
                         build_with<read_ministral3>};
const Family kQwen2{"qwen2", "Qwen 2, Qwen 2.5, MiMo (dense)", kQwen2Types, kQwen2Classes,
                    build_with<read_qwen2>};
const Family kQwen3{"qwen3", "Qwen 3 (dense)", kQwen3Types, kQwen3Classes, build_with<read_qwen3>};
const Family kQwen{"qwen", "Qwen 1", kQwenTypes, kQwenClasses, build_with<read_qwen>};
const Family kPhi3{"phi3", "Phi-3, Phi-4 (dense)", kPhi3Types, kPhi3Classes, build_with<read_phi3>};
const Family kInternlm{"internlm", "InternLM 1 to 3", kInternlmTypes, kInternlmClasses,
                       build_with<read_internlm>};
const Family kBaichuan{"baichuan", "Baichuan 1 and 2", kBaichuanTypes, kBaichuanClasses,
                       build_with<read_baichuan>};
const Family kSeedOss{"seed_oss", "Seed-OSS", kSeedOssTypes, kSeedOssClasses,
                      build_with<read_seed_oss>};
const Family kSmolLm3{"smollm3", "SmolLM 3", kSmolLm3Types, kSmolLm3Classes,
                      build_with<read_smollm3>};
const Family kHelium{"helium", "Helium", kHeliumTypes, kHeliumClasses, build_with<read_helium>};
const Family kHunyuan{"hunyuan_v1_dense", "Hunyuan (dense)", kHunyuanTypes, kHunyuanClasses,
                      build_with<read_hunyuan>};
const Family kErnie{"ernie4_5", "ERNIE 4.5 (dense)", kErnieTypes, kErnieClasses,
                    build_with<read_ernie>};
const Family kArcee{"arcee", "Arcee", kArceeTypes, kArceeClasses, build_with<read_arcee>};

}  // namespace meshwright::hf
