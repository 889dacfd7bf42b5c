// Recognizes a pre-norm transformer layer by its dataflow: from the one attention operator forward
// to the residual and back to the norm, then the network between the second norm and the second
// residual. Every operator must have been met on the way.
#include "emit/decoder_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace meshwright {
namespace {

constexpr std::array<std::string_view, 8> kActivations = {
    "gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "relu_squared", "tanh", "sigmoid"};

bool is_norm(const Op& op) { return op.kind == "rms_norm" || op.kind == "layer_norm"; }

class LayerReader {
 public:
  LayerReader(const Graph& graph, int first, int last) : walk_(graph, first, last) {}

  LayerReading read() {
    const auto cores = walk_.of_kind("attention");
    if (cores.size() != 1)
      throw Unreadable{fmt::format("it has {} attention operators", cores.size())};
    const auto incoming = walk_.incoming();
    if (incoming.size() != 1) {
      throw Unreadable{fmt::format("it reads {} values of other layers, not 1", incoming.size())};
    }
    LayerReading reading;
    reading.input = incoming[0];
    const Op& core = *cores[0];

    const ValueId normed = norm_of(reading.input, "the attention", layer_.norm);
    read_core(core);
    read_projections(core, normed);
    const ValueId middle = residual(reading.input, attention_result(core), "attention");

    DecoderNorm second = layer_.norm;
    const ValueId normed_again = norm_of(middle, "the MLP", second);
    if (second != layer_.norm) throw Unreadable{"its two norms differ in kind"};
    const Op& sum = residual_of(middle, "MLP");
    read_network(branch(sum, middle), normed_again);
    reading.output = sum.outputs[0];
    walk_.expect_all_taken();
    reading.layer = std::move(layer_);
    return reading;
  }

 private:
  // The norm that reads the residual stream `x`; the only other reader is a sum.
  ValueId norm_of(ValueId x, std::string_view before, DecoderNorm& kind) {
    const auto readers = walk_.readers(x);
    const auto norms = std::ranges::count_if(readers, [](const Op* op) { return is_norm(*op); });
    const auto others = std::ranges::find_if(
        readers, [](const Op* op) { return !is_norm(*op) && op->kind != "add"; });
    if (others != readers.end()) {
      throw Unreadable{fmt::format("{} reads the residual stream, without a norm before {}",
                                   describe(**others), before)};
    }
    if (norms == 2) throw Unreadable{"attention and MLP run in parallel, each with its norm"};
    if (norms != 1) throw Unreadable{fmt::format("there is no norm before {}", before)};
    const Op& norm = **std::ranges::find_if(readers, [](const Op* op) { return is_norm(*op); });
    kind = read_norm(walk_, norm);
    return norm.outputs[0];
  }

  // The sum that closes the residual connection of stream `x`.
  const Op& residual_of(ValueId x, std::string_view what) {
    for (const Op* op : walk_.readers(x)) {
      if (op->kind != "add") continue;
      walk_.take(*op);
      return *op;
    }
    throw Unreadable{fmt::format("there is no residual connection around the {}", what)};
  }

  static ValueId branch(const Op& sum, ValueId x) {
    return sum.inputs[0] == x ? sum.inputs[1] : sum.inputs[0];
  }

  // Past a dropout of a sublayer's result.
  ValueId before_dropout(ValueId value, bool first) {
    double p = 0;
    const Op* op = walk_.maker(value);
    if (op != nullptr && op->kind == "dropout") {
      walk_.take(*op);
      p = attr_float(op->attrs, "p", 0);
      value = op->inputs[0];
    }
    if (!first && p != layer_.dropout) throw Unreadable{"its two sublayers differ in dropout"};
    layer_.dropout = p;
    return value;
  }

  // Checks that `result` reaches the residual sum over `x`; gives the stream behind it.
  ValueId residual(ValueId x, ValueId result, std::string_view what) {
    const Op& sum = residual_of(x, what);
    const ValueId into = branch(sum, x);
    if (const Op* op = walk_.maker(into); op != nullptr && op->kind == "add") {
      throw Unreadable{"attention and MLP run in parallel"};
    }
    const ValueId got = before_dropout(into, true);
    if (got == result) return sum.outputs[0];
    const Op* op = walk_.maker(got);
    throw Unreadable{fmt::format("the result of the {} passes through {}", what,
                                 op == nullptr ? "another layer" : describe(*op))};
  }

  void read_core(const Op& core) {
    walk_.take(core);
    DecoderAttention& a = layer_.attention;
    const TensorType& q = walk_.type(core.inputs[0]);
    a.heads = q.dims[2].size;
    a.head_dim = q.dims[3].size;
    a.kv_heads = walk_.type(core.inputs[1]).dims[2].size;
    a.value_dim = walk_.type(core.inputs[2]).dims[3].size;
    a.causal = attr_bool(core.attrs, "causal", false);
    a.window = attr_int(core.attrs, "window", 0);
    a.alibi = attr_bool(core.attrs, "alibi", false);
    a.sinks = attr_bool(core.attrs, "sinks", core.inputs.size() > 3);
    a.unfused = attr_string(core.attrs, "kernel", "flash") != "flash";
    a.softcap = attr_float(core.attrs, "softcap", 0);
    a.scale = attr_float(core.attrs, "scale", 0);
    a.dropout = attr_float(core.attrs, "dropout", 0);
    if (core.inputs.size() > (a.sinks ? 4U : 3U)) {
      throw Unreadable{"a position bias is added to the attention scores"};
    }
  }

  void note_rope(const Op& op) {
    const std::int64_t dim =
        attr_int(op.attrs, "rotary_dim", walk_.type(op.inputs[0]).dims.back().size);
    if (layer_.attention.rotary_dim != 0 && layer_.attention.rotary_dim != dim) {
      throw Unreadable{"queries and keys are rotated differently"};
    }
    layer_.attention.rotary_dim = dim;
  }

  // From an attention operand back to its linear. Notes rotations and norms of heads on the way.
  const Op& projection(ValueId value, std::string_view what, bool& normed, bool& rotated) {
    while (true) {
      const Op* op = walk_.maker(value);
      if (op == nullptr) throw Unreadable{fmt::format("its {} come from elsewhere", what)};
      if (op->kind == "rope") {
        note_rope(*op);
        rotated = true;
      } else if (is_norm(*op)) {
        if (walk_.type(op->inputs[0]).rank() != 4) {
          throw Unreadable{fmt::format("{} normalizes all heads at once", describe(*op))};
        }
        if (read_norm(walk_, *op) != layer_.norm) {
          throw Unreadable{
              fmt::format("{} is another kind of norm than the layer's", describe(*op))};
        }
        normed = true;
      } else if (op->kind != "reshape" && op->kind != "linear") {
        throw Unreadable{fmt::format("its {} pass through {}", what, describe(*op))};
      }
      walk_.take(*op);
      if (op->kind == "linear") return *op;
      value = op->inputs[0];
    }
  }

  static bool biased(const Op& linear) { return linear.inputs.size() > 2; }

  void expect_input(const Op& op, ValueId input) {
    if (op.inputs[0] == input) return;
    throw Unreadable{fmt::format("{} does not read the layer's norm", describe(op))};
  }

  void read_projections(const Op& core, ValueId normed) {
    DecoderAttention& a = layer_.attention;
    bool q_norm = false, k_norm = false, v_norm = false;
    bool q_rope = false, k_rope = false, v_rope = false;
    const Op& q = projection(core.inputs[0], "queries", q_norm, q_rope);
    a.qkv_bias = biased(q);
    if (q.inputs[0] != normed) {
      const Op* norm = walk_.maker(q.inputs[0]);
      if (norm == nullptr || !is_norm(*norm)) expect_input(q, normed);
      if (norm->kind != "rms_norm") throw Unreadable{"compressed queries have no RMS norm"};
      walk_.take(*norm);
      const Op& down = walk_.take_maker(norm->inputs[0], "linear", "the compressed query");
      expect_input(down, normed);
      a.q_lora = walk_.type(down.outputs[0]).dims.back().size;
      a.qkv_bias |= biased(down);
    }
    if (const Op* k = walk_.maker(core.inputs[1]); k != nullptr && k->kind == "concat") {
      read_latent(core, normed);
      return;
    }
    if (a.q_lora != 0) throw Unreadable{"queries are compressed but keys and values are not"};
    const Op& k = projection(core.inputs[1], "keys", k_norm, k_rope);
    const Op& v = projection(core.inputs[2], "values", v_norm, v_rope);
    expect_input(k, normed);
    expect_input(v, normed);
    if (biased(k) != a.qkv_bias || biased(v) != a.qkv_bias) {
      throw Unreadable{"projections of queries, keys and values differ in biases"};
    }
    if (q_norm != k_norm || v_norm || q_rope != k_rope || v_rope) {
      throw Unreadable{"queries and keys are not treated alike"};
    }
    a.qk_norm = q_norm;
  }

  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 section 2.1): everything between the
  // layer's norm and the attention's keys and values.
  void read_latent(const Op& core, ValueId normed) {
    DecoderAttention& a = layer_.attention;
    std::vector<ValueId> open = {core.inputs[1], core.inputs[2]};
    std::set<const Op*> linears, norms;
    const Op* up = nullptr;
    std::set<const Op*> seen;
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      if (value == normed) continue;
      const Op* op = walk_.maker(value);
      if (op == nullptr) throw Unreadable{"its keys come from elsewhere"};
      if (!seen.insert(op).second) continue;
      if (op->kind == "linear") {
        linears.insert(op);
        if (op->inputs[0] != normed) up = op;
        a.qkv_bias |= biased(*op);
      } else if (op->kind == "rms_norm") {
        norms.insert(op);
      } else if (op->kind == "rope") {
        note_rope(*op);
      } else if (op->kind != "concat" && op->kind != "slice" && op->kind != "reshape") {
        throw Unreadable{fmt::format("its keys pass through {}", describe(*op))};
      }
      walk_.take(*op);
      const auto operands = op->kind == "concat" ? op->inputs.size() : 1;
      open.insert(open.end(), op->inputs.begin(),
                  op->inputs.begin() + static_cast<std::ptrdiff_t>(operands));
    }
    if (linears.size() != 2 || norms.size() != 1 || up == nullptr) {
      throw Unreadable{"its keys and values are not those of multi-head latent attention"};
    }
    a.kv_lora = walk_.type(up->inputs[0]).dims.back().size;
    a.kv_heads = a.heads;
  }

  ValueId attention_result(const Op& core) {
    const auto readers = walk_.readers(core.outputs[0]);
    if (readers.size() != 1 || readers[0]->kind != "reshape") {
      throw Unreadable{"the attention's heads are not merged"};
    }
    walk_.take(*readers[0]);
    const auto after = walk_.readers(readers[0]->outputs[0]);
    if (after.size() != 1 || after[0]->kind != "linear") {
      throw Unreadable{fmt::format("the attention's result passes through {}",
                                   after.empty() ? "nothing" : describe(*after[0]))};
    }
    walk_.take(*after[0]);
    layer_.attention.out_bias = biased(*after[0]);
    return after[0]->outputs[0];
  }

  // down(act(up x)) or down(act(gate x) * up x), of plain or of grouped linears.
  DecoderMlp read_mlp(ValueId result, ValueId input, std::string_view linear) {
    DecoderMlp mlp;
    const Op& down = walk_.take_maker(result, linear, "the result of the MLP");
    mlp.bias = biased(down);
    const Op* act = walk_.maker(down.inputs[0]);
    if (act == nullptr) throw Unreadable{"the MLP has no activation"};
    if (act->kind == "gated") {
      mlp.gated = true;
      mlp.act = attr_string(act->attrs, "act", "silu");
    } else if (std::ranges::find(kActivations, act->kind) != kActivations.end()) {
      mlp.act = act->kind;
    } else {
      throw Unreadable{fmt::format("the MLP passes through {}", describe(*act))};
    }
    walk_.take(*act);
    mlp.ffn = walk_.type(act->outputs[0]).dims.back().size;
    for (ValueId operand : act->inputs) {
      const Op& up = walk_.take_maker(operand, linear, "the MLP's inner value");
      expect_input(up, input);
      if (biased(up) != mlp.bias) throw Unreadable{"linears of the MLP differ in biases"};
    }
    return mlp;
  }

  ValueId read_routed(const Op& combine, ValueId input) {
    DecoderExperts e;
    walk_.take(combine);
    const Op& router = walk_.take_maker(combine.inputs[1], "moe_router", "the routing");
    expect_input(router, input);
    e.experts = walk_.type(router.outputs[0]).dims.back().size;
    e.top_k = attr_int(router.attrs, "top_k", 1);
    e.score = attr_string(router.attrs, "score", "softmax");
    e.router_bias = biased(router);
    e.groups = attr_int(router.attrs, "groups", 0);
    e.top_groups = attr_int(router.attrs, "top_k_groups", 0);
    const auto dispatches = walk_.of_kind("moe_dispatch");
    if (dispatches.size() != 1) throw Unreadable{"tokens are not dispatched once"};
    walk_.take(*dispatches[0]);
    expect_input(*dispatches[0], input);
    e.expert = read_mlp(combine.inputs[0], dispatches[0]->outputs[0], "grouped_linear");
    layer_.experts = std::move(e);
    return combine.outputs[0];
  }

  // What every token passes besides its experts, perhaps times sigmoid of a projection to one.
  void read_shared(ValueId value, ValueId input) {
    DecoderExperts& e = *layer_.experts;
    const Op* op = walk_.maker(value);
    if (op != nullptr && op->kind == "mul" && op->inputs.size() == 2) {
      walk_.take(*op);
      const Op* second = walk_.maker(op->inputs[1]);
      const bool gate_second = second != nullptr && second->kind == "sigmoid";
      const ValueId gate = op->inputs[gate_second ? 1 : 0];
      value = op->inputs[gate_second ? 0 : 1];
      const Op& sigmoid = walk_.take_maker(gate, "sigmoid", "the gate of the shared experts");
      const Op& linear =
          walk_.take_maker(sigmoid.inputs[0], "linear", "the gate of the shared experts");
      expect_input(linear, input);
      if (biased(linear)) throw Unreadable{"the gate of the shared experts has a bias"};
      e.shared_gate = true;
    }
    const DecoderMlp shared = read_mlp(value, input, "linear");
    if (shared.bias) throw Unreadable{"shared experts have biases"};
    if (shared.gated != e.expert.gated || shared.act != e.expert.act) {
      throw Unreadable{"shared experts have another activation than the others"};
    }
    e.shared_ffn = shared.ffn;
  }

  void read_network(ValueId value, ValueId input) {
    value = before_dropout(value, false);
    const Op* last = walk_.maker(value);
    if (last == nullptr) throw Unreadable{"the second residual adds a value of elsewhere"};
    if (last->kind == "moe_combine") {
      read_routed(*last, input);
    } else if (last->kind == "add") {
      walk_.take(*last);
      const Op* a = walk_.maker(last->inputs[0]);
      const Op* b = walk_.maker(last->inputs[1]);
      if (a != nullptr && a->kind == "moe_combine") {
        read_routed(*a, input);
        read_shared(last->inputs[1], input);
      } else if (b != nullptr && b->kind == "moe_combine") {
        read_routed(*b, input);
        read_shared(last->inputs[0], input);
      } else {
        throw Unreadable{"attention and MLP run in parallel"};
      }
    } else {
      layer_.mlp = read_mlp(value, input, "linear");
    }
  }

  GraphWalk walk_;
  DecoderLayer layer_;
};

}  // namespace

DecoderNorm read_norm(GraphWalk& walk, const Op& op) {
  const bool rms = op.kind == "rms_norm";
  if ((rms && op.inputs.size() != 2) || (!rms && op.inputs.size() != 3)) {
    throw Unreadable{fmt::format("{} lacks its weight{}", describe(op), rms ? "" : " or bias")};
  }
  walk.take(op);
  return rms ? DecoderNorm::kRms : DecoderNorm::kLayer;
}

LayerReading read_decoder_layer(const Graph& graph, int first, int last) {
  return LayerReader(graph, first, last).read();
}

}  // namespace meshwright
