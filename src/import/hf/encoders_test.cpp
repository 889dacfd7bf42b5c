#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "import/import.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

Model import_text(const std::string& text, const ImportOptions& options = {}) {
  return import_hf_config(text, "config.json", options);
}

std::string error_of(const std::string& text, const ImportOptions& options = {}) {
  try {
    import_text(text, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// `base` with `change` on top of it.
std::string with(const std::string& base, const std::string& change) {
  Json json = Json::parse(base);
  json.update(Json::parse(change));
  return json.dump();
}

std::string head(const std::string& base, const std::string& class_name) {
  return with(base, fmt::format(R"({{"architectures": ["{}"]}})", class_name));
}

// Published sizes, written down from the models' cards.
const std::string kT5Small =
    R"({"model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6,
        "num_heads": 8, "vocab_size": 32128, "feed_forward_proj": "relu"})";
const std::string kT5Base =
    R"({"model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12,
        "num_heads": 12, "vocab_size": 32128})";
const std::string kMt5Small =
    R"({"model_type": "mt5", "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_layers": 8,
        "num_decoder_layers": 8, "num_heads": 6, "vocab_size": 250112,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false})";
const std::string kUmt5Small =
    R"({"model_type": "umt5", "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_layers": 8,
        "num_heads": 6, "vocab_size": 250112, "feed_forward_proj": "gated-gelu"})";
const std::string kBartLarge =
    R"({"model_type": "bart", "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
        "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096, "max_position_embeddings": 1024, "vocab_size": 50265})";
const std::string kBertBase =
    R"({"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
        "type_vocab_size": 2, "vocab_size": 30522})";
const std::string kRobertaBase =
    R"({"model_type": "roberta", "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 514,
        "type_vocab_size": 1, "vocab_size": 50265})";
const std::string kElectraBase =
    R"({"model_type": "electra", "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 768,
        "vocab_size": 30522})";
const std::string kDistilBert =
    R"({"model_type": "distilbert", "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
        "vocab_size": 30522, "max_position_embeddings": 512})";
const std::string kVitBase =
    R"({"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224, "patch_size": 16,
        "num_channels": 3, "num_labels": 1000})";
const std::string kSwinTiny =
    R"({"model_type": "swin", "embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24],
        "window_size": 7, "image_size": 224, "patch_size": 4, "num_labels": 1000})";
const std::string kClipB32 =
    R"({"model_type": "clip", "projection_dim": 512,
        "text_config": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
                        "num_attention_heads": 8, "vocab_size": 49408,
                        "max_position_embeddings": 77},
        "vision_config": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                          "num_attention_heads": 12, "image_size": 224, "patch_size": 32}})";

struct Count {
  std::string config;
  long long parameters;
};

// The figures are the library's own counts of the named class (a tied parameter once, parameters
// that are not trained left out).
TEST(EncoderFamilies, ParameterCountsAreExact) {
  const std::string v11_base =
      with(kT5Base,
           R"({"d_ff": 2048, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false})");
  const Count counts[] = {
      {kT5Small, 60'506'624},
      {kT5Base, 222'903'552},
      {head(kT5Base, "T5WithLMHeadModel"), 222'903'552},
      {head(kT5Base, "T5Model"), 222'903'552},
      {head(kT5Base, "T5EncoderModel"), 109'628'544},
      {head(kT5Base, "T5ForQuestionAnswering"), 222'905'090},
      {head(kT5Base, "T5ForSequenceClassification"), 223'495'682},
      {head(kT5Base, "T5ForTokenClassification"), 109'630'082},
      {v11_base, 247'577'856},
      {head(v11_base, "T5Model"), 222'903'552},
      {kMt5Small, 300'176'768},
      {head(kMt5Small, "MT5Model"), 172'119'424},
      {head(kMt5Small, "MT5EncoderModel"), 146'940'608},
      {kUmt5Small, 172'122'112},
      {head(kUmt5Small, "UMT5EncoderModel"), 146'941'952},
      {kBartLarge, 406'291'456},
      {head(kBartLarge, "BartModel"), 406'291'456},
      {head(kBartLarge, "BartForSequenceClassification"), 407'344'131},
      {head(kBartLarge, "BartForQuestionAnswering"), 406'293'506},
      {with(kBartLarge, R"({"model_type": "mbart", "vocab_size": 250027})"), 610'851'840},
      // The constant position tables are no parameters of the graph; with them 570,797,056.
      {with(kBartLarge, R"({"model_type": "pegasus", "vocab_size": 96103, "encoder_layers": 16,
                            "decoder_layers": 16})"),
       568'699'904},
      {R"({"model_type": "marian", "architectures": ["MarianMTModel"], "d_model": 512,
           "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048,
           "decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
           "vocab_size": 58101})",
       73'886'208},
      {R"({"model_type": "blenderbot", "d_model": 512, "encoder_ffn_dim": 2048,
           "decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8})",
       111'434'752},
      {R"({"model_type": "blenderbot-small"})", 85'113'344},
      {R"({"model_type": "m2m_100", "vocab_size": 128112})", 483'905'536},
      {kBertBase, 109'482'240},
      {head(kBertBase, "BertModel"), 109'482'240},
      {head(kBertBase, "BertForMaskedLM"), 109'514'298},
      {head(kBertBase, "BertForPreTraining"), 110'106'428},
      {head(kBertBase, "BertForSequenceClassification"), 109'483'778},
      {head(kBertBase, "BertForTokenClassification"), 108'893'186},
      {head(kBertBase, "BertForQuestionAnswering"), 108'893'186},
      {head(kBertBase, "BertForNextSentencePrediction"), 109'483'778},
      {head(kBertBase, "BertForMultipleChoice"), 109'483'009},
      {head(kBertBase, "BertLMHeadModel"), 109'514'298},
      {kRobertaBase, 124'645'632},
      {head(kRobertaBase, "RobertaForMaskedLM"), 124'697'433},
      {head(kRobertaBase, "RobertaForSequenceClassification"), 124'647'170},
      {head(kRobertaBase, "RobertaForTokenClassification"), 124'056'578},
      {head(kRobertaBase, "RobertaForQuestionAnswering"), 124'056'578},
      {head(kRobertaBase, "RobertaForMultipleChoice"), 124'646'401},
      {with(kRobertaBase, R"({"model_type": "xlm-roberta", "vocab_size": 250002})"), 278'043'648},
      {kElectraBase, 108'891'648},
      {head(kElectraBase, "ElectraForPreTraining"), 109'483'009},
      {head(kElectraBase, "ElectraForMaskedLM"), 109'514'298},
      {head(kElectraBase, "ElectraForSequenceClassification"), 109'483'778},
      {R"({"model_type": "electra"})", 13'483'008},
      {R"({"model_type": "electra", "architectures": ["ElectraForMaskedLM"]})", 13'546'682},
      {kDistilBert, 66'362'880},
      {head(kDistilBert, "DistilBertForMaskedLM"), 66'985'530},
      {head(kDistilBert, "DistilBertForSequenceClassification"), 66'955'010},
      {head(kDistilBert, "DistilBertForQuestionAnswering"), 66'364'418},
      {head(kDistilBert, "DistilBertForTokenClassification"), 66'364'418},
      {kVitBase, 86'389'248},
      {head(kVitBase, "ViTForImageClassification"), 86'567'656},
      {with(kVitBase, R"({"model_type": "deit"})"), 86'390'784},
      {with(kVitBase, R"({"model_type": "deit",
                          "architectures": ["DeiTForImageClassificationWithTeacher"]})"),
       87'338'192},
      {kSwinTiny, 27'519'354},
      {head(kSwinTiny, "SwinForImageClassification"), 28'288'354},
      {with(kSwinTiny, R"({"image_size": 384, "window_size": 12, "embed_dim": 128,
                           "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32],
                           "architectures": ["SwinForImageClassification"]})"),
       87'903'584},
      {kClipB32, 151'277'313},
      {R"({"model_type": "clip_text_model"})", 63'165'952},
      {R"({"model_type": "clip_text_model", "architectures": ["CLIPTextModelWithProjection"]})",
       63'428'096},
      {R"({"model_type": "clip_vision_model"})", 87'456'000},
      {R"({"model_type": "clip_vision_model",
           "architectures": ["CLIPVisionModelWithProjection"]})",
       87'849'216},
  };
  for (const Count& c : counts) {
    EXPECT_EQ(static_cast<long long>(parameter_count(import_text(c.config).graph)), c.parameters)
        << c.config;
  }
}

TEST(EncoderFamilies, TaskFollowsTheFirstClassThatIsMoreThanTheBaseModel) {
  const Model bart = import_text(with(kBartLarge, R"({"architectures": ["BartModel",
                                       "BartForConditionalGeneration"]})"));
  EXPECT_EQ(bart.graph.ops.back().kind, "cross_entropy");
  const Model bare = import_text(head(kBartLarge, "BartModel"));
  EXPECT_EQ(bare.graph.ops.back().kind, "layer_norm");
  const Model odd = import_text(head(kBertBase, "BertForDreaming"));
  EXPECT_EQ(odd.graph.ops.back().kind, "layer_norm");
  ASSERT_EQ(odd.notes.size(), 1u);
  EXPECT_THAT(odd.notes[0], HasSubstr("'ForDreaming'"));
}

TEST(EncoderFamilies, FoundByClassNameWithoutModelType) {
  const Model model = import_text(
      R"({"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_model": 512,
          "num_heads": 8, "num_layers": 6, "vocab_size": 32128})");
  EXPECT_EQ(model.family, "t5");
  EXPECT_EQ(parameter_count(model.graph), 60'506'624);
  EXPECT_EQ(import_text(R"({"architectures": ["MT5EncoderModel"], "d_ff": 1024, "d_model": 512,
                            "num_heads": 6, "num_layers": 8, "vocab_size": 250112})")
                .graph.ops.back()
                .name,
            "encoder.final_layer_norm");
}

std::vector<const Op*> ops_of_kind(const Graph& graph, std::string_view kind) {
  std::vector<const Op*> ops;
  for (const Op& op : graph.ops) {
    if (op.kind == kind) ops.push_back(&op);
  }
  return ops;
}

TEST(T5, StacksShareOneRelativeBiasEach) {
  const Graph graph = import_text(kT5Small).graph;
  const auto biases = ops_of_kind(graph, "relative_bias");
  ASSERT_EQ(biases.size(), 2u);
  EXPECT_EQ(biases[0]->name, "encoder.relative_attention_bias");
  EXPECT_EQ(to_string(graph.value(biases[0]->outputs[0]).type),
            "bf16[heads=8, src_seq=512, keys=512]");
  EXPECT_EQ(attr_bool(biases[1]->attrs, "causal", false), true);
  int biased = 0;
  for (const Op* op : ops_of_kind(graph, "attention")) {
    biased += op->inputs.size() == 4;
    EXPECT_EQ(attr_float(op->attrs, "scale", 0), 1);
  }
  EXPECT_EQ(biased, 12);  // Self-attention of 6 + 6 layers, cross-attention of none.
  EXPECT_EQ(ops_of_kind(import_text(kUmt5Small).graph, "relative_bias").size(), 16u);
}

TEST(T5, CrossAttentionReadsTheEncoder) {
  ImportOptions options;
  options.global_batch = 4;
  options.seq = 64;
  const Model model = import_text(kT5Small, options);
  EXPECT_EQ(model.seq, 64);
  for (const Op& op : model.graph.ops) {
    if (op.name != "decoder.block.5.layer.1.EncDecAttention.core") continue;
    EXPECT_EQ(to_string(model.graph.value(op.inputs[0]).type),
              "bf16[batch=4, seq=64, heads=8, head_dim=64]");
    EXPECT_EQ(to_string(model.graph.value(op.inputs[1]).type),
              "bf16[batch=4, src_seq=64, heads=8, head_dim=64]");
    EXPECT_FALSE(attr_bool(op.attrs, "causal", false));
    return;
  }
  FAIL() << "no cross-attention in the last layer";
}

TEST(EncoderFamilies, DropoutOnlyWhenWanted) {
  for (const std::string& config : {kT5Small, kBartLarge, kBertBase}) {
    EXPECT_TRUE(ops_of_kind(import_text(config).graph, "dropout").empty());
    ImportOptions options;
    options.dropout = true;
    EXPECT_FALSE(ops_of_kind(import_text(config, options).graph, "dropout").empty());
  }
}

TEST(Swin, WindowsAreShiftedInEverySecondBlockExceptWhereOneWindowFillsTheGrid) {
  ImportOptions options;
  options.global_batch = 2;
  const Graph graph = import_text(kSwinTiny, options).graph;
  // Stages of 2, 2, 6 blocks shift half of them, there and back; the last stage is 7 x 7.
  EXPECT_EQ(ops_of_kind(graph, "roll").size(), 2u * (1 + 1 + 3));
  const Op& first = *ops_of_kind(graph, "attention")[0];
  EXPECT_EQ(to_string(graph.value(first.inputs[0]).type),
            "bf16[batch=128/64, window=49/7, heads=3, head_dim=32]");
  EXPECT_EQ(to_string(graph.value(first.inputs[3]).type), "bf16[heads=3, window=49, keys=49]");
  EXPECT_TRUE(ops_of_kind(graph, "pad").empty());
}

TEST(Swin, GridsThatAreNoMultipleOfTheWindowArePadded) {
  // 240 / 4 = 60 patches = 8.6 windows of 7.
  const Graph graph = import_text(with(kSwinTiny, R"({"image_size": 240})")).graph;
  EXPECT_FALSE(ops_of_kind(graph, "pad").empty());
  EXPECT_EQ(parameter_count(graph), 27'519'354);
  EXPECT_EQ(parameter_count(import_text(with(kSwinTiny, R"({"image_size": [224, 448]})")).graph),
            27'519'354);
}

TEST(Clip, EveryTextMeetsEveryImage) {
  ImportOptions options;
  options.global_batch = 32;
  const Graph graph = import_text(kClipB32, options).graph;
  const auto products = ops_of_kind(graph, "matmul");
  ASSERT_EQ(products.size(), 2u);
  EXPECT_EQ(to_string(graph.value(products[0]->outputs[0]).type), "bf16[batch=32, keys=32]");
}

TEST(EncoderFamilies, SequenceLengths) {
  EXPECT_EQ(import_text(kBertBase).seq, 512);
  EXPECT_EQ(import_text(kRobertaBase).seq, 512);  // 514 rows, two of them for padding.
  EXPECT_EQ(import_text(kVitBase).seq, 197);
  EXPECT_EQ(import_text(kClipB32).seq, 77);
  ImportOptions options;
  options.seq = 513;
  EXPECT_THAT(error_of(kRobertaBase, options),
              HasSubstr("a sequence of 513 tokens needs 513 learned positions"));
  EXPECT_THAT(error_of(kVitBase, options),
              HasSubstr("config.json: /image_size: the sequence length of an image model follows "
                        "from its 14 x 14 patches"));
  EXPECT_EQ(error_of(kT5Small, options), "no error");  // Relative positions have no end.
}

TEST(EncoderFamilies, WrongFilesAreRefused) {
  struct Wrong {
    std::string config, message;
  };
  const Wrong wrong[] = {
      {with(kBertBase, R"({"num_attention_heads": 7})"),
       "/num_attention_heads: the hidden size 768 is not a multiple of num_attention_heads = 7"},
      {with(kBertBase, R"({"hidden_act": "gleu"})"), "/hidden_act: hidden_act 'gleu'"},
      {with(kBertBase, R"({"position_embedding_type": "relative_key"})"),
       "position embeddings of kind 'relative_key' are not supported"},
      {with(kBertBase, R"({"add_cross_attention": true})"), "cross-attention"},
      {with(kBertBase, R"({"num_hidden_layers": 1000000})"), "at most 10000"},
      {with(kBertBase, R"({"vocab_size": 1000000000000})"), "vocab_size must be a whole number"},
      {with(kT5Small, R"({"feed_forward_proj": "gated-"})"), "activation ''"},
      {with(kT5Small, R"({"d_ff": -5})"), "d_ff must be a whole number from 1"},
      {with(kVitBase, R"({"patch_size": 0})"), "patch_size must be a whole number from 1"},
      {with(kVitBase, R"({"patch_size": 300})"),
       "a patch of 300 x 300 pixels does not fit an image of 224 x 224"},
      {with(kVitBase, R"({"image_size": [224]})"), "a positive number or a pair"},
      {with(kSwinTiny, R"({"depths": []})"), "depths must list 1 to 8 stages, but has 0"},
      {with(kSwinTiny, R"({"depths": [2, 2]})"), "num_heads lists 4 stages, but depths lists 2"},
      {with(kSwinTiny, R"({"num_heads": [5, 6, 12, 24]})"),
       "5 heads do not divide the width 96 of stage 0"},
      {with(kSwinTiny, R"({"mlp_ratio": -1})"), "mlp_ratio"},
      {with(kSwinTiny, R"({"window_size": 2147483647})"), "window_size"},
      {R"({"model_type": "clip", "projection_dim": 512})", "/text_config: text_config is missing"},
      {with(kClipB32, R"({"vision_config": [1]})"), "/vision_config: a model configuration is"},
  };
  for (const Wrong& w : wrong) EXPECT_THAT(error_of(w.config), HasSubstr(w.message)) << w.config;
}

// Every key of every family with every kind of hostile value: a graph or an Error, nothing else.
TEST(EncoderFamilies, HostileValuesNeverCrash) {
  const char* values[] = {"0",     "-1",    "1",          "3",          "2147483647",
                          "1e12",  "2.5",   "-0.5",       "1e308",      "18446744073709551615",
                          "\"x\"", "\"\"",  "null",       "true",       "[]",
                          "{}",    "[[1]]", "[1, 2]",     "[0, 0]",     "[-1, 2147483647]",
                          "[1e9]", "90",    "[null, {}]", "2147483648", "65536"};
  const char* keys[] = {"d_kv",        "relative_attention_num_buckets",
                        "n_positions", "feed_forward_proj",
                        "mlp_ratio",   "num_channels",
                        "hidden_act",  "architectures",
                        "id2label",    "pad_token_id",
                        "dropout",     "qkv_bias",
                        "is_decoder",  "use_absolute_embeddings",
                        "embed_dim",   "num_decoder_layers"};
  ImportOptions options;
  options.dropout = true;
  int graphs = 0;
  int errors = 0;
  for (const std::string& base :
       {kT5Small, kUmt5Small, kBartLarge, kBertBase, kElectraBase, kDistilBert, kVitBase, kSwinTiny,
        kClipB32, head(kVitBase, "ViTForImageClassification"),
        head(kBartLarge, "BartForSequenceClassification")}) {
    const Json json = Json::parse(base);
    std::set<std::string> all(std::begin(keys), std::end(keys));
    for (const auto& [key, value] : json.items()) all.insert(key);
    for (const std::string& key : all) {
      if (key == "model_type") continue;
      for (const char* value : values) {
        Json changed = json;
        changed[key] = Json::parse(value);
        // Nested configurations get the same treatment.
        if (json.contains("vision_config") && !json.contains(key)) {
          changed.erase(key);
          changed["vision_config"][key] = Json::parse(value);
        }
        try {
          import_hf_config(changed.dump(), "config.json", options);
          ++graphs;
        } catch (const Error&) {
          ++errors;
        }
      }
    }
  }
  EXPECT_GT(graphs, 500);
  EXPECT_GT(errors, 500);
}

}  // namespace
}  // namespace meshwright
