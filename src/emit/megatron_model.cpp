// Megatron's GPT: which model of a decoder's sizes and choices its options build. Option names and
// meanings are those of Megatron-LM 0.20.0-dev (d98e8a64): training/arguments.py,
// core/transformer/transformer_config.py.
#include "emit/megatron_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

namespace meshwright {
namespace {

class ModelOptions {
 public:
  ModelOptions(const DecoderModel& model, MegatronArgs& args) : model_(model), args_(args) {}

  std::vector<std::string> set() {
    set_sizes();
    set_attention();
    set_positions();
    set_windows();
    set_networks();
    set_biases();
    set_dropout();
    return std::move(faults_);
  }

 private:
  const DecoderLayer& first() const { return model_.layers.front(); }
  void say(std::string fault) { faults_.push_back(std::move(fault)); }
  void other(std::string flag, std::vector<std::string> values = {}) {
    args_.other.push_back({std::move(flag), std::move(values)});
  }

  std::vector<int> pattern(const std::function<bool(const DecoderLayer&)>& test) const {
    std::vector<int> values;
    for (const DecoderLayer& layer : model_.layers) values.push_back(test(layer) ? 1 : 0);
    return values;
  }
  static bool all_equal(const std::vector<int>& values) {
    return std::ranges::adjacent_find(values, std::not_equal_to<>()) == values.end();
  }

  void set_sizes() {
    args_.num_layers = static_cast<std::int64_t>(model_.layers.size());
    args_.hidden_size = model_.hidden;
    args_.seq_length = model_.seq;
    args_.max_position_embeddings = std::max(model_.seq, model_.position_rows);
    args_.untie_embeddings_and_output_weights = !model_.tied;
    if (model_.mtp_layers > 0) args_.mtp_num_layers = model_.mtp_layers;
    other("--vocab-size", {fmt::to_string(model_.vocab)});
    for (const DecoderLayer& layer : model_.layers) {
      if (layer.norm != model_.final_norm) {
        return say("its norms are of two kinds, and --normalization names one");
      }
    }
    if (model_.final_norm == DecoderNorm::kRms) other("--normalization", {"RMSNorm"});
  }

  // All layers have the same attention, but for windows and whether they rotate.
  void set_attention() {
    const auto plain = [](DecoderAttention a) {
      a.window = 0;
      a.rotary_dim = 0;
      return a;
    };
    const DecoderAttention& a = first().attention;
    for (const DecoderLayer& layer : model_.layers) {
      if (plain(layer.attention) == plain(a)) continue;
      return say("its layers differ in heads, head width or other sizes of attention");
    }
    if (!a.causal) say("its attention sees later tokens");
    if (a.alibi) say("linear position biases (ALiBi) are no option of Megatron's");
    if (a.softcap > 0) say("attention logits cannot be capped");
    args_.num_attention_heads = a.heads;
    if (a.kv_lora > 0) return set_latent_attention(a);
    args_.kv_channels = a.head_dim;
    if (a.value_dim != a.head_dim) {
      say(fmt::format("heads of values are {} wide and those of queries {}", a.value_dim,
                      a.head_dim));
    }
    if (a.kv_heads != a.heads) {
      args_.group_query_attention = true;
      args_.num_query_groups = a.kv_heads;
    }
    if (a.qk_norm) other("--qk-layernorm");
    if (a.scale > 0) other("--softmax-scale", {fmt::to_string(a.scale)});
    if (a.sinks) other("--softmax-type", {"learnable"});
    if (a.unfused) other("--attention-backend", {"unfused"});
  }

  void set_latent_attention(const DecoderAttention& a) {
    args_.multi_latent_attention = true;
    const std::int64_t rotary = first().attention.rotary_dim;
    if (a.q_lora > 0) other("--q-lora-rank", {fmt::to_string(a.q_lora)});
    other("--kv-lora-rank", {fmt::to_string(a.kv_lora)});
    other("--qk-head-dim", {fmt::to_string(a.head_dim - rotary)});
    other("--qk-pos-emb-head-dim", {fmt::to_string(rotary)});
    other("--v-head-dim", {fmt::to_string(a.value_dim)});
    other("--qk-layernorm");  // The norms of the compressed vectors.
    if (a.sinks || a.scale > 0) {
      say("sinks and a scale of its own do not go with multi-head latent attention");
    }
    if (a.unfused) other("--attention-backend", {"unfused"});
  }

  void set_positions() {
    std::set<std::int64_t> widths;
    for (const DecoderLayer& layer : model_.layers) {
      if (layer.attention.rotary_dim > 0) widths.insert(layer.attention.rotary_dim);
    }
    if (widths.empty()) {
      args_.position_embedding_type = model_.position_rows > 0 ? "learned_absolute" : "none";
      return;
    }
    if (widths.size() > 1) return say("its layers rotate different parts of a head");
    if (model_.position_rows > 0) return say("it has both learned and rotary positions");
    args_.position_embedding_type = "rope";
    const DecoderAttention& a = first().attention;
    const std::vector<int> still =
        pattern([](const DecoderLayer& l) { return l.attention.rotary_dim == 0; });
    if (a.kv_lora > 0) {
      if (!all_equal(still)) say("some layers of multi-head latent attention do not rotate");
      return;
    }
    if (*widths.begin() != a.head_dim) {
      other("--rotary-percent", {fmt::format("{}", static_cast<double>(*widths.begin()) /
                                                       static_cast<double>(a.head_dim))});
    }
    if (!all_equal(still)) other("--no-rope-freq", {layer_pattern(still)});
  }

  // A window as long as the sequence hides nothing.
  void set_windows() {
    const auto window = [&](const DecoderLayer& l) {
      return l.attention.window < model_.seq ? l.attention.window : 0;
    };
    std::set<std::int64_t> windows;
    for (const DecoderLayer& layer : model_.layers) {
      if (window(layer) > 0) windows.insert(window(layer));
    }
    if (windows.empty()) return;
    if (windows.size() > 1) return say("its layers have windows of different lengths");
    if (args_.multi_latent_attention) {
      return say("windows do not go with multi-head latent attention");
    }
    // Keys to the left of the query and to its right.
    other("--window-size", {fmt::format("{},0", *windows.begin() - 1)});
    const auto windowed = pattern([&](const DecoderLayer& l) { return window(l) > 0; });
    if (!all_equal(windowed)) other("--window-attn-skip-freq", {layer_pattern(windowed)});
  }

  void set_activation(bool gated, const std::string& act) {
    if (gated && act == "silu") {
      args_.swiglu = true;
    } else if (gated && act == "quick_gelu") {
      other("--quick-geglu");
    } else if (gated && act == "clamped_silu") {
      // GPT-OSS: x sigmoid(1.702 x) (y + 1), clamped at 7.
      other("--quick-geglu");
      other("--activation-func-clamp-value", {"7.0"});
      other("--glu-linear-offset", {"1.0"});
    } else if (!gated && act == "relu_squared") {
      other("--squared-relu");
    } else if (gated || (act != "gelu" && act != "gelu_tanh")) {
      say(fmt::format("{} MLPs with {} are no option of Megatron's", gated ? "gated" : "plain",
                      act));
    }
  }

  void set_networks() {
    const DecoderMlp* dense = nullptr;
    const DecoderExperts* sparse = nullptr;
    for (const DecoderLayer& layer : model_.layers) {
      if (layer.mlp && dense == nullptr) dense = &*layer.mlp;
      if (layer.experts && sparse == nullptr) sparse = &*layer.experts;
    }
    for (const DecoderLayer& layer : model_.layers) {
      if ((layer.mlp && *layer.mlp != *dense) || (layer.experts && *layer.experts != *sparse)) {
        return say("its layers differ in the width or kind of the MLP");
      }
    }
    const DecoderMlp& mlp = dense != nullptr ? *dense : sparse->expert;
    args_.ffn_hidden_size = mlp.ffn;
    if (sparse != nullptr) {
      if (mlp.gated != sparse->expert.gated || mlp.act != sparse->expert.act) {
        say("experts have another activation than dense layers");
      }
      set_experts(*sparse);
    }
    set_activation(mlp.gated, mlp.act);
  }

  void set_experts(const DecoderExperts& e) {
    args_.num_experts = e.experts;
    args_.moe_ffn_hidden_size = e.expert.ffn;
    args_.moe_grouped_gemm = true;
    args_.moe_token_dispatcher_type = "alltoall";
    other("--moe-router-topk", {fmt::to_string(e.top_k)});
    const auto routed = pattern([](const DecoderLayer& l) { return l.experts.has_value(); });
    if (!all_equal(routed)) other("--moe-layer-freq", {layer_pattern(routed)});
    if (e.score == "sigmoid") {
      other("--moe-router-score-function", {"sigmoid"});
      // Of a sigmoid router the bias only corrects the choice (DeepSeek-V3).
      if (e.router_bias) other("--moe-router-enable-expert-bias");
    } else if (e.router_bias != e.expert.bias) {
      say("the router has a bias and the experts have none, or the other way round");
    }
    // A softmax over one chosen expert would have no gradient.
    if (e.score == "softmax" && e.top_k == 1) other("--moe-router-pre-softmax");
    if (e.groups > 1) {
      other("--moe-router-num-groups", {fmt::to_string(e.groups)});
      other("--moe-router-group-topk",
            {fmt::to_string(e.top_groups > 0 ? e.top_groups : e.groups)});
    }
    if (e.shared_ffn > 0) {
      args_.moe_shared_expert_intermediate_size = e.shared_ffn;
      if (e.shared_gate) other("--moe-shared-expert-gate");
      if (e.expert.bias) say("shared experts do not go with biases");
    }
  }

  // Megatron has biases in all linears of a layer, in none, or in those of queries, keys and
  // values.
  void set_biases() {
    std::set<bool> out, qkv, mlp;
    for (const DecoderLayer& layer : model_.layers) {
      qkv.insert(layer.attention.qkv_bias);
      out.insert(layer.attention.out_bias);
      mlp.insert(layer.mlp ? layer.mlp->bias : layer.experts->expert.bias);
    }
    const auto whole = [](const std::set<bool>& s, bool value) {
      return s.size() == 1 && *s.begin() == value;
    };
    const bool all = whole(qkv, true) && whole(out, true) && whole(mlp, true);
    if (all && !args_.multi_latent_attention) return;
    if (!whole(out, false) || !whole(mlp, false) || qkv.size() != 1) {
      return say("biases are in some of its linears, other than those of queries, keys and values");
    }
    args_.disable_bias_linear = true;
    if (whole(qkv, false)) return;
    if (args_.multi_latent_attention) {
      return say("projections of multi-head latent attention have biases");
    }
    other("--add-qkv-bias");
  }

  void set_dropout() {
    const double hidden = first().dropout, attention = first().attention.dropout;
    for (const DecoderLayer& layer : model_.layers) {
      if (layer.dropout == hidden) continue;
      return say("its layers differ in dropout");
    }
    if (model_.embedding_dropout != hidden) {
      say(fmt::format("dropout is {} behind the embedding and {} in the layers",
                      model_.embedding_dropout, hidden));
    }
    // Megatron's defaults are 0.1.
    other("--hidden-dropout", {fmt::to_string(hidden)});
    other("--attention-dropout", {fmt::to_string(attention)});
  }

  const DecoderModel& model_;
  MegatronArgs& args_;
  std::vector<std::string> faults_;
};

std::string print_runs(const std::vector<int>& values, std::size_t end) {
  std::string text;
  for (std::size_t i = 0; i < end;) {
    std::size_t j = i;
    while (j < end && values[j] == values[i]) ++j;
    text += fmt::format("{}[{}]", text.empty() ? "" : "+", values[i]);
    if (j - i > 1) text += fmt::format("*{}", j - i);
    i = j;
  }
  return "(" + text + ")";
}

}  // namespace

std::string layer_pattern(const std::vector<int>& values) {
  // The shortest part that the whole repeats.
  for (std::size_t period = 1; period < values.size(); ++period) {
    if (values.size() % period != 0) continue;
    bool repeats = true;
    for (std::size_t i = period; repeats && i < values.size(); ++i) {
      repeats = values[i] == values[i - period];
    }
    if (repeats) {
      return fmt::format("{}*{}", print_runs(values, period), values.size() / period);
    }
  }
  return print_runs(values, values.size());
}

std::vector<std::string> set_megatron_model(const DecoderModel& model, MegatronArgs& args) {
  return ModelOptions(model, args).set();
}

}  // namespace meshwright
