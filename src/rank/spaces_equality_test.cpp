// Every named plan space on small models of six families and 2, 4 and 8 ranks: what the search
// ranks first is run, one thread per rank, and compared with the model on one device (float64).
// What a space refuses, api/named_spaces_test.cpp lists.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "api/request.h"
#include "base/error.h"
#include "engine/thread_run.h"
#include "plan/lower.h"
#include "search/layout_search.h"
#include "space/plan_space.h"

namespace meshwright {
namespace {

constexpr double kTolerance = 1e-12;
struct TestModel {
  const char* name;
  const char* config;  ///< Null: a named model.
};

// Small enough that all spaces take a minute, with what makes each family itself: grouped queries,
// experts, a table far larger than the rest (T5), shifted windows of 7 x 7 patches in a model of
// two stages (Swin).
constexpr TestModel kModels[] = {
    {"gpt", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32,
                "n_layer": 4, "n_head": 4, "n_positions": 16, "n_ctx": 16, "vocab_size": 64})"},
    {"llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
                  "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 16,
                  "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false})"},
    {"moe", R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 32,
                "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 16,
                "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
                "hidden_act": "silu", "tie_word_embeddings": false})"},
    {"t5", R"({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32,
               "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
               "vocab_size": 4096, "relative_attention_num_buckets": 8, "n_positions": 16,
               "feed_forward_proj": "relu", "tie_word_embeddings": true})"},
    {"swin", R"({"model_type": "swin", "architectures": ["SwinForImageClassification"],
                 "image_size": 28, "patch_size": 2, "num_channels": 3, "embed_dim": 16,
                 "depths": [2, 2], "num_heads": [2, 4], "window_size": 7, "mlp_ratio": 2.0,
                 "qkv_bias": true, "hidden_act": "gelu", "num_labels": 10,
                 "use_absolute_embeddings": false})"},
    {"evoformer-tiny", nullptr}};

std::string model_path(const TestModel& model) {
  if (model.config == nullptr) return model.name;
  const std::string path = fmt::format("{}/equality-{}.json", testing::TempDir(), model.name);
  std::ofstream(path) << model.config;
  return path;
}

class SpacesEquality : public testing::TestWithParam<std::string> {};

TEST_P(SpacesEquality, EveryModel) {
  int run = 0;
  for (const TestModel& model : kModels) {
    for (int devices : {2, 4, 8}) {
      Request r;
      r.model = model_path(model);
      if (model.config != nullptr && model.name != std::string_view("swin")) r.import.seq = 16;
      r.import.global_batch = 8;
      r.cluster = devices < 4 ? fmt::format("a100-80:1x{}", devices)
                              : fmt::format("a100-80:2x{}", devices / 2);
      r.space = GetParam();
      SearchControl control;
      control.top = 1;
      std::vector<Judged> ranking;
      std::optional<Loaded> loaded;
      try {
        loaded = load(r);
        ranking = search_layouts(loaded->problem(), control).ranking;
      } catch (const Error&) {
        continue;  // The space does not fit the model.
      }
      if (ranking.empty()) continue;
      Plan plan = ranking[0].plan;
      plan.training.optimizer = "sgd";
      const Graph& graph = loaded->model.graph;
      const Program program = lower(plan, graph, loaded->segments);
      ExecutorSettings settings;
      settings.optimizer.learning_rate = 0.1;
      settings.clip_norm = 0.5;
      const std::string name =
          fmt::format("{} on {}: {}", model.name, devices, to_string(plan.degrees));
      try {
        const RunDifference d = run_threads(program, plan, graph, loaded->segments, 3, settings);
        EXPECT_LE(d.loss, kTolerance) << name;
        EXPECT_LE(d.parameters, kTolerance) << name << " " << d.worst;
        if (std::getenv("MW_PRINT") != nullptr) {
          fmt::print("{} loss {:.1e} parameters {:.1e}\n", name, d.loss, d.parameters);
        }
        ++run;
      } catch (const std::exception& e) {
        ADD_FAILURE() << name << ": " << e.what();
      }
    }
  }
  EXPECT_GT(run, 0);
}

std::vector<std::string> space_names() {
  std::vector<std::string> names;
  for (const auto& space : named_spaces()) names.emplace_back(space.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Named, SpacesEquality, testing::ValuesIn(space_names()),
                         [](const auto& given) {
                           std::string name = given.param;
                           for (char& c : name) {
                             if (c == '-' || c == '.') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace meshwright
