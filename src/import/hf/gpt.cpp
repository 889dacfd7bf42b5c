// GPT-2 and its descendants: LayerNorm, plain MLP, biases nearly everywhere; learned, rotary or
// linear-bias positions; attention and MLP in sequence or in parallel.
#include <fmt/format.h>

#include "import/hf/families.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

void set_attention_bias(LayerSpec& layer, bool qkv, bool out) {
  layer.attention->q_bias = layer.attention->k_bias = layer.attention->v_bias = qkv;
  layer.attention->o_bias = out;
}

// Pre-LayerNorm, plain MLP, everything with biases, no positions yet.
Plain read_gpt_plain(const Config& config, std::string_view family, const SizeDefaults& sizes,
                     std::string_view act) {
  Plain p = read_plain(config, family, sizes);
  p.layer.attention->rotary_dim = 0;
  set_attention_bias(p.layer, true, true);
  p.layer.mlp->gated = false;
  p.layer.mlp->act =
      read_activation(config, {"activation_function", "hidden_act", "activation"}, act);
  p.layer.mlp->up_bias = p.layer.mlp->down_bias = true;
  p.layer.attention->dropout = config.number_or({"attn_pdrop", "attention_dropout"}, 0);
  p.decoder.norm = NormKind::kLayer;
  p.decoder.hidden_dropout = config.number_or({"resid_pdrop", "hidden_dropout"}, 0);
  p.decoder.embed_dropout = config.number_or({"embd_pdrop"}, 0);
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, true);
  p.decoder.names = gpt_names();
  return p;
}

Decoder finish(Plain p) {
  p.decoder.repeat(p.layer, p.sizes.layers);
  return std::move(p.decoder);
}

// These classes know no key/value heads and no intermediate_size.
void use_own_keys(Plain& p, const Config& config) {
  p.layer.attention->kv_heads = p.sizes.heads;
  p.layer.mlp->ffn = config.size_or({"n_inner"}, 4 * p.sizes.hidden);
}

constexpr SizeDefaults kGpt2Sizes{
    .hidden = 768, .layers = 12, .heads = 12, .vocab = 50257, .positions = 1024};

Decoder read_gpt2(const Config& config) {
  Plain p = read_gpt_plain(config, "gpt2", kGpt2Sizes, "gelu_new");
  use_own_keys(p, config);
  if (config.has("model_type")) {
    p.layer.attention->dropout = config.number_or({"attn_pdrop"}, 0.1);
    p.decoder.hidden_dropout = config.number_or({"resid_pdrop"}, 0.1);
    p.decoder.embed_dropout = config.number_or({"embd_pdrop"}, 0.1);
  }
  p.decoder.position_rows = p.sizes.positions;
  return finish(std::move(p));
}

// SantaCoder and StarCoder: one key/value head.
Decoder read_gpt_bigcode(const Config& config) {
  Plain p = read_gpt_plain(config, "gpt_bigcode", kGpt2Sizes, "gelu_pytorch_tanh");
  use_own_keys(p, config);
  const bool multi_query = config.flag_or({"multi_query"}, true);
  p.layer.attention->kv_heads = multi_query ? 1 : p.sizes.heads;
  p.decoder.position_rows = p.sizes.positions;
  return finish(std::move(p));
}

// Windows in every second layer, unless attention_layers says otherwise.
std::vector<bool> local_layers(const Config& config, std::int64_t layers) {
  std::vector<bool> local;
  const std::vector<std::string> listed = config.texts_or_empty("attention_layers");
  for (const std::string& type : listed) local.push_back(type == "local");
  if (local.empty()) {
    for (std::int64_t i = 0; i < layers; ++i) local.push_back(i % 2 == 1);
  }
  check_layer_list(config, "attention_layers", local.size(), layers);
  return local;
}

Decoder read_gpt_neo(const Config& config) {
  Plain p = read_gpt_plain(
      config, "gpt_neo",
      {.hidden = 2048, .layers = 24, .heads = 16, .vocab = 50257, .positions = 2048}, "gelu_new");
  set_attention_bias(p.layer, false, true);
  p.decoder.position_rows = p.sizes.positions;
  p.decoder.hidden_dropout = config.number_or({"resid_dropout"}, 0);
  p.decoder.embed_dropout = config.number_or({"embed_dropout"}, 0);
  p.decoder.names.attention = "attn.attention";
  p.decoder.names.attn = {"q_proj", "k_proj", "v_proj", "out_proj", "", ""};
  const std::int64_t window = config.size_or({"window_size"}, 256);
  const std::vector<bool> local = local_layers(config, p.sizes.layers);
  for (std::int64_t i = 0; i < p.sizes.layers; ++i) {
    p.layer.attention->window = local[static_cast<std::size_t>(i)] ? window : 0;
    p.decoder.append(p.layer);
  }
  return std::move(p.decoder);
}

// GPT-J and CodeGen: one norm feeds attention (no biases) and MLP in parallel.
Decoder read_gptj(const Config& config) {
  const bool codegen = config.text_or({"model_type"}, "gptj") == "codegen";
  Plain p = read_gpt_plain(
      config, codegen ? "codegen" : "gptj",
      {.hidden = 4096, .layers = 28, .heads = 16, .vocab = 50400, .positions = 2048}, "gelu_new");
  use_own_keys(p, config);
  set_attention_bias(p.layer, false, false);
  p.layer.parallel = p.layer.shared_norm = true;
  const std::int64_t rotary = config.size_or({"rotary_dim"}, 64);
  if (rotary > p.sizes.head_dim || rotary % 2 != 0) {
    config.fail("rotary_dim", fmt::format("rotary_dim must be even and at most the head width {}, "
                                          "but is {}",
                                          p.sizes.head_dim, rotary));
  }
  p.layer.attention->rotary_dim = rotary;
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, false);
  p.decoder.head_bias = true;
  p.decoder.names.attn = {"q_proj", "k_proj", "v_proj", "out_proj", "", ""};
  p.decoder.names.dense = {"", "fc_in", "fc_out"};
  return finish(std::move(p));
}

// Pythia, GPT-NeoX-20B: two norms of one input feed attention and MLP.
Decoder read_gpt_neox(const Config& config) {
  Plain p = read_gpt_plain(
      config, "gpt_neox",
      {.hidden = 6144, .layers = 44, .heads = 64, .vocab = 50432, .positions = 2048}, "gelu");
  p.layer.attention->kv_heads = p.sizes.heads;
  const bool bias = config.flag_or({"attention_bias"}, true);
  set_attention_bias(p.layer, bias, bias);
  p.layer.attention->rotary_dim = read_rotary_dim(config, p.sizes.head_dim, 0.25);
  p.layer.parallel = config.flag_or({"use_parallel_residual"}, true);
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, false);
  DecoderNames& n = p.decoder.names;
  n = DecoderNames();
  n.layers = "gpt_neox.layers";
  n.embed = "gpt_neox.embed_in";
  n.final_norm = "gpt_neox.final_layer_norm";
  n.head = "embed_out";
  n.attention = "attention";
  n.attn = {"query_key_value.q", "query_key_value.k", "query_key_value.v", "dense", "", ""};
  n.dense = {"", "dense_h_to_4h", "dense_4h_to_h"};
  return finish(std::move(p));
}

// Phi-1, 1.5 and 2: one norm, parallel, biases, also of the head.
Decoder read_phi(const Config& config) {
  Plain p = read_gpt_plain(
      config, "phi", {.hidden = 2048, .layers = 24, .heads = 32, .vocab = 51200, .positions = 2048},
      "gelu_new");
  p.layer.parallel = p.layer.shared_norm = true;
  // The first releases give the rotated dims themselves.
  p.layer.attention->rotary_dim = config.has("rotary_dim")
                                      ? config.size({"rotary_dim"})
                                      : read_rotary_dim(config, p.sizes.head_dim, 0.5);
  if (config.flag_or({"qk_layernorm"}, false)) {
    p.layer.attention->qk_norm = QkNorm::kPerHead;
    p.layer.attention->qk_norm_kind = NormKind::kLayer;
  }
  p.decoder.tied = config.flag_or({"tie_word_embeddings"}, false);
  p.decoder.head_bias = true;
  DecoderNames& n = p.decoder.names;
  n = DecoderNames();
  n.final_norm = "model.final_layernorm";
  n.attn = {"q_proj", "k_proj", "v_proj", "dense", "q_layernorm", "k_layernorm"};
  n.dense = {"", "fc1", "fc2"};
  return finish(std::move(p));
}

using Names = const std::string_view[];
constexpr Names kGpt2Types = {"gpt2"};
constexpr Names kGpt2Classes = {"GPT2", "GPT2Custom", "TFGPT2", "GPT2Inference",
                                "GPT2LMHeadCustom"};
constexpr Names kGptBigCodeTypes = {"gpt_bigcode"};
constexpr Names kGptBigCodeClasses = {"GPTBigCode"};
constexpr Names kGptNeoTypes = {"gpt_neo"};
constexpr Names kGptNeoClasses = {"GPTNeo"};
constexpr Names kGptjTypes = {"gptj", "codegen"};
constexpr Names kGptjClasses = {"GPTJ", "CodeGen"};
constexpr Names kGptNeoxTypes = {"gpt_neox"};
constexpr Names kGptNeoxClasses = {"GPTNeoX"};
constexpr Names kPhiTypes = {"phi", "mixformer-sequential", "phi-msft"};
constexpr Names kPhiClasses = {"Phi", "MixFormerSequential"};

}  // namespace

const Family kGpt2{"gpt2", "GPT-2", kGpt2Types, kGpt2Classes, build_with<read_gpt2>};
const Family kGptBigCode{"gpt_bigcode", "SantaCoder, StarCoder", kGptBigCodeTypes,
                         kGptBigCodeClasses, build_with<read_gpt_bigcode>};
const Family kGptNeo{"gpt_neo", "GPT-Neo", kGptNeoTypes, kGptNeoClasses, build_with<read_gpt_neo>};
const Family kGptj{"gptj", "GPT-J, CodeGen", kGptjTypes, kGptjClasses, build_with<read_gptj>};
const Family kGptNeox{"gpt_neox", "GPT-NeoX, Pythia", kGptNeoxTypes, kGptNeoxClasses,
                      build_with<read_gpt_neox>};
const Family kPhi{"phi", "Phi-1, Phi-1.5, Phi-2", kPhiTypes, kPhiClasses, build_with<read_phi>};

}  // namespace meshwright::hf
