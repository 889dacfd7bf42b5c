#include "import/hf/blocks.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright::hf {
namespace {

Dim heads_dim(std::string_view name, std::int64_t heads, std::int64_t head_dim) {
  return {std::string(name), heads * head_dim, head_dim};
}

Dim last_dim(GraphBuilder& b, ValueId x) { return b.type(x).dims.back(); }

ValueId rope(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t rotary_dim) {
  Attrs attrs;
  if (rotary_dim != last_dim(b, x).size) attrs["rotary_dim"] = rotary_dim;
  return b.op("rope", name, {x}, std::move(attrs));
}

ValueId slice(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t start,
              std::int64_t length) {
  const std::int64_t dim = b.type(x).rank() - 1;
  return b.op("slice", name, {x}, {{"dim", dim}, {"start", start}, {"length", length}});
}

// Normalizes every head of [batch, seq, heads, head_dim], or all heads of the flat form.
ValueId head_norm(GraphBuilder& b, const AttentionSpec& spec, std::string_view name, ValueId x) {
  if (spec.qk_norm != QkNorm::kEachHead) return norm(b, spec.qk_norm_kind, name, x);
  // A weight per head: normalize without one, then scale.
  const bool rms = spec.qk_norm_kind == NormKind::kRms;
  const auto& dims = b.type(x).dims;
  const ValueId unit = norm(b, rms ? NormKind::kRmsUnscaled : NormKind::kLayerUnscaled, name, x);
  const ValueId weight = b.parameter(fmt::format("{}.weight", name), {dims[2], dims[3]});
  return b.op("mul", fmt::format("{}.scale", name), {unit, weight});
}

struct Heads {
  ValueId q, k, v;
};

ValueId project(GraphBuilder& b, std::string_view name, ValueId x, Dim out, bool bias,
                const AttentionSpec& spec, std::string_view norm_name) {
  const std::int64_t head_dim = out.unit;
  ValueId y = b.linear(name, x, std::move(out), bias);
  const bool normed = spec.qk_norm != QkNorm::kNone && !norm_name.empty();
  if (normed && spec.qk_norm == QkNorm::kFlat) y = head_norm(b, spec, norm_name, y);
  y = split_heads(b, fmt::format("{}.heads", name), y, head_dim);
  if (normed && spec.qk_norm != QkNorm::kFlat) y = head_norm(b, spec, norm_name, y);
  return y;
}

Heads plain_heads(GraphBuilder& b, ValueId x, ValueId memory, const AttentionSpec& spec,
                  const AttentionNames& names) {
  const std::int64_t value_dim = spec.value_dim > 0 ? spec.value_dim : spec.head_dim;
  const std::string_view kv = spec.kv_heads == spec.heads ? "heads" : "kv_heads";
  Heads h;
  h.q = project(b, names.q, x, heads_dim("heads", spec.heads, spec.head_dim), spec.q_bias, spec,
                names.q_norm);
  h.k = project(b, names.k, memory, heads_dim(kv, spec.kv_heads, spec.head_dim), spec.k_bias, spec,
                names.k_norm);
  h.v = project(b, names.v, memory, heads_dim(kv, spec.kv_heads, value_dim), spec.v_bias, spec, "");
  if (spec.rotary_dim > 0) {
    h.q = rope(b, fmt::format("{}.rope", names.q), h.q, spec.rotary_dim);
    h.k = rope(b, fmt::format("{}.rope", names.k), h.k, spec.rotary_dim);
  }
  return h;
}

// Multi-head latent attention, as trained (nothing absorbed): keys and values come from one
// compressed vector per token, and all heads share one rotated key part.
Heads latent_heads(GraphBuilder& b, ValueId x, const AttentionSpec& spec) {
  const std::int64_t nope = spec.head_dim - spec.rotary_dim;
  Heads h;
  ValueId q = x;
  if (spec.q_lora > 0) {
    q = b.linear("q_a_proj", q, {"q_lora", spec.q_lora, 1}, spec.q_bias);
    q = b.rms_norm("q_a_layernorm", q);
  }
  const Dim q_dim = heads_dim("heads", spec.heads, spec.head_dim);
  const std::string q_name = spec.q_lora > 0 ? "q_b_proj" : "q_proj";
  q = b.linear(q_name, q, q_dim, false);
  q = split_heads(b, q_name + ".heads", q, spec.head_dim);
  if (spec.rotary_dim > 0) q = rope(b, q_name + ".rope", q, spec.rotary_dim);
  h.q = q;

  const Dim compressed{"kv_lora", spec.kv_lora + spec.rotary_dim, 1};
  const ValueId a = b.linear("kv_a_proj_with_mqa", x, compressed, spec.k_bias);
  const ValueId latent =
      b.rms_norm("kv_a_layernorm", slice(b, "kv_a_proj_with_mqa.latent", a, 0, spec.kv_lora));
  ValueId kv =
      b.linear("kv_b_proj", latent, heads_dim("heads", spec.heads, nope + spec.value_dim), false);
  kv = split_heads(b, "kv_b_proj.heads", kv, nope + spec.value_dim);
  const ValueId k_nope = slice(b, "kv_b_proj.k", kv, 0, nope);
  h.v = slice(b, "kv_b_proj.v", kv, nope, spec.value_dim);
  h.k = k_nope;
  if (spec.rotary_dim > 0) {
    ValueId shared = slice(b, "kv_a_proj_with_mqa.rotary", a, spec.kv_lora, spec.rotary_dim);
    shared =
        b.op("reshape", "kv_a_proj_with_mqa.head", {shared},
             {{"pattern", std::string("b s d -> b s 1 d")}, {"names", std::string("d=head_dim")}});
    shared = rope(b, "kv_a_proj_with_mqa.rope", shared, spec.rotary_dim);
    // One rotated part serves every head.
    h.k = b.op("concat", "k", {k_nope, shared}, {{"dim", std::int64_t{3}}});
  }
  return h;
}

ValueId activate(GraphBuilder& b, std::string_view name, std::string_view act, ValueId x) {
  return b.op(act, name, {x});
}

ValueId gate(GraphBuilder& b, std::string_view name, std::string_view act, ValueId gate_value,
             ValueId up) {
  Attrs attrs;
  if (act != "silu") attrs["act"] = std::string(act);
  return b.op("gated", name, {gate_value, up}, std::move(attrs));
}

ValueId grouped(GraphBuilder& b, std::string_view name, ValueId x, Dim out, bool bias) {
  const Dim experts = b.type(x).dims.front();
  const Dim in = last_dim(b, x);
  std::vector<ValueId> inputs = {x,
                                 b.parameter(fmt::format("{}.weight", name), {experts, out, in})};
  if (bias) inputs.push_back(b.parameter(fmt::format("{}.bias", name), {experts, out}));
  return b.op("grouped_linear", name, std::move(inputs));
}

ValueId experts_block(GraphBuilder& b, ValueId x, const MoeSpec& spec, const MoeNames& names) {
  const Dim hidden = last_dim(b, x);
  const Dim experts{"experts", spec.experts, 1};
  std::vector<ValueId> routed = {x, b.parameter(names.router + ".weight", {experts, hidden})};
  if (spec.router_bias) routed.push_back(b.parameter(names.router + ".bias", {experts}));
  Attrs attrs{{"top_k", spec.top_k}};
  if (spec.score != "softmax") attrs["score"] = spec.score;
  if (spec.groups > 1) attrs["groups"] = spec.groups;
  if (spec.groups > 1 && spec.top_groups > 0) attrs["top_k_groups"] = spec.top_groups;
  const ValueId probs = b.op("moe_router", names.router, std::move(routed), std::move(attrs));

  const auto scope = b.scope(names.experts);
  ValueId y = b.op("moe_dispatch", "dispatch", {x, probs}, {{"top_k", spec.top_k}});
  const Dim ffn{"expert_ffn", spec.ffn, 1};
  if (spec.gated) {
    const ValueId g = grouped(b, names.mlp.gate, y, ffn, spec.expert_bias);
    const ValueId u = grouped(b, names.mlp.up, y, ffn, spec.expert_bias);
    y = gate(b, "act", spec.act, g, u);
  } else {
    y = activate(b, "act", spec.act, grouped(b, names.mlp.up, y, ffn, spec.expert_bias));
  }
  y = grouped(b, names.mlp.down, y, hidden, spec.expert_bias);
  return b.op("moe_combine", "combine", {y, probs}, {{"top_k", spec.top_k}});
}

}  // namespace

ValueId norm(GraphBuilder& b, NormKind kind, std::string_view name, ValueId x) {
  switch (kind) {
    case NormKind::kNone:
      return x;
    case NormKind::kRms:
      return b.rms_norm(name, x);
    case NormKind::kLayer:
      return b.layer_norm(name, x, true);
    case NormKind::kLayerNoBias:
      return b.layer_norm(name, x, false);
    case NormKind::kLayerUnscaled:
      return b.op("layer_norm", name, {x});
    case NormKind::kRmsUnscaled:
      return b.op("rms_norm", name, {x});
  }
  throw InternalError("unknown norm");
}

ValueId attention_block(GraphBuilder& b, const AttentionInputs& inputs, const AttentionSpec& spec,
                        const AttentionNames& names, const ImportOptions& options) {
  const ValueId memory = inputs.memory.valid() ? inputs.memory : inputs.x;
  const Heads h = spec.kv_lora > 0 ? latent_heads(b, inputs.x, spec)
                                   : plain_heads(b, inputs.x, memory, spec, names);
  std::vector<ValueId> operands = {h.q, h.k, h.v};
  Attrs attrs{{"kernel", options.attention}};
  if (spec.causal) attrs["causal"] = true;
  if (spec.window > 0) attrs["window"] = spec.window;
  if (spec.alibi) attrs["alibi"] = true;
  if (spec.softcap > 0) attrs["softcap"] = spec.softcap;
  if (spec.scale > 0) attrs["scale"] = spec.scale;
  if (options.dropout && spec.dropout > 0) attrs["dropout"] = spec.dropout;
  if (inputs.bias.valid()) operands.push_back(inputs.bias);
  if (spec.sinks) {
    operands.push_back(b.parameter("sinks", {{"heads", spec.heads, 1}}));
    attrs["sinks"] = true;
  }
  ValueId y = b.op("attention", "core", std::move(operands), std::move(attrs));
  y = merge_heads(b, "core.flat", y);
  if (spec.output_gate) {
    const Dim flat = last_dim(b, y);
    const ValueId g = b.linear(names.q + ".gate", inputs.x, flat, spec.q_bias);
    y = gate(b, "core.gate", "sigmoid", g, y);
  }
  if (!spec.output) return y;
  return b.linear(names.o, y, last_dim(b, inputs.x), spec.o_bias);
}

ValueId mlp_block(GraphBuilder& b, ValueId x, const MlpSpec& spec, const MlpNames& names) {
  const Dim hidden = last_dim(b, x);
  const Dim ffn{"ffn", spec.ffn, 1};
  ValueId y;
  if (spec.gated) {
    const ValueId g = b.linear(names.gate, x, ffn, spec.up_bias);
    const ValueId u = b.linear(names.up, x, ffn, spec.up_bias);
    y = gate(b, "act", spec.act, g, u);
  } else {
    y = activate(b, "act", spec.act, b.linear(names.up, x, ffn, spec.up_bias));
  }
  return b.linear(names.down, y, hidden, spec.down_bias);
}

ValueId moe_block(GraphBuilder& b, ValueId x, const MoeSpec& spec, const MoeNames& names) {
  const ValueId routed = experts_block(b, x, spec, names);
  if (spec.shared_ffn == 0) return routed;
  ValueId shared;
  {
    const auto scope = b.scope(names.shared);
    const MlpSpec mlp{.ffn = spec.shared_ffn, .gated = spec.gated, .act = spec.act};
    shared = mlp_block(b, x, mlp, names.mlp);
  }
  if (spec.shared_gate) {
    ValueId g = b.linear(names.shared_gate, x, {"gate", 1, 1}, false);
    g = activate(b, names.shared_gate + ".act", "sigmoid", g);
    shared = b.op("mul", names.shared_gate + ".mul", {shared, g});
  }
  return b.op("add", "experts_sum", {routed, shared});
}

ValueId split_heads(GraphBuilder& b, std::string_view name, ValueId x, std::int64_t head_dim) {
  return b.op("reshape", name, {x},
              {{"pattern", std::string("b s (h d) -> b s h d")},
               {"sizes", fmt::format("d={}", head_dim)},
               {"names", std::string("d=head_dim")}});
}

ValueId merge_heads(GraphBuilder& b, std::string_view name, ValueId x) {
  return b.op("reshape", name, {x}, {{"pattern", std::string("b s h d -> b s (h d)")}});
}

ValueId dropout(GraphBuilder& b, std::string_view name, ValueId x, double p,
                const ImportOptions& options) {
  return options.dropout && p > 0 ? b.op("dropout", name, {x}, {{"p", p}}) : x;
}

std::string_view activation_kind(std::string_view hidden_act) {
  struct Activation {
    std::string_view name, kind;
  };
  // Names of the library's table of activations (ACT2FN).
  constexpr Activation kActivations[] = {
      {"gelu", "gelu"},
      {"gelu_python", "gelu"},
      {"gelu_10", "gelu"},
      {"gelu_new", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"},
      {"gelu_accurate", "gelu_tanh"},
      {"gelu_python_tanh", "gelu_tanh"},
      {"gelu_pytorch_tanh", "gelu_tanh"},
      {"quick_gelu", "quick_gelu"},
      {"silu", "silu"},
      {"swish", "silu"},
      {"relu", "relu"},
      {"relu2", "relu_squared"},
      {"tanh", "tanh"},
      {"sigmoid", "sigmoid"},
  };
  for (const Activation& a : kActivations) {
    if (a.name == hidden_act) return a.kind;
  }
  return {};
}

}  // namespace meshwright::hf
