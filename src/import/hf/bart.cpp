#include <fmt/format.h>

#include <cmath>

#include "import/hf/families.h"
#include "import/hf/sizes.h"
#include "import/hf/task_head.h"

namespace meshwright::hf {
namespace {

// BART (Lewis et al. 2020, arXiv 1910.13461) and the encoder-decoders built like it. They differ in
// where the norms stand, in how positions enter, and in a norm after the embeddings.
struct Variant {
  std::string_view family;
  bool pre_norm;  ///< Norm before each sub-layer and at the end of each stack.
  bool embedding_norm;
  bool learned_positions;        ///< Otherwise a constant sinusoidal table.
  std::int64_t position_offset;  ///< Unused rows in front of the learned table.
  std::int64_t hidden, layers, heads, ffn, vocab, positions;  ///< The library's defaults.
  std::string_view act;
};

constexpr Variant kBartVariant{"bart", false, true, true,  2,    1024,
                               12,     16,    4096, 50265, 1024, "gelu"};
constexpr Variant kMBartVariant{"mbart", true, true, true,  2,    1024,
                                12,      16,   4096, 50265, 1024, "gelu"};
constexpr Variant kPegasusVariant{"pegasus", true, false, false, 0,    1024,
                                  12,        16,   4096,  50265, 1024, "gelu"};
constexpr Variant kMarianVariant{"marian", false, false, false, 0,    1024,
                                 12,       16,    4096,  58101, 1024, "gelu"};
constexpr Variant kBlenderbotVariant{"blenderbot", true, false, true, 0,   2560,
                                     24,           32,   10240, 8008, 128, "gelu"};
constexpr Variant kBlenderbotSmallVariant{
    "blenderbot-small", false, true, true, 0, 512, 8, 16, 2048, 50265, 512, "gelu"};
constexpr Variant kM2M100Variant{"m2m_100", true, false, false,  0,    1024,
                                 12,        16,   4096,  128112, 1024, "relu"};

struct Stack {
  std::string_view name;
  std::int64_t layers, heads, ffn;
};

struct Bart {
  std::int64_t hidden, vocab, positions;
  Stack encoder, decoder;
  std::string act;
  bool tied, scale_embedding;
  double dropout, attention_dropout, activation_dropout;
};

Stack read_stack(const Config& c, const Variant& v, std::string_view name,
                 std::int64_t layers_default, std::int64_t hidden) {
  const std::string layers = fmt::format("{}_layers", name);
  const std::string heads = fmt::format("{}_attention_heads", name);
  const std::string ffn = fmt::format("{}_ffn_dim", name);
  Stack stack{name, layer_count(c, {layers}, layers_default),
              c.core_size_or({heads, "num_attention_heads"}, v.heads),
              c.core_size_or({ffn}, v.ffn)};
  head_dim_of(c, hidden, stack.heads, c.present_key({heads, "num_attention_heads"}));
  return stack;
}

Bart read(const Config& c, const Variant& v) {
  Bart bart;
  bart.hidden = c.core_size_or({"d_model", "hidden_size"}, v.hidden);
  bart.vocab = c.core_size_or({"vocab_size"}, v.vocab);
  bart.positions = c.size_or({"max_position_embeddings"}, v.positions);
  const bool blenderbot = v.family == "blenderbot";
  bart.encoder = read_stack(c, v, "encoder", blenderbot ? 2 : v.layers, bart.hidden);
  bart.decoder = read_stack(c, v, "decoder", v.layers, bart.hidden);
  bart.act = read_activation(c, {"activation_function"}, v.act);
  bart.tied = c.flag_or({"tie_word_embeddings"}, true);
  bart.scale_embedding = c.flag_or({"scale_embedding"}, v.family == "m2m_100");
  bart.dropout = c.number_or({"dropout"}, 0.1);
  bart.attention_dropout = c.number_or({"attention_dropout"}, 0);
  bart.activation_dropout = c.number_or({"activation_dropout"}, 0);
  return bart;
}

class Writer {
 public:
  Writer(const Bart& bart, const Variant& variant, TokenShape shape, const ImportOptions& options)
      : bart_(bart),
        variant_(variant),
        shape_(shape),
        options_(options),
        b_(std::string(variant.family), options.dtype) {}

  GraphBuilder& builder() { return b_; }
  ValueId shared() { return shared_; }

  void share_embedding() {
    shared_ =
        b_.parameter("shared.weight", {{"vocab", bart_.vocab, 1}, {"hidden", bart_.hidden, 1}});
  }

  /// `memory` is the encoder's result, or invalid for the encoder itself.
  ValueId stack(const Stack& stack, std::string_view ids_name, std::string_view tokens,
                ValueId memory, bool causal) {
    const ValueId ids =
        b_.input(ids_name,
                 {DType::kI64, {{"batch", shape_.batch, 1}, {std::string(tokens), shape_.seq, 1}}});
    const auto scope = b_.scope(stack.name);
    ValueId x = embed(ids);
    for (std::int64_t i = 0; i < stack.layers; ++i) {
      const auto layer_scope = b_.scope(fmt::format("layers.{}", i));
      x = attend(stack, "self_attn", "self_attn_layer_norm", x, ValueId(), causal);
      if (memory.valid()) {
        x = attend(stack, "encoder_attn", "encoder_attn_layer_norm", x, memory, false);
      }
      x = mlp(stack, x);
    }
    return variant_.pre_norm ? b_.layer_norm("layer_norm", x) : x;
  }

  ValueId drop(std::string_view name, ValueId x) {
    return dropout(b_, name, x, bart_.dropout, options_);
  }

 private:
  ValueId embed(ValueId ids) {
    ValueId x = b_.op("embedding", "embed_tokens", {ids, shared_});
    if (bart_.scale_embedding) {
      x = b_.op("scale", "embed_scale", {x},
                {{"factor", std::sqrt(static_cast<double>(bart_.hidden))}});
    }
    const Dim tokens = b_.type(ids).dims[1];
    const Dim hidden{"hidden", bart_.hidden, 1};
    ValueId rows;
    if (variant_.learned_positions) {
      const ValueId positions = b_.buffer("position_ids", {DType::kI64, {tokens}});
      const ValueId table =
          b_.parameter("embed_positions.weight",
                       {{"positions", bart_.positions + variant_.position_offset, 1}, hidden});
      rows = b_.op("embedding", "embed_positions", {positions, table});
    } else {
      rows = b_.buffer("embed_positions.weight", {options_.dtype, {tokens, hidden}});
    }
    x = b_.op("add", "add_positions", {x, rows});
    if (variant_.embedding_norm) x = b_.layer_norm("layernorm_embedding", x);
    return drop("dropout", x);
  }

  ValueId attend(const Stack& stack, std::string_view name, std::string_view norm_name, ValueId x,
                 ValueId memory, bool causal) {
    AttentionSpec spec;
    spec.heads = spec.kv_heads = stack.heads;
    spec.head_dim = bart_.hidden / stack.heads;
    spec.q_bias = spec.k_bias = spec.v_bias = spec.o_bias = true;
    spec.causal = causal;
    spec.dropout = bart_.attention_dropout;
    const ValueId h = variant_.pre_norm ? b_.layer_norm(norm_name, x) : x;
    ValueId y;
    {
      const auto scope = b_.scope(name);
      y = attention_block(b_, {h, memory}, spec, {"q_proj", "k_proj", "v_proj", "out_proj"},
                          options_);
      y = b_.op("add", "add", {x, drop("dropout", y)});
    }
    return variant_.pre_norm ? y : b_.layer_norm(norm_name, y);
  }

  ValueId mlp(const Stack& stack, ValueId x) {
    ValueId h = variant_.pre_norm ? b_.layer_norm("final_layer_norm", x) : x;
    h = b_.op(bart_.act, "activation", {b_.linear("fc1", h, {"ffn", stack.ffn, 1}, true)});
    h = dropout(b_, "activation_dropout", h, bart_.activation_dropout, options_);
    h = b_.linear("fc2", h, {"hidden", bart_.hidden, 1}, true);
    h = b_.op("add", "add", {x, drop("dropout", h)});
    return variant_.pre_norm ? h : b_.layer_norm("final_layer_norm", h);
  }

  const Bart& bart_;
  const Variant& variant_;
  TokenShape shape_;
  const ImportOptions& options_;
  GraphBuilder b_;
  ValueId shared_;
};

void output_layer(Writer& w, const Bart& bart, ValueId x) {
  ValueId table = w.shared();
  if (!bart.tied) {
    table = w.builder().parameter("lm_head.weight",
                                  {{"vocab", bart.vocab, 1}, {"hidden", bart.hidden, 1}});
  }
  predict_tokens(w.builder(), "lm_head", x, table);
}

Model build(const Config& config, const ImportOptions& options, const Variant& variant) {
  const Bart bart = read(config, variant);
  const TokenShape shape =
      variant.learned_positions
          ? learned_token_shape(config, options, bart.positions, {"max_position_embeddings"})
          : token_shape(options, bart.positions);
  const std::string task = task_of(config, "ForConditionalGeneration");
  Model model{.family = std::string(variant.family), .global_batch = shape.batch, .seq = shape.seq};
  Writer w(bart, variant, shape, options);
  GraphBuilder& b = w.builder();
  w.share_embedding();
  if (task == "ForCausalLM") {
    const ValueId x = w.stack(bart.decoder, "input_ids", "seq", ValueId(), /*causal=*/true);
    output_layer(w, bart, x);
    model.notes.push_back(
        "the decoder's cross-attention weights, which a ...ForCausalLM class "
        "holds but never uses, are left out");
    model.graph = b.finish();
    return model;
  }
  const ValueId memory = w.stack(bart.encoder, "input_ids", "src_seq", ValueId(), /*causal=*/false);
  const ValueId x = w.stack(bart.decoder, "decoder_input_ids", "seq", memory, /*causal=*/true);
  if (task == "ForConditionalGeneration" || task == "Model") {
    if (task != "Model") output_layer(w, bart, x);
  } else if (task == "ForSequenceClassification") {
    const double p = config.number_or({"classifier_dropout", "classif_dropout"}, 0);
    ValueId y = one_token(b, "classification_head", x, shape.seq - 1);
    y = dropout(b, "classification_head.dropout", y, p, options);
    y = b.linear("classification_head.dense", y, {"hidden", bart.hidden, 1}, true);
    y = b.op("tanh", "classification_head.tanh", {y});
    y = dropout(b, "classification_head.dropout_out", y, p, options);
    classify(b, "classification_head.out_proj", y, label_count(config, 3));
  } else if (task == "ForQuestionAnswering") {
    b.linear("qa_outputs", x, {"classes", 2, 1}, true);
  } else {
    note_unknown_task(model, variant.family, task);
  }
  model.graph = b.finish();
  return model;
}

template <const Variant& variant>
Model build_variant(const Config& config, const ImportOptions& options) {
  return build(config, options, variant);
}

constexpr std::string_view kBartTypes[] = {"bart"};
constexpr std::string_view kBartStems[] = {"Bart"};
constexpr std::string_view kMBartTypes[] = {"mbart"};
constexpr std::string_view kMBartStems[] = {"MBart"};
constexpr std::string_view kPegasusTypes[] = {"pegasus"};
constexpr std::string_view kPegasusStems[] = {"Pegasus"};
constexpr std::string_view kMarianTypes[] = {"marian"};
constexpr std::string_view kMarianStems[] = {"Marian", "MarianMT"};
constexpr std::string_view kBlenderbotTypes[] = {"blenderbot"};
constexpr std::string_view kBlenderbotStems[] = {"Blenderbot"};
constexpr std::string_view kBlenderbotSmallTypes[] = {"blenderbot-small"};
constexpr std::string_view kBlenderbotSmallStems[] = {"BlenderbotSmall"};
constexpr std::string_view kM2M100Types[] = {"m2m_100"};
constexpr std::string_view kM2M100Stems[] = {"M2M100"};

}  // namespace

const Family kBart = {"bart", "BART: post-norm encoder-decoder with learned positions", kBartTypes,
                      kBartStems, build_variant<kBartVariant>};
const Family kMBart = {"mbart", "mBART: BART with pre-norm layers", kMBartTypes, kMBartStems,
                       build_variant<kMBartVariant>};
const Family kPegasus = {"pegasus", "PEGASUS: pre-norm encoder-decoder, sinusoidal positions",
                         kPegasusTypes, kPegasusStems, build_variant<kPegasusVariant>};
const Family kMarian = {"marian", "Marian translation models: post-norm, sinusoidal positions",
                        kMarianTypes, kMarianStems, build_variant<kMarianVariant>};
const Family kBlenderbot = {"blenderbot", "Blenderbot: pre-norm encoder-decoder", kBlenderbotTypes,
                            kBlenderbotStems, build_variant<kBlenderbotVariant>};
const Family kBlenderbotSmall = {"blenderbot-small", "Blenderbot small: post-norm encoder-decoder",
                                 kBlenderbotSmallTypes, kBlenderbotSmallStems,
                                 build_variant<kBlenderbotSmallVariant>};
const Family kM2M100 = {"m2m_100", "M2M-100 and NLLB: pre-norm, sinusoidal positions, ReLU",
                        kM2M100Types, kM2M100Stems, build_variant<kM2M100Variant>};

}  // namespace meshwright::hf
