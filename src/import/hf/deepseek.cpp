// DeepSeek-V2, V3, V3.2 and what took over their design: multi-head latent attention, many small
// experts beside shared ones, dense first layers, multi-token prediction (arXiv 2405.04434 and
// 2412.19437).
//
// Parameter counts include the router's correction bias (n_routed_experts per sparse layer), which
// is a parameter in DeepSeek's own code and a tensor of every checkpoint, though gradient descent
// does not train it: 671,026,419,200 for DeepSeek-V3, of which 58 x 256 are correction biases.
#include <fmt/format.h>

#include <algorithm>

#include "import/hf/families.h"
#include "import/hf/readers.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

struct LatentDefaults {
  std::int64_t q_lora = 1536, kv_lora = 512, nope = 128, rope = 64, value = 128;
};

void set_latent_attention(Plain& p, const Config& config, const LatentDefaults& defaults) {
  AttentionSpec& a = *p.layer.attention;
  // A null rank means that queries are not compressed (DeepSeek-V2-Lite).
  a.q_lora = config.size_or({"q_lora_rank"}, config.is_null("q_lora_rank") ? 0 : defaults.q_lora);
  a.kv_lora = config.size_or({"kv_lora_rank"}, defaults.kv_lora);
  a.rotary_dim = config.size_or({"qk_rope_head_dim"}, defaults.rope);
  a.head_dim = config.size_or({"qk_nope_head_dim"}, defaults.nope) + a.rotary_dim;
  a.value_dim = config.size_or({"v_head_dim"}, defaults.value);
  a.kv_heads = a.heads;
  if (a.rotary_dim % 2 != 0) {
    config.fail("qk_rope_head_dim",
                fmt::format("qk_rope_head_dim must be even, but is {}", a.rotary_dim));
  }
}

// Lightning indexer of DeepSeek Sparse Attention (DeepSeek-V3.2 report, section 2.1).
void note_sparse_attention(Plain& p, const Config& config, std::int64_t indexers) {
  const std::int64_t heads = config.size_or({"index_n_heads"}, 64);
  const std::int64_t dim = config.size_or({"index_head_dim"}, 128);
  const AttentionSpec& a = *p.layer.attention;
  const double width = static_cast<double>(heads) * static_cast<double>(dim);
  const double hidden = static_cast<double>(p.sizes.hidden);
  const double each = static_cast<double>(a.q_lora) * width +
                      hidden * static_cast<double>(dim + heads) + 2 * static_cast<double>(dim);
  p.decoder.notes.push_back(fmt::format(
      "sparse attention is imported as dense: every token sees all earlier ones, and the indexer "
      "that picks {} of them ({:.0f} parameters) is left out",
      config.size_or({"index_topk"}, 2048), each * static_cast<double>(indexers)));
}

MoeSpec read_deepseek_moe(const Config& config, const MoeDefaults& defaults, std::int64_t ffn,
                          std::int64_t shared) {
  MoeSpec moe = read_moe(config, defaults, ffn);
  moe.groups = config.count_or({"n_group"}, 0);
  moe.top_groups = config.count_or({"topk_group"}, 0);
  if (moe.groups > 1 && moe.experts % moe.groups != 0) {
    config.fail("n_group",
                fmt::format("n_group {} does not divide the {} experts", moe.groups, moe.experts));
  }
  moe.shared_ffn =
      config.count_or({"n_shared_experts"}, config.is_null("n_shared_experts") ? 0 : shared) * ffn;
  return moe;
}

Decoder with_experts(Plain p, const Config& config, const MoeSpec& moe, std::int64_t first) {
  LayerSpec experts = p.layer;
  experts.mlp.reset();
  experts.moe = moe;
  for (bool sparse : read_sparse_layers(config, p.sizes.layers, first)) {
    p.decoder.append(sparse ? experts : p.layer);
  }
  return std::move(p.decoder);
}

Decoder read_deepseek_v2(const Config& config) {
  Plain p = read_plain(config, "deepseek_v2",
                       {.hidden = 4096,
                        .ffn = 11008,
                        .layers = 32,
                        .heads = 32,
                        .vocab = 102400,
                        .free_heads = true});
  set_latent_attention(p, config, {});
  const MoeSpec moe = read_deepseek_moe(config, {.experts = 64},
                                        config.size_or({"moe_intermediate_size"}, 1407), 2);
  return with_experts(std::move(p), config, moe, 0);
}

Decoder read_v3(const Config& config, std::string_view family, const SizeDefaults& sizes,
                const LatentDefaults& latent, const MoeDefaults& experts, std::int64_t ffn,
                std::int64_t first, bool sparse_attention) {
  SizeDefaults free = sizes;
  free.free_heads = true;
  Plain p = read_plain(config, family, free);
  set_latent_attention(p, config, latent);
  MoeSpec moe =
      read_deepseek_moe(config, experts, config.size_or({"moe_intermediate_size"}, ffn), 1);
  moe.score = "sigmoid";
  moe.router_bias = true;
  p.decoder.mtp_layers = static_cast<int>(
      std::min<std::int64_t>(config.count_or({"num_nextn_predict_layers"}, 0), 16));
  if (sparse_attention) {
    const std::vector<std::string> types = config.texts_or_empty("indexer_types");
    const auto full = std::count(types.begin(), types.end(), "full");
    note_sparse_attention(p, config, types.empty() ? p.sizes.layers : full);
  }
  return with_experts(std::move(p), config, moe, first);
}

}  // namespace

Decoder read_deepseek_v3(const Config& config) {
  const std::string type = config.text_or({"model_type"}, "deepseek_v3");
  return read_v3(config, type,
                 {.hidden = 7168,
                  .ffn = 18432,
                  .layers = 61,
                  .heads = 128,
                  .vocab = 129280,
                  .positions = 4096},
                 {}, {.experts = 256, .top_k = 8}, 2048, 3, type == "deepseek_v32");
}

namespace {

Decoder read_glm_moe_dsa(const Config& config) {
  return read_v3(config, "glm_moe_dsa",
                 {.hidden = 6144,
                  .ffn = 12288,
                  .layers = 78,
                  .heads = 64,
                  .vocab = 154880,
                  .positions = 202752},
                 {.q_lora = 2048, .nope = 192, .value = 256}, {.experts = 256, .top_k = 8}, 2048, 3,
                 true);
}

Decoder read_glm4_moe_lite(const Config& config) {
  return read_v3(config, "glm4_moe_lite",
                 {.hidden = 2048,
                  .ffn = 10240,
                  .layers = 47,
                  .heads = 20,
                  .vocab = 154880,
                  .positions = 202752},
                 {.q_lora = 768, .nope = 192, .value = 256}, {.experts = 64, .top_k = 4}, 1536, 1,
                 false);
}

using Names = const std::string_view[];
constexpr Names kV2Types = {"deepseek_v2"};
constexpr Names kV2Classes = {"DeepseekV2"};
constexpr Names kV3Types = {"deepseek_v3", "deepseek_v32", "kimi_k2"};
constexpr Names kV3Classes = {"DeepseekV3", "DeepseekV32"};
constexpr Names kGlmDsaTypes = {"glm_moe_dsa"};
constexpr Names kGlmDsaClasses = {"GlmMoeDsa"};
constexpr Names kGlmLiteTypes = {"glm4_moe_lite"};
constexpr Names kGlmLiteClasses = {"Glm4MoeLite"};

}  // namespace

const Family kDeepseekV2{"deepseek_v2", "DeepSeek-V2, DeepSeek-Coder-V2", kV2Types, kV2Classes,
                         build_with<read_deepseek_v2>};
const Family kDeepseekV3{"deepseek_v3", "DeepSeek-V3, R1, V3.2, Kimi K2", kV3Types, kV3Classes,
                         build_with<read_deepseek_v3>};
const Family kGlmMoeDsa{"glm_moe_dsa", "GLM-5", kGlmDsaTypes, kGlmDsaClasses,
                        build_with<read_glm_moe_dsa>};
const Family kGlm4MoeLite{"glm4_moe_lite", "GLM-4.7-Flash", kGlmLiteTypes, kGlmLiteClasses,
                          build_with<read_glm4_moe_lite>};

}  // namespace meshwright::hf
