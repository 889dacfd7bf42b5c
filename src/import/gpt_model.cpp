#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "import/hf/sizes.h"
#include "import/import.h"

namespace meshwright {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::int64_t kMaxLayers = 10'000;

// `value`, or `fallback` for 0.
std::int64_t size_or(std::string_view option, std::int64_t value, std::int64_t fallback,
                     std::int64_t most = kMaxSize) {
  if (value < 0 || value > most) {
    throw Error(fmt::format("must be from 1 to {}, but is {}", most, value), std::string(option));
  }
  return value == 0 ? fallback : value;
}

std::int64_t size(std::string_view option, std::int64_t value, std::int64_t most = kMaxSize) {
  const std::int64_t result = size_or(option, value, 0, most);
  if (result == 0) throw Error("is missing", std::string(option), "a GPT needs it");
  return result;
}

std::string divisors(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  std::ranges::sort(all);
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < all.size() && i < kShown; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", all[i]);
  }
  return all.size() > kShown ? fmt::format("{}, …, {}", text, n) : text;
}

void check_divides(std::string_view part_option, std::int64_t part, std::string_view whole_option,
                   std::int64_t whole) {
  if (whole % part == 0) return;
  throw Error(fmt::format("must divide {} = {}, but is {}", whole_option, whole, part),
              std::string(part_option), "legal: " + divisors(whole));
}

// 8/3 of the hidden size, rounded up to 256: a gated MLP as large as an ungated one of 4 hidden.
std::int64_t gated_ffn(std::int64_t hidden) { return (hidden * 8 / 3 + 255) / 256 * 256; }

hf::MoeSpec experts(const GptSizes& sizes, std::int64_t ffn) {
  hf::MoeSpec moe;
  moe.experts = size("--experts", sizes.experts);
  moe.top_k = size_or("--top-k", sizes.top_k, std::min<std::int64_t>(2, moe.experts));
  if (moe.top_k > moe.experts) {
    throw Error(fmt::format("must be at most --experts = {}, but is {}", moe.experts, moe.top_k),
                "--top-k");
  }
  moe.ffn = size_or("--expert-ffn", sizes.expert_ffn, ffn);
  moe.gated = sizes.gated;
  moe.act = sizes.gated ? "silu" : "gelu";
  return moe;
}

}  // namespace

Model gpt_model(const GptSizes& sizes, const ImportOptions& options) {
  const std::int64_t layers = size("--layers", sizes.layers, kMaxLayers);
  const std::int64_t hidden = size("--hidden", sizes.hidden);
  const std::int64_t heads = size("--heads", sizes.heads);
  if (sizes.head_dim == 0) check_divides("--heads", heads, "--hidden", hidden);
  const std::int64_t head_dim = size_or("--head-dim", sizes.head_dim, hidden / heads);
  const std::int64_t kv_heads = size_or("--kv-heads", sizes.kv_heads, heads);
  check_divides("--kv-heads", kv_heads, "--heads", heads);
  const std::int64_t ffn =
      size_or("--ffn", sizes.ffn, sizes.gated ? gated_ffn(hidden) : 4 * hidden);
  const std::int64_t positions = size_or("--max-positions", sizes.max_positions, 0);
  if (sizes.experts == 0 && (sizes.top_k != 0 || sizes.expert_ffn != 0)) {
    throw Error("is missing, but --top-k or --expert-ffn is given", "--experts");
  }

  hf::AttentionSpec attention;
  attention.heads = heads;
  attention.kv_heads = kv_heads;
  attention.head_dim = head_dim;
  const bool bias = !sizes.gated;
  attention.q_bias = attention.k_bias = attention.v_bias = attention.o_bias = bias;
  if (sizes.gated) attention.rotary_dim = head_dim;
  // Megatron's defaults, used when the options keep dropout.
  attention.dropout = 0.1;

  hf::LayerSpec layer;
  layer.attention = attention;
  if (sizes.experts != 0) {
    layer.moe = experts(sizes, ffn);
  } else {
    layer.mlp = hf::MlpSpec{.ffn = ffn,
                            .gated = sizes.gated,
                            .act = sizes.gated ? "silu" : "gelu",
                            .up_bias = bias,
                            .down_bias = bias};
  }

  hf::Decoder decoder;
  decoder.family = sizes.gated ? "llama" : "gpt2";
  decoder.vocab = size_or("--vocab", sizes.vocab, 51200);
  decoder.hidden = hidden;
  decoder.norm = sizes.gated ? hf::NormKind::kRms : hf::NormKind::kLayer;
  decoder.tied = sizes.tied;
  decoder.hidden_dropout = decoder.embed_dropout = 0.1;
  const std::int64_t seq = size_or("--seq", options.seq, positions == 0 ? 2048 : positions);
  decoder.max_positions = positions == 0 ? seq : positions;
  if (!sizes.gated) {
    decoder.names = hf::gpt_names();
    decoder.position_rows = decoder.max_positions;
    if (seq > decoder.max_positions) {
      throw Error(fmt::format("must be at least --seq = {}, but is {}", seq, positions),
                  "--max-positions");
    }
  }
  decoder.repeat(layer, layers);
  ImportOptions with_seq = options;
  with_seq.seq = seq;
  const Json none = Json::object();
  return hf::build_decoder(decoder, hf::Config(none, "sizes"), with_seq);
}

}  // namespace meshwright
