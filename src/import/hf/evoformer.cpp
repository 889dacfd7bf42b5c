#include <fmt/format.h>

#include <unordered_map>

#include "import/hf/families.h"
#include "import/hf/sizes.h"

namespace meshwright::hf {
namespace {

// AlphaFold 2's Evoformer with recycling (Jumper et al. 2021, Nature 596; algorithm numbers below
// are those of its supplementary material, section 1). A configuration of our own, since no library
// describes the network in a config.json: docs/models.md lists its keys.
//
// The alignment m is [batch, sequences, residues, hidden], the pair representation z
// [batch, residues, residues2, hidden]: two names, so that either side of the square can be split
// while the other is whole (dynamic axial parallelism). Recycling (section 1.10) is unrolled: every
// pass reads the same parameters, and what one pass hands to the next is detached.

struct Evoformer {
  std::int64_t sequences, residues, layers, recycles;
  std::int64_t msa, pair;           ///< Channels of m and z.
  std::int64_t msa_heads, msa_dim;  ///< Heads of attention over m, and the width of one.
  std::int64_t pair_heads, pair_dim;
  std::int64_t outer, triangle, transition;
  std::int64_t extra_layers, extra_sequences, extra_msa, extra_dim;
  std::int64_t target_features, msa_features, extra_features, relative_positions;
  std::int64_t msa_classes, distance_bins;
};

constexpr std::int64_t kMaxWidth = 1 << 20;  // Of channels and heads, so that products are sizes.
constexpr std::int64_t kMaxRecycles = 100;
constexpr std::int64_t kMaxLayers = 100'000;  // Of all passes.

std::int64_t width(const Config& c, std::string_view key, std::int64_t fallback) {
  const std::int64_t size = c.size_or({key}, fallback);
  if (size > kMaxWidth) {
    c.fail(key, fmt::format("{} must be at most {}, but is {}", key, kMaxWidth, size));
  }
  return size;
}

Evoformer read(const Config& c, const ImportOptions& options) {
  Evoformer e;
  e.sequences = c.size_or({"sequences"}, 128);
  e.residues = options.seq > 0 ? options.seq : c.size_or({"residues"}, 256);
  e.layers = layer_count(c, {"num_layers"}, 48);
  e.recycles = c.count_or({"recycles"}, 3);
  if (e.recycles > kMaxRecycles) {
    c.fail("recycles",
           fmt::format("recycles must be at most {}, but is {}", kMaxRecycles, e.recycles));
  }
  e.msa = width(c, "msa_channels", 256);
  e.pair = width(c, "pair_channels", 128);
  e.msa_heads = width(c, "msa_heads", 8);
  e.msa_dim = width(c, "msa_head_dim", 32);
  e.pair_heads = width(c, "pair_heads", 4);
  e.pair_dim = width(c, "pair_head_dim", 32);
  e.outer = width(c, "outer_product_channels", 32);
  e.triangle = width(c, "triangle_channels", 128);
  e.transition = width(c, "transition_factor", 4);
  e.extra_layers = c.count_or({"extra_msa_layers"}, 0);
  e.extra_sequences = c.size_or({"extra_sequences"}, 1024);
  e.extra_msa = width(c, "extra_msa_channels", 64);
  e.extra_dim = width(c, "extra_msa_head_dim", 8);
  e.target_features = width(c, "target_features", 22);
  e.msa_features = width(c, "msa_features", 49);
  e.extra_features = width(c, "extra_msa_features", 25);
  e.relative_positions = width(c, "relative_positions", 65);
  e.msa_classes = width(c, "msa_classes", 23);
  e.distance_bins = width(c, "distance_bins", 64);
  if (e.extra_layers > kMaxLayers || (e.layers + e.extra_layers) * (e.recycles + 1) > kMaxLayers) {
    c.fail("num_layers", fmt::format("{} layers in each of {} passes are more than {}",
                                     e.layers + e.extra_layers, e.recycles + 1, kMaxLayers));
  }
  return e;
}

class Writer {
 public:
  Writer(const Evoformer& e, std::int64_t batch, const ImportOptions& options)
      : e_(e), options_(options), b_("evoformer", options.dtype) {
    const Dim n{"batch", batch, 1};
    const Dim s{"sequences", e.sequences, 1};
    const Dim i{"residues", e.residues, 1};
    const Dim j{"residues2", e.residues, 1};
    target_ = b_.input("target_feat", {b_.dtype(), {n, i, {"features", e.target_features, 1}}});
    msa_ = b_.input("msa_feat", {b_.dtype(), {n, s, i, {"features", e.msa_features, 1}}});
    offsets_ = b_.input("relative_positions", {DType::kI64, {n, i, j}});
    if (e.extra_layers > 0) {
      const Dim more{"sequences", e.extra_sequences, 1};
      extra_ =
          b_.input("extra_msa_feat", {b_.dtype(), {n, more, i, {"features", e.extra_features, 1}}});
    }
    masked_ = b_.input("masked_msa_labels", {DType::kI64, {n, s, i}});
    distances_ = b_.input("distance_labels", {DType::kI64, {n, i, j}});
  }

  Graph write() {
    for (std::int64_t pass = 0; pass <= e_.recycles; ++pass) {
      pass_ = e_.recycles > 0 ? fmt::format("recycle{}.", pass) : "";
      embed();
      if (pass > 0) recycle();
      for (std::int64_t i = 0; i < e_.extra_layers; ++i) extra_layer(i);
      for (std::int64_t i = 0; i < e_.layers; ++i) layer(i);
      if (pass == e_.recycles) break;
      // Algorithm 2: the first row of m and z go around.
      previous_row_ = op("detach", "detach_msa", {first_row("recycle_row", m_)});
      previous_pair_ = op("detach", "detach_pair", {z_});
    }
    masked_msa_head();
    distogram_head();
    return b_.finish();
  }

 private:
  // Operators carry the pass in their names, parameters do not: all passes share them.
  ValueId op(std::string_view kind, const std::string& name, std::vector<ValueId> inputs,
             Attrs attrs = {}) {
    return b_.op(kind, pass_ + name, std::move(inputs), std::move(attrs));
  }
  ValueId parameter(const std::string& name, std::vector<Dim> dims) {
    const auto [it, fresh] = parameters_.try_emplace(name);
    if (fresh) it->second = b_.parameter(name, std::move(dims));
    return it->second;
  }
  Dim last(ValueId x) const { return b_.type(x).dims.back(); }

  ValueId linear(const std::string& name, ValueId x, const Dim& out, bool bias = true) {
    std::vector<ValueId> inputs = {x, parameter(name + ".weight", {out, last(x)})};
    if (bias) inputs.push_back(parameter(name + ".bias", {out}));
    return op("linear", name, std::move(inputs));
  }
  ValueId norm(const std::string& name, ValueId x) {
    const Dim dim = last(x);
    return op("layer_norm", name,
              {x, parameter(name + ".weight", {dim}), parameter(name + ".bias", {dim})});
  }
  ValueId reshape(const std::string& name, ValueId x, std::string pattern, std::string sizes = "",
                  std::string names = "") {
    Attrs attrs{{"pattern", std::move(pattern)}};
    if (!sizes.empty()) attrs["sizes"] = std::move(sizes);
    if (!names.empty()) attrs["names"] = std::move(names);
    return op("reshape", name, {x}, std::move(attrs));
  }
  ValueId permute(const std::string& name, ValueId x, std::vector<std::int64_t> perm) {
    return op("transpose", name, {x}, {{"perm", std::move(perm)}});
  }
  ValueId add(const std::string& name, ValueId a, ValueId b) { return op("add", name, {a, b}); }
  ValueId residual(const std::string& name, ValueId x, ValueId update, double p) {
    if (options_.dropout) update = op("dropout", name + ".dropout", {update}, {{"p", p}});
    return add(name + ".add", x, update);
  }
  // sigmoid(gate) * x
  ValueId gate(const std::string& name, ValueId gate, ValueId x) {
    return op("gated", name, {gate, x}, {{"act", std::string("sigmoid")}});
  }
  ValueId first_row(const std::string& name, ValueId m) {
    return op("slice", name, {m}, {{"dim", std::int64_t{1}}, {"length", std::int64_t{1}}});
  }

  // Algorithms 3 and 4.
  void embed() {
    const std::string at = "input_embedder";
    const Dim pair{"hidden", e_.pair, 1};
    const Dim msa{"hidden", e_.msa, 1};
    const ValueId rows =
        reshape(at + ".rows", linear(at + ".tf_z_i", target_, pair), "b i c -> b i 1 c");
    const ValueId columns = reshape(at + ".columns", linear(at + ".tf_z_j", target_, pair),
                                    "b j c -> b 1 j c", "", "j=residues2");
    const ValueId table =
        parameter(at + ".relpos.weight", {{"positions", e_.relative_positions, 1}, pair});
    z_ = op("embedding", at + ".relpos", {offsets_, table});
    z_ = add(at + ".relpos.add_bias", z_, parameter(at + ".relpos.bias", {pair}));
    z_ = add(at + ".add_columns", add(at + ".add_rows", z_, rows), columns);
    const ValueId target =
        reshape(at + ".target", linear(at + ".tf_m", target_, msa), "b i c -> b 1 i c");
    m_ = add(at + ".add_target", linear(at + ".msa", msa_, msa), target);
    if (extra_.valid()) {
      extra_m_ = linear("extra_msa_embedder.linear", extra_, {"hidden", e_.extra_msa, 1});
    }
  }

  // Algorithm 32 without the distances of predicted positions.
  void recycle() {
    const std::string at = "recycling_embedder";
    const ValueId row = norm(at + ".norm_msa", previous_row_);
    const std::int64_t below = e_.sequences - 1;
    const ValueId padded = below == 0 ? row
                                      : op("pad", at + ".pad_msa", {row},
                                           {{"dim", std::int64_t{1}}, {"after", below}});
    m_ = add(at + ".add_msa", m_, padded);
    z_ = add(at + ".add_pair", z_, norm(at + ".norm_pair", previous_pair_));
  }

  // Gated attention along the last but one dim of x [batch, rows, positions, hidden]; `bias`
  // [batch, heads, positions, keys] may be invalid.
  ValueId attention(const std::string& at, ValueId x, ValueId bias, std::int64_t heads,
                    std::int64_t head_dim) {
    const Dim flat{"heads", heads * head_dim, head_dim};
    const auto split = [&](const std::string& name) {
      return reshape(at + name + ".heads", linear(at + name, x, flat, false),
                     "b n s (h d) -> b n s h d", fmt::format("d={}", head_dim), "d=head_dim");
    };
    std::vector<ValueId> operands = {split(".q"), split(".k"), split(".v")};
    if (bias.valid()) operands.push_back(bias);
    ValueId y =
        op("attention", at + ".core", std::move(operands), {{"kernel", options_.attention}});
    y = reshape(at + ".core.flat", y, "b n s h d -> b n s (h d)");
    y = gate(at + ".gate.act", linear(at + ".gate", x, flat), y);
    return linear(at + ".o", y, last(x));
  }

  // [batch, i, j, hidden] -> [batch, heads, i, j].
  ValueId pair_bias(const std::string& at, ValueId z, std::int64_t heads) {
    return permute(at + ".bias.permute", linear(at + ".bias", z, {"heads", heads, 1}, false),
                   {0, 3, 1, 2});
  }

  // Algorithm 7.
  ValueId row_attention(const std::string& at, ValueId m, std::int64_t heads, std::int64_t dim) {
    const ValueId x = norm(at + ".norm", m);
    const ValueId bias = pair_bias(at, norm(at + ".norm_pair", z_), heads);
    return residual(at, m, attention(at, x, bias, heads, dim), 0.15);
  }

  // Algorithm 8: along the sequences, every residue by itself.
  ValueId column_attention(const std::string& at, ValueId m) {
    const ValueId x = permute(at + ".permute", norm(at + ".norm", m), {0, 2, 1, 3});
    const ValueId y = attention(at, x, ValueId(), e_.msa_heads, e_.msa_dim);
    return add(at + ".add", m, permute(at + ".unpermute", y, {0, 2, 1, 3}));
  }

  // Algorithm 19: one query per residue (the mean over its sequences), one head of keys and values.
  ValueId global_column_attention(const std::string& at, ValueId m) {
    const Dim flat{"heads", e_.msa_heads * e_.extra_dim, e_.extra_dim};
    const std::string width = fmt::format("d={}", e_.extra_dim);
    const ValueId x = permute(at + ".permute", norm(at + ".norm", m), {0, 2, 1, 3});
    const ValueId mean = op("mean_pool", at + ".mean", {x}, {{"dim", std::int64_t{2}}});
    const ValueId q = reshape(at + ".q.heads", linear(at + ".q", mean, flat, false),
                              "b n (h d) -> b n 1 h d", width, "d=head_dim");
    const auto single = [&](const std::string& name) {
      return reshape(at + name + ".heads",
                     linear(at + name, x, {"head_dim", e_.extra_dim, 1}, false),
                     "b n s d -> b n s 1 d");
    };
    const ValueId k = single(".k");
    const ValueId v = single(".v");
    ValueId y = op("attention", at + ".core", {q, k, v}, {{"kernel", options_.attention}});
    y = reshape(at + ".core.flat", y, "b n s h d -> b n s (h d)", "", "h=heads");
    const ValueId open = op("sigmoid", at + ".gate.act", {linear(at + ".gate", x, flat)});
    y = linear(at + ".o", op("mul", at + ".gate.mul", {open, y}), last(m));
    return add(at + ".add", m, permute(at + ".unpermute", y, {0, 2, 1, 3}));
  }

  // Algorithms 9 and 15.
  ValueId transition(const std::string& at, ValueId x) {
    const Dim hidden = last(x);
    ValueId y = linear(at + ".up", norm(at + ".norm", x), {"ffn", e_.transition * hidden.size, 1});
    y = linear(at + ".down", op("relu", at + ".act", {y}), hidden);
    return add(at + ".add", x, y);
  }

  // Algorithm 10: the outer product as one matrix product over the sequences.
  void outer_product_mean(const std::string& at, ValueId m) {
    const Dim narrow{"outer", e_.outer, 1};
    const ValueId x = norm(at + ".norm", m);
    ValueId a = permute(at + ".a.permute", linear(at + ".a", x, narrow), {0, 2, 3, 1});
    a = reshape(at + ".a.flat", a, "b i c s -> b (i c) s");
    const ValueId b = reshape(at + ".b.flat", linear(at + ".b", x, narrow), "b s j d -> b s (j d)",
                              "", "j=residues2");
    ValueId o = op("matmul", at + ".product", {a, b});
    o = reshape(at + ".split", o, "b (i c) (j d) -> b i c j d",
                fmt::format("c={0}, d={0}", e_.outer), "c=outer, d=outer2");
    o = permute(at + ".permute", o, {0, 1, 3, 2, 4});
    o = reshape(at + ".merge", o, "b i j c d -> b i j (c d)", "", "c=outer");
    const double rows = static_cast<double>(b_.type(m).dims[1].size);
    o = op("scale", at + ".mean", {o}, {{"factor", 1 / rows}});
    z_ = add(at + ".add", z_, linear(at + ".o", o, last(z_)));
  }

  // Algorithm 11 (edges going out: sum over k of a_ik b_jk) and 12 (coming in: a_ki b_kj), a matrix
  // product per channel.
  void triangle_multiplication(const std::string& at, bool outgoing) {
    const Dim channels{"triangle", e_.triangle, 1};
    const ValueId x = norm(at + ".norm", z_);
    const auto side = [&](const std::string& name) {
      const ValueId open = linear(at + name + "_gate", x, channels);
      return gate(at + name + "_gate.act", open, linear(at + name, x, channels));
    };
    // To [batch, channels, i, k] and [batch, channels, k, j].
    const std::vector<std::int64_t> kept = {0, 3, 1, 2};
    const std::vector<std::int64_t> swapped = {0, 3, 2, 1};
    ValueId a = permute(at + ".a.permute", side(".a"), outgoing ? kept : swapped);
    ValueId b = permute(at + ".b.permute", side(".b"), outgoing ? swapped : kept);
    a = reshape(at + ".a.edges", a, "b c i k -> b c i k", "", "i=residues, k=residues3");
    b = reshape(at + ".b.edges", b, "b c k j -> b c k j", "", "k=residues3, j=residues2");
    ValueId y = permute(at + ".permute", op("matmul", at + ".product", {a, b}), {0, 2, 3, 1});
    y = linear(at + ".o", norm(at + ".norm_out", y), last(z_));
    y = gate(at + ".gate.act", linear(at + ".gate", x, last(z_)), y);
    z_ = residual(at, z_, y, 0.25);
  }

  // Algorithm 13 (around the starting node: along the second side) and 14 (the first side).
  void triangle_attention(const std::string& at, bool starting) {
    ValueId x = norm(at + ".norm", z_);
    if (!starting) x = permute(at + ".permute", x, {0, 2, 1, 3});
    ValueId y = attention(at, x, pair_bias(at, x, e_.pair_heads), e_.pair_heads, e_.pair_dim);
    if (!starting) y = permute(at + ".unpermute", y, {0, 2, 1, 3});
    z_ = residual(at, z_, y, 0.25);
  }

  // The second half of algorithm 6, shared with algorithm 18.
  void pair_updates(const std::string& at, ValueId m) {
    outer_product_mean(at + ".outer_product_mean", m);
    triangle_multiplication(at + ".triangle_multiplication_outgoing", true);
    triangle_multiplication(at + ".triangle_multiplication_incoming", false);
    triangle_attention(at + ".triangle_attention_starting", true);
    triangle_attention(at + ".triangle_attention_ending", false);
    z_ = transition(at + ".pair_transition", z_);
  }

  // Algorithm 6.
  void layer(std::int64_t index) {
    const std::string at = fmt::format("layers.{}", index);
    m_ = row_attention(at + ".msa_row_attention", m_, e_.msa_heads, e_.msa_dim);
    m_ = column_attention(at + ".msa_column_attention", m_);
    m_ = transition(at + ".msa_transition", m_);
    pair_updates(at, m_);
  }

  // Algorithm 18.
  void extra_layer(std::int64_t index) {
    const std::string at = fmt::format("extra_layers.{}", index);
    ValueId& m = extra_m_;
    m = row_attention(at + ".msa_row_attention", m, e_.msa_heads, e_.extra_dim);
    m = global_column_attention(at + ".msa_column_attention", m);
    m = transition(at + ".msa_transition", m);
    pair_updates(at, m);
  }

  // Section 1.9.9.
  void masked_msa_head() {
    const ValueId logits = linear("masked_msa_head", m_, {"classes", e_.msa_classes, 1});
    op("cross_entropy", "masked_msa_loss", {logits, masked_});
  }

  // Section 1.9.8: symmetric logits.
  void distogram_head() {
    const std::string at = "distogram_head";
    const ValueId logits = linear(at, z_, {"bins", e_.distance_bins, 1});
    const ValueId mirrored = permute(at + ".mirror", logits, {0, 2, 1, 3});
    op("cross_entropy", "distogram_loss", {add(at + ".symmetric", logits, mirrored), distances_});
  }

  const Evoformer& e_;
  const ImportOptions& options_;
  GraphBuilder b_;
  std::string pass_;
  std::unordered_map<std::string, ValueId> parameters_;
  ValueId target_, msa_, extra_, offsets_, masked_, distances_;
  ValueId m_, z_, extra_m_, previous_row_, previous_pair_;
};

Model build(const Config& config, const ImportOptions& options) {
  const TokenShape shape = token_shape(options, 256);
  const Evoformer e = read(config, options);
  Model model{.family = "evoformer", .global_batch = shape.batch, .seq = e.residues};
  model.graph = Writer(e, shape.batch, options).write();
  model.notes.push_back(
      "Evoformer of AlphaFold 2 with its masked-MSA and distogram losses; templates, structure "
      "module and the other heads are left out, and predicted positions are not recycled");
  if (e.extra_layers == 0) model.notes.push_back("without the extra MSA stack");
  if (e.recycles > 0) {
    model.notes.push_back(
        fmt::format("{} passes over the same parameters; only the last one has a backward pass",
                    e.recycles + 1));
  }
  return model;
}

constexpr std::string_view kTypes[] = {"evoformer"};
constexpr std::string_view kStems[] = {"Evoformer"};

}  // namespace

const Family kEvoformer = {
    .name = "evoformer",
    .summary = "AlphaFold 2's Evoformer stack with recycling",
    .model_types = kTypes,
    .architectures = kStems,
    .build = build,
};

}  // namespace meshwright::hf
