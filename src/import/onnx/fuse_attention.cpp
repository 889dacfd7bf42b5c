// Scaled dot-product attention from its parts: softmax(scale * q k^T, masked) v, with the
// transposes to and from [batch, seq, heads, head_dim] and the copies of keys and values for
// grouped queries around it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "import/onnx/fuse.h"

namespace meshwright::onnx {
namespace {

using Dims = std::vector<std::int64_t>;

// What a mask does, read off its values at a small size.
enum class Mask { kNone, kCausal, kOther };

// Whether element `i` of the mask hides its key.
bool hides(const Known& mask, std::size_t i, bool hides_where_true) {
  if (mask.floating) return mask.floats[i] < -1e3;
  return (mask.ints[i] != 0) == hides_where_true;
}

Mask classify(const Inferred* small, const std::string& name, bool hides_where_true) {
  if (small == nullptr) return Mask::kOther;
  const auto it = small->facts.find(name);
  if (it == small->facts.end() || !it->second.known || it->second.known->size() == 0)
    return Mask::kOther;
  const Known& mask = *it->second.known;
  const Dims& dims = it->second.dims;
  const std::int64_t keys = dims.empty() ? 1 : dims.back();
  const std::int64_t queries = dims.size() < 2 ? 1 : dims[dims.size() - 2];
  bool none = true;
  bool causal = queries > 1 && queries == keys;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const auto flat = static_cast<std::int64_t>(i);
    const bool later = flat % keys > flat / keys % queries;
    const bool hidden = hides(mask, i, hides_where_true);
    if (mask.floating && !hidden && mask.floats[i] != 0) return Mask::kOther;  // A bias.
    none = none && !hidden;
    causal = causal && hidden == later;
  }
  return none ? Mask::kNone : causal ? Mask::kCausal : Mask::kOther;
}

// Scores as the softmax reads them, taken apart.
struct Scores {
  const Node* product = nullptr;
  double scale = 1;
  bool causal = false;
  bool padding = false;  // A mask that depends on the input.
  std::string bias;
};

bool is_perm(const Node* transpose, const Dims& wanted) {
  const Attribute* perm = transpose == nullptr ? nullptr : transpose->attribute("perm");
  return perm != nullptr && perm->ints == wanted;
}

// Follows scores back through scaling and masks to the product; false for anything else.
bool take_apart(const Rewriter& r, std::string name, const Inferred* small, Scores& scores) {
  const Dims shape = r.fact(name).dims;
  for (int steps = 0; steps < 12; ++steps) {
    if (const Node* product = r.only_producer(name, "MatMul")) {
      scores.product = product;
      return r.fact(name).dims == shape;
    }
    if (const Node* cast = r.only_producer(name, "Cast")) {
      if (r.uncast(name) == name) return false;
      name = cast->inputs[0];
      continue;
    }
    if (const Node* div = r.only_producer(name, "Div");
        div != nullptr && r.number(div->inputs[1])) {
      scores.scale /= *r.number(div->inputs[1]);
      name = div->inputs[0];
      continue;
    }
    const Node* mul = r.only_producer(name, "Mul");
    if (mul != nullptr && (r.number(mul->inputs[0]) || r.number(mul->inputs[1]))) {
      const std::size_t i = r.number(mul->inputs[0]) ? 0 : 1;
      scores.scale *= *r.number(mul->inputs[i]);
      name = mul->inputs[1 - i];
      continue;
    }
    const Node* add = r.only_producer(name, "Add");
    const Node* where = r.only_producer(name, "Where");
    if (add != nullptr) {
      // The side that a product leads to is the scores, the other one the mask.
      Scores left;
      const bool first =
          r.fact(add->inputs[0]).dims == shape && take_apart(r, add->inputs[0], small, left);
      const std::string& mask = add->inputs[first ? 1 : 0];
      const Mask kind = classify(small, mask, true);
      if (kind == Mask::kOther) {
        if (!scores.bias.empty()) return false;
        scores.bias = mask;
      }
      scores.causal |= kind == Mask::kCausal;
      scores.padding |= kind != Mask::kOther && !r.fact(mask).constant;
      name = add->inputs[first ? 0 : 1];
      continue;
    }
    if (where != nullptr) {
      // Where(keep, scores, -inf) or Where(hide, -inf, scores).
      const auto low = [&](const std::string& value) {
        const auto n = r.number(value);
        return n && *n < -1e3;
      };
      const bool hide = low(where->inputs[1]);
      if (!hide && !low(where->inputs[2])) return false;
      const Mask kind = classify(small, where->inputs[0], hide);
      if (kind == Mask::kOther) return false;
      scores.causal |= kind == Mask::kCausal;
      scores.padding |= !r.fact(where->inputs[0]).constant;
      name = where->inputs[hide ? 2 : 1];
      continue;
    }
    return false;
  }
  return false;
}

// A side of the products: the value, and where its dimensions stand.
struct Side {
  std::string name;
  std::string layout;  // "bhsd", "bshd" or "bhds".
  double scale = 1;
};

// A number times the value is part of the scale.
void unscale(const Rewriter& r, Side& side) {
  const Node* mul = r.producer(side.name, "Mul");
  const Node* div = r.producer(side.name, "Div");
  if (mul != nullptr && (r.number(mul->inputs[0]) || r.number(mul->inputs[1]))) {
    const std::size_t i = r.number(mul->inputs[0]) ? 0 : 1;
    side.scale *= *r.number(mul->inputs[i]);
    side.name = mul->inputs[1 - i];
  } else if (div != nullptr && r.number(div->inputs[1])) {
    side.scale /= *r.number(div->inputs[1]);
    side.name = div->inputs[0];
  }
}

// Keys and values of grouped queries are repeated per query head; attention takes them as they are.
void unrepeat(const Rewriter& r, Side& side) {
  if (side.layout != "bhsd") return;
  const Node* merge = r.producer(side.name, "Reshape");
  const Node* expand = merge == nullptr ? nullptr : r.producer(merge->inputs[0], "Expand");
  if (expand == nullptr) return;
  const Node* above = r.producer(expand->inputs[0]);
  if (above == nullptr || (above->op != "Unsqueeze" && above->op != "Reshape")) return;
  const Dims& few = r.fact(above->inputs[0]).dims;
  const Dims& wide = r.fact(expand->outputs[0]).dims;
  const Dims& many = r.fact(side.name).dims;
  if (few.size() != 4 || wide.size() != 5 || many.size() != 4) return;
  if (wide != Dims{few[0], few[1], wide[2], few[2], few[3]}) return;
  if (r.fact(expand->inputs[0]).dims != Dims{few[0], few[1], 1, few[2], few[3]}) return;
  if (many == Dims{few[0], few[1] * wide[2], few[2], few[3]}) side.name = above->inputs[0];
}

void untranspose(const Rewriter& r, Side& side) {
  for (int steps = 0; steps < 4; ++steps) {
    unscale(r, side);
    unrepeat(r, side);
    const Node* t = r.producer(side.name, "Transpose");
    if (t == nullptr) return;
    if (side.layout == "bhds" && is_perm(t, {0, 1, 3, 2})) {
      side.layout = "bhsd";
    } else if (side.layout == "bhds" && is_perm(t, {0, 2, 3, 1})) {
      side.layout = "bshd";
    } else if (side.layout == "bhsd" && is_perm(t, {0, 2, 1, 3})) {
      side.layout = "bshd";
    } else {
      return;
    }
    side.name = t->inputs[0];
  }
}

Attribute text(std::string name, std::string value) {
  Attribute a;
  a.name = std::move(name);
  a.kind = Attribute::Kind::kString;
  a.s = std::move(value);
  return a;
}
Attribute number(std::string name, double value) {
  Attribute a;
  a.name = std::move(name);
  a.kind = Attribute::Kind::kFloat;
  a.f = value;
  return a;
}

}  // namespace

void fuse_attention(Rewriter& r, const Inferred* small) {
  for (std::size_t i = 0; i < r.count(); ++i) {
    if (r.removed(i) || r.node(i).op != "MatMul" || !r.node(i).domain.empty()) continue;
    const Node& outer = r.node(i);
    if (r.fact(outer.outputs[0]).dims.size() != 4) continue;
    // From the weights back to the softmax.
    std::string weights = outer.inputs[0];
    double dropout = 0;
    for (int steps = 0; steps < 3; ++steps) {
      if (const Node* drop = r.only_producer(weights, "Dropout")) {
        if (drop->inputs.size() > 1 && r.number(drop->inputs[1]))
          dropout = *r.number(drop->inputs[1]);
        weights = drop->inputs[0];
      } else if (r.only_producer(weights, "Cast") != nullptr ||
                 r.only_producer(weights, "Identity") != nullptr) {
        weights = r.producer(weights)->inputs[0];
      }
    }
    const Node* softmax = r.only_producer(weights, "Softmax");
    if (softmax == nullptr) continue;
    const Attribute* axis = softmax->attribute("axis");
    if (axis == nullptr || (axis->i != -1 && axis->i != 3)) continue;
    Scores scores;
    if (!take_apart(r, softmax->inputs[0], small, scores)) continue;
    if (r.fact(scores.product->outputs[0]).dims.size() != 4) continue;

    Side q{scores.product->inputs[0], "bhsd", 1};
    Side k{scores.product->inputs[1], "bhds", 1};
    Side v{outer.inputs[1], "bhsd", 1};
    if (r.fact(q.name).dims.size() != 4 || r.fact(k.name).dims.size() != 4 ||
        r.fact(v.name).dims.size() != 4)
      continue;
    if (r.fact(q.name).dims[0] != r.fact(k.name).dims[0] ||
        r.fact(q.name).dims[1] != r.fact(k.name).dims[1])
      continue;
    const Side whole_k = k;
    const Side whole_v = v;
    untranspose(r, q);
    untranspose(r, k);
    untranspose(r, v);
    v.scale = whole_v.scale;
    const auto heads = [&](const Side& s) {
      return r.fact(s.name).dims[s.layout == "bshd" ? 2 : 1];
    };
    // Keys and values are repeated alike, or neither counts as repeated.
    if (heads(k) != heads(v)) k = whole_k, v = whole_v;
    if (r.uncast(v.name) != v.name) v = whole_v;
    // A scaled v would be lost: only q and k carry the scale.
    Side check = whole_v;
    unscale(r, check);
    if (check.name != whole_v.name) v = whole_v;

    Node fused;
    fused.op = "FusedAttention";
    fused.domain = kOwnDomain;
    fused.inputs = {q.name, k.name, v.name};
    if (!scores.bias.empty()) fused.inputs.push_back(scores.bias);
    fused.attributes = {text("q", q.layout), text("k", k.layout), text("v", v.layout),
                        number("scale", scores.scale * q.scale * k.scale),
                        number("dropout", dropout)};
    if (scores.causal) fused.attributes.push_back(text("causal", "yes"));
    const Node* user = r.only_user(outer.outputs[0]);
    const bool back = user != nullptr && user->op == "Transpose" && is_perm(user, {0, 2, 1, 3});
    fused.attributes.push_back(text("out", back ? "bshd" : "bhsd"));
    fused.outputs = {back ? user->outputs[0] : outer.outputs[0]};
    fused.name = outer.name;
    if (scores.padding) r.count_one("masks of padding left to the attention kernel");
    r.replace(std::move(fused), scores.causal ? "causal attentions" : "attentions");
  }
}

}  // namespace meshwright::onnx
