// One product for queries, keys and values (or for gate and up) that is split at once becomes
// several: parts that differ in meaning can then be split over devices by their own dimensions.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "import/onnx/fuse.h"

namespace meshwright::onnx {
namespace {

struct Layer {
  const Node* node = nullptr;     // The product.
  const Node* reshape = nullptr;  // Between the product and its split, if any.
  std::string weight;             // Its parameter, which may be read transposed.
  std::int64_t columns = 1;       // Which dim of the parameter the parts share out.
};

bool is_plain(const Rewriter& r, const Node& node, Layer& layer) {
  if (node.inputs.size() < 2) return false;
  layer.weight = node.inputs[1];
  layer.columns = 1;
  const Node* turned = node.op == "Gemm" ? nullptr : r.only_producer(layer.weight, "Transpose");
  if (turned != nullptr) {
    layer.weight = turned->inputs[0];
    layer.columns = 0;
  }
  if (!r.is_parameter(layer.weight) || r.uses(layer.weight) != 1) return false;
  if (r.fact(layer.weight).dims.size() != 2) return false;
  if (node.op == "Gemm") {
    const auto is = [&](std::string_view name, double wanted) {
      const Attribute* a = node.attribute(name);
      return a == nullptr ||
             (a->kind == Attribute::Kind::kFloat ? a->f == wanted
                                                 : static_cast<double>(a->i) == wanted);
    };
    if (!is("alpha", 1) || !is("beta", 1) || !is("transA", 0)) return false;
    const Attribute* side = node.attribute("transB");
    layer.columns = side != nullptr && side->i != 0 ? 0 : 1;
  }
  if (node.inputs.size() < 3) return true;
  const std::string& bias = node.inputs[2];
  return r.is_parameter(bias) && r.uses(bias) == 1 && r.fact(bias).dims.size() == 1;
}

Layer layer_of(const Rewriter& r, const std::string& value) {
  Layer layer;
  std::string name = value;
  if (const Node* reshape = r.only_producer(name, "Reshape")) {
    const auto& from = r.fact(reshape->inputs[0]).dims;
    const auto& to = r.fact(name).dims;
    if (from.empty() || to.empty() || from.back() != to.back()) return layer;
    layer.reshape = reshape;
    name = reshape->inputs[0];
  }
  for (const std::string_view op : {"Linear", "Gemm", "MatMul"}) {
    const Node* node = r.only_producer(name, op);
    if (node != nullptr && is_plain(r, *node, layer)) layer.node = node;
  }
  return layer;
}

std::string suffix(std::size_t part, std::size_t parts) {
  if (parts == 3) return std::array<const char*, 3>{"q", "k", "v"}[part];
  return std::string(1, static_cast<char>('a' + part % 26)) + std::string(part / 26, '_');
}

}  // namespace

void split_projections(Rewriter& r) {
  const std::size_t count = r.count();
  for (std::size_t i = 0; i < count; ++i) {
    if (r.removed(i) || r.node(i).op != "Split" || !r.node(i).domain.empty()) continue;
    const Node split = r.node(i);
    const std::size_t parts = split.outputs.size();
    const Fact& whole = r.fact(split.inputs[0]);
    const bool named = std::ranges::none_of(split.outputs, &std::string::empty);
    if (parts < 2 || parts > 8 || !named || r.uses(split.inputs[0]) != 1) continue;
    // Along the last dimension only.
    bool last = true;
    for (const std::string& out : split.outputs) {
      const std::vector<std::int64_t>& dims = r.fact(out).dims;
      last = last && !dims.empty() && dims.back() > 0 && dims.size() == whole.dims.size() &&
             std::equal(dims.begin(), dims.end() - 1, whole.dims.begin());
    }
    if (!last) continue;
    const Layer layer = layer_of(r, split.inputs[0]);
    if (layer.node == nullptr) continue;
    const Node product = *layer.node;
    const bool reshaped = layer.reshape != nullptr;
    for (std::size_t p = 0; p < parts; ++p) {
      const std::int64_t n = r.fact(split.outputs[p]).dims.back();
      const std::string end = suffix(p, parts);
      Node part = product;
      part.name = (product.name.empty() ? product.outputs[0] : product.name) + "." + end;
      if (product.op != "Gemm") {
        part.op = "Linear";
        part.domain = kOwnDomain;
        Attribute side;
        side.name = "transB";
        side.kind = Attribute::Kind::kInt;
        side.i = layer.columns == 0;
        part.attributes = {side};
      }
      part.inputs[1] = layer.weight;
      for (std::size_t k = 1; k < part.inputs.size(); ++k) {
        Fact fact = r.fact(part.inputs[k]);
        fact.known = nullptr;
        fact.dims[k == 1 ? static_cast<std::size_t>(layer.columns) : 0] = n;
        part.inputs[k] = r.add_parameter(part.inputs[k] + "." + end, std::move(fact));
      }
      if (reshaped) {
        Fact fact = r.fact(product.outputs[0]);
        fact.dims.back() = n;
        part.outputs = {
            r.add_value(product.outputs[0] + "." + end, std::move(fact), product.outputs[0])};
        Node view;
        view.op = "Reshape";
        view.domain = kOwnDomain;
        view.name = part.name + "_view";
        view.inputs = part.outputs;
        view.outputs = {split.outputs[p]};
        r.insert_before(split.outputs[0], std::move(part));
        r.insert_before(split.outputs[0], std::move(view));
      } else {
        part.outputs = {split.outputs[p]};
        r.insert_before(split.outputs[0], std::move(part));
      }
    }
    r.remove(i, "projections split into their parts");
  }
}

}  // namespace meshwright::onnx
