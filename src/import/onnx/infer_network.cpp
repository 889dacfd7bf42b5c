// Whole layers as one operator: recurrent networks, attention; and the domain ai.onnx.ml.

#include <fmt/format.h>

#include "base/error.h"
#include "import/onnx/infer.h"

namespace meshwright::onnx {
namespace {

using Result = std::vector<Fact>;
using Dims = std::vector<std::int64_t>;

Fact made(int type, Dims dims) { return {type, std::move(dims), nullptr, false, true}; }

// x [seq, batch, in] (or batch first), recurrence [directions, gates * hidden, hidden].
Result recurrent(const NodeView& n) {
  if (n.rank(0) != 3 || n.rank(2) != 3) throw Error("operands 0 and 2 must have rank 3");
  const std::int64_t directions = n.dims(1).empty() ? 1 : n.dims(1)[0];
  const std::int64_t hidden = n.dims(2)[2];
  const bool batch_first = n.attr("layout", std::int64_t{0}) != 0;
  const std::int64_t seq = n.dims(0)[batch_first ? 1 : 0];
  const std::int64_t batch = n.dims(0)[batch_first ? 0 : 1];
  const int type = n.in(0).type;
  const Dims last = batch_first ? Dims{batch, directions, hidden} : Dims{directions, batch, hidden};
  return {made(type, batch_first ? Dims{batch, seq, directions, hidden}
                                 : Dims{seq, directions, batch, hidden}),
          made(type, last), made(type, last)};
}

// q, k, v as [batch, heads, seq, head_dim] or [batch, seq, heads * head_dim].
Result attention(const NodeView& n) {
  const Dims& q = n.dims(0);
  const Dims& k = n.dims(1);
  const Dims& v = n.dims(2);
  const bool flat = q.size() == 3;
  if ((q.size() != 3 && q.size() != 4) || k.size() != q.size() || v.size() != q.size()) {
    throw Error("q, k and v must all have rank 3 or all rank 4");
  }
  const std::int64_t heads = flat ? n.attr("q_num_heads", std::int64_t{0}) : q[1];
  const std::int64_t kv_heads = flat ? n.attr("kv_num_heads", std::int64_t{0}) : k[1];
  if (heads < 1 || kv_heads < 1 ||
      (flat && (q[2] % heads != 0 || k[2] % kv_heads != 0 || v[2] % kv_heads != 0))) {
    throw Error(
        fmt::format("{} heads and {} of keys do not fit {}", heads, kv_heads, shape_text(q)));
  }
  const std::int64_t wide = flat ? v[2] / kv_heads : v[3];
  const std::int64_t queries = flat ? q[1] : q[2];
  std::int64_t keys = flat ? k[1] : k[2];
  if (n.has(4) && n.rank(4) == 4) keys += n.dims(4)[2];
  const int type = n.in(0).type;
  return {
      made(type, flat ? Dims{q[0], queries, times(heads, wide)} : Dims{q[0], heads, queries, wide}),
      made(type, {q[0], kv_heads, keys, flat ? k[2] / kv_heads : k[3]}),
      made(type, {q[0], kv_heads, keys, wide}), made(type, {q[0], heads, queries, keys})};
}

constexpr InferRow kRows[] = {
    {"RNN", recurrent},
    {"GRU", recurrent},
    {"LSTM", recurrent},
    {"Attention", attention},
};

std::int64_t rows(const NodeView& n) { return n.rank(0) < 2 ? 1 : n.dims(0)[0]; }

// Number of classes: the labels that the classifier knows.
Result classifier(const NodeView& n) {
  std::int64_t classes = 0;
  bool text = false;
  for (const Attribute& a : n.node.attributes) {
    if (a.name != "classlabels_ints" && a.name != "classlabels_int64s" &&
        a.name != "classlabels_strings")
      continue;
    text |= !a.strings.empty();
    classes = std::max<std::int64_t>(classes,
                                     static_cast<std::int64_t>(a.ints.size() + a.strings.size()));
  }
  if (classes == 0) throw Error("the classifier lists no class labels");
  return {made(text ? kString : kInt64, {rows(n)}), made(kFloat, {rows(n), classes})};
}

Result regressor(const NodeView& n) {
  const std::int64_t targets = n.attr("n_targets", n.attr("targets", std::int64_t{1}));
  return {made(kFloat, {rows(n), targets})};
}

Result as_float(const NodeView& n) { return {made(kFloat, n.dims(0))}; }

constexpr InferRow kClassifierRows[] = {
    {"LinearClassifier", classifier},
    {"SVMClassifier", classifier},
    {"TreeEnsembleClassifier", classifier},
    {"LinearRegressor", regressor},
    {"SVMRegressor", regressor},
    {"TreeEnsembleRegressor", regressor},
    {"Normalizer", as_float},
    {"Scaler", as_float},
    {"Imputer", as_float},
    {"Binarizer", as_float},
};

}  // namespace

std::span<const InferRow> network_rows() { return kRows; }
std::span<const InferRow> classifier_rows() { return kClassifierRows; }

}  // namespace meshwright::onnx
