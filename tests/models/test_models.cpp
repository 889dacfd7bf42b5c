#include "models/test_models.h"

#include <fmt/format.h>

#include "ops/builder.h"

namespace meshwright {
namespace {

ValueId attention(GraphBuilder& b, ValueId x, const TestModelSizes& z) {
  const auto scope = b.scope("attn");
  const auto heads = [&](const char* name, std::int64_t n, const char* dim) {
    const ValueId flat = b.linear(name, x, {dim, n * z.head_dim, z.head_dim}, false);
    return b.op("reshape", fmt::format("{}.heads", name), {flat},
                {{"pattern", std::string("b s (h head_dim) -> b s h head_dim")},
                 {"sizes", fmt::format("head_dim={}", z.head_dim)}});
  };
  const ValueId q = b.op("rope", "q_rope", {heads("q_proj", z.heads, "heads")});
  const ValueId k = b.op("rope", "k_rope", {heads("k_proj", z.kv_heads, "kv_heads")});
  const ValueId v = heads("v_proj", z.kv_heads, "kv_heads");
  const ValueId y = b.op("attention", "core", {q, k, v}, {{"causal", true}});
  const ValueId flat = b.op("reshape", "merge", {y},
                            {{"pattern", std::string("b s h head_dim -> b s (h head_dim)")}});
  return b.linear("o_proj", flat, {"hidden", z.hidden, 1}, false);
}

ValueId mlp(GraphBuilder& b, ValueId x, const TestModelSizes& z) {
  const auto scope = b.scope("mlp");
  if (z.experts == 0) {
    const ValueId gate = b.linear("gate", x, {"ffn", z.ffn, 1}, false);
    const ValueId up = b.linear("up", x, {"ffn", z.ffn, 1}, false);
    return b.linear("down", b.op("gated", "act", {gate, up}), {"hidden", z.hidden, 1}, false);
  }
  const Dim experts{"experts", z.experts, 1};
  const Dim ffn{"expert_ffn", z.ffn, 1};
  const Dim hidden{"hidden", z.hidden, 1};
  const ValueId router = b.parameter("router.weight", {experts, hidden});
  const ValueId probs = b.op("moe_router", "router", {x, router}, {{"top_k", z.top_k}});
  const ValueId tokens = b.op("moe_dispatch", "dispatch", {x, probs}, {{"top_k", z.top_k}});
  const auto grouped = [&](const char* name, ValueId in, Dim to, Dim from) {
    const ValueId w =
        b.parameter(fmt::format("{}.weight", name), {experts, std::move(to), std::move(from)});
    return b.op("grouped_linear", name, {in, w});
  };
  const ValueId gate = grouped("gate", tokens, ffn, hidden);
  const ValueId up = grouped("up", tokens, ffn, hidden);
  const ValueId down = grouped("down", b.op("gated", "act", {gate, up}), hidden, ffn);
  return b.op("moe_combine", "combine", {down, probs}, {{"top_k", z.top_k}});
}

}  // namespace

Graph test_model(const TestModelSizes& z) {
  GraphBuilder b("test");
  const Dim batch{"batch", z.batch, 1};
  const Dim seq{"seq", z.seq, 1};
  const ValueId ids = b.input("ids", {DType::kI64, {batch, seq}});
  const ValueId labels = b.input("labels", {DType::kI64, {batch, seq}});
  const ValueId table =
      b.parameter("embed.weight", {{"vocab", z.vocab, 1}, {"hidden", z.hidden, 1}});
  ValueId x = b.op("embedding", "embed", {ids, table});
  for (std::int64_t layer = 0; layer < z.layers; ++layer) {
    const auto scope = b.scope(fmt::format("layers.{}", layer));
    x = b.op("add", "add1", {x, attention(b, b.rms_norm("norm1", x), z)});
    x = b.op("add", "add2", {x, mlp(b, b.rms_norm("norm2", x), z)});
  }
  x = b.rms_norm("norm", x);
  const ValueId logits = z.tied ? b.op("linear", "head", {x, table})
                                : b.linear("head", x, {"vocab", z.vocab, 1}, false);
  b.op("cross_entropy", "loss", {logits, labels});
  return b.finish();
}

}  // namespace meshwright
