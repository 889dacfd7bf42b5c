#include "run/feeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/files.h"

namespace meshwright {
namespace {

constexpr std::string_view kNorms[] = {"layer_norm", "rms_norm", "batch_norm", "instance_norm",
                                       "group_norm"};

bool is_norm(std::string_view kind) { return std::ranges::find(kNorms, kind) != std::end(kNorms); }

// Operators that hand on integers as they are.
bool passes_on(std::string_view kind) {
  return kind == "reshape" || kind == "slice" || kind == "transpose" || kind == "concat" ||
         kind == "detach" || kind == "roll";
}

struct Use {
  const Op* op;
  std::size_t operand;
};

std::vector<std::vector<Use>> uses_of(const Graph& graph) {
  std::vector<std::vector<Use>> uses(graph.values.size());
  for (const Op& op : graph.ops) {
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      uses[op.inputs[k].index()].push_back({&op, k});
    }
  }
  return uses;
}

// What indices of this value choose from.
struct Reads {
  std::int64_t bound = std::numeric_limits<std::int64_t>::max();
  bool embedding = false, labels = false;
};
void follow(const Graph& graph, const std::vector<std::vector<Use>>& uses, ValueId id,
            std::set<ValueId>& seen, Reads& reads) {
  if (!seen.insert(id).second) return;
  for (const Use& u : uses[id.index()]) {
    const auto type = [&](std::size_t k) -> const TensorType& {
      return graph.value(u.op->inputs[k]).type;
    };
    if (u.op->kind == "embedding" && u.operand == 0) {
      reads.bound = std::min(reads.bound, type(1).dims[0].size);
      reads.embedding = true;
    } else if (u.op->kind == "cross_entropy" && u.operand == 1) {
      reads.bound = std::min(reads.bound, type(0).dims.back().size);
      reads.labels = true;
    } else if (u.op->kind == "gather" && u.operand == 1) {
      const auto axis = attr_int(u.op->attrs, "dim", attr_int(u.op->attrs, "axis", 0));
      const auto rank = static_cast<std::int64_t>(type(0).dims.size());
      const auto d = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
      if (d < type(0).dims.size()) reads.bound = std::min(reads.bound, type(0).dims[d].size);
    } else if (passes_on(u.op->kind)) {
      for (ValueId out : u.op->outputs) follow(graph, uses, out, seen, reads);
    }
  }
}

}  // namespace

TokenFile read_token_file(const std::string& path) {
  const std::string bytes = read_file(path, std::uint64_t{1} << 32);
  TokenFile file{path, {}};
  const bool wide = path.ends_with(".u16") || path.ends_with(".bin");
  if (wide && bytes.size() % 2 != 0) {
    throw Error(fmt::format("{} bytes are no whole number of 16-bit tokens", bytes.size()), path);
  }
  for (std::size_t i = 0; i < bytes.size(); i += wide ? 2 : 1) {
    const auto low = static_cast<unsigned char>(bytes[i]);
    const int high = wide ? static_cast<unsigned char>(bytes[i + 1]) : 0;
    file.tokens.push_back(low + 256 * high);
  }
  return file;
}

int batch_dim_of(const TensorType& type) {
  for (std::size_t d = 0; d < type.dims.size(); ++d) {
    if (type.dims[d].name == "batch") return static_cast<int>(d);
  }
  return -1;
}

Feeds::Feeds(const Graph& graph, std::uint64_t seed, std::int64_t global_batch,
             std::shared_ptr<const TokenFile> tokens)
    : graph_(graph),
      seed_(seed),
      global_batch_(global_batch),
      tokens_(std::move(tokens)),
      kinds_(graph.values.size()) {
  const auto uses = uses_of(graph);
  bool reads_tokens = false, reads_labels = false;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    Kind& kind = kinds_[v];
    if (value.kind == ValueKind::kActivation) continue;
    if (!is_floating(value.type.dtype)) {
      std::set<ValueId> seen;
      Reads reads;
      follow(graph, uses, ValueId(static_cast<std::int64_t>(v)), seen, reads);
      if (reads.bound != std::numeric_limits<std::int64_t>::max()) kind.bound = reads.bound;
      if (tokens_ == nullptr || value.kind != ValueKind::kInput || value.type.rank() != 2) continue;
      if (!reads.embedding && !reads.labels) continue;
      kind.token_shift = reads.labels ? 1 : 0;
      (reads.labels ? reads_labels : reads_tokens) = true;
      const auto most = std::ranges::max_element(tokens_->tokens);
      if (most != tokens_->tokens.end() && *most >= kind.bound) {
        throw Error(fmt::format("token {} at position {}, but {} knows {} tokens", *most,
                                most - tokens_->tokens.begin(), value.name, kind.bound),
                    tokens_->path);
      }
      if (static_cast<std::int64_t>(tokens_->tokens.size()) < value.type.dims[1].size + 1) {
        throw Error(fmt::format("{} tokens; one sample takes {}", tokens_->tokens.size(),
                                value.type.dims[1].size + 1),
                    tokens_->path);
      }
      continue;
    }
    if (value.kind == ValueKind::kInput || value.kind == ValueKind::kBuffer) {
      kind = {0, 1};
      for (const Use& u : uses[v]) {
        if (is_norm(u.op->kind) && u.operand > 0) kind = {1, 0.1};
      }
      continue;
    }
    // Weights of fan-in scale, so that values neither vanish nor grow through the layers.
    double fan_in = 1;
    for (std::size_t d = 1; d < value.type.dims.size(); ++d) {
      fan_in *= static_cast<double>(value.type.dims[d].size);
    }
    for (const Use& u : uses[v]) {
      if (u.op->kind == "grouped_linear") {
        fan_in = static_cast<double>(value.type.dims.back().size);
      }
    }
    kind = {0, value.type.rank() > 1 ? std::sqrt(3 / fan_in) : 0.02};
    for (const Use& u : uses[v]) {
      if (is_norm(u.op->kind) && u.operand == 1) kind = {1, 0.1};
    }
  }
  if (tokens_ != nullptr && !(reads_tokens && reads_labels)) {
    throw Error(fmt::format("{} has no pair of inputs for tokens and labels", graph.name),
                tokens_->path, "run it with --data synthetic");
  }
}

std::uint64_t Feeds::key(ValueId id, std::int64_t step) const {
  const Value& value = graph_.value(id);
  const std::uint64_t named = draw_key(seed_, value.name);
  return value.kind == ValueKind::kInput ? draw_key(named, static_cast<std::uint64_t>(step + 1))
                                         : named;
}

namespace {

template <typename F>
void each(const TensorType& type, const Box& box, std::int64_t first_sample, F&& f) {
  std::vector<std::int64_t> whole;
  for (const Dim& d : type.dims) whole.push_back(d.size);
  const int batch = batch_dim_of(type);
  const std::int64_t unit = batch < 0 ? 1 : type.dims[static_cast<std::size_t>(batch)].unit;
  for_each_index(box, whole, batch, batch < 0 ? 0 : first_sample * unit, f);
}

}  // namespace

void Feeds::fill(ValueId id, const TensorType& type, const Box& box, std::int64_t step,
                 std::int64_t first_sample, std::span<double> out) const {
  const Kind& kind = kinds_[id.index()];
  const std::uint64_t k = key(id, step);
  const bool input = graph_.value(id).kind == ValueKind::kInput;
  each(type, box, input ? first_sample : 0, [&](std::int64_t position, std::int64_t index) {
    const double u = draw_uniform(k, static_cast<std::uint64_t>(index));
    out[static_cast<std::size_t>(position)] = kind.offset + kind.scale * (2 * u - 1);
  });
}

void Feeds::fill(ValueId id, const TensorType& type, const Box& box, std::int64_t step,
                 std::int64_t first_sample, std::span<std::int64_t> out) const {
  const Kind& kind = kinds_[id.index()];
  const std::uint64_t k = key(id, step);
  const bool input = graph_.value(id).kind == ValueKind::kInput;
  const std::int64_t length = type.dims.empty() ? 1 : type.dims.back().size;
  each(type, box, input ? first_sample : 0, [&](std::int64_t position, std::int64_t index) {
    std::int64_t& target = out[static_cast<std::size_t>(position)];
    if (kind.token_shift < 0) {
      const double u = draw_uniform(k, static_cast<std::uint64_t>(index));
      target = static_cast<std::int64_t>(u * static_cast<double>(kind.bound));
      return;
    }
    // Samples follow each other in the file, which starts again at its end.
    const std::int64_t sample = step * global_batch_ + index / length;
    const auto count = static_cast<std::int64_t>(tokens_->tokens.size());
    const std::int64_t samples = std::max<std::int64_t>(1, (count - 1) / length);
    const std::int64_t at = sample % samples * length + index % length + kind.token_shift;
    target = tokens_->tokens[static_cast<std::size_t>(at)];
  });
}

void Feeds::fill_loss_weights(ValueId id, const TensorType& type, const Box& box,
                              std::int64_t first_sample, std::span<double> out) const {
  const Value& value = graph_.value(id);
  double count = 1;
  const int batch = batch_dim_of(type);
  for (std::size_t d = 0; d < type.dims.size(); ++d) {
    const Dim& dim = type.dims[d];
    count *=
        static_cast<double>(static_cast<int>(d) == batch ? global_batch_ * dim.unit : dim.size);
  }
  const bool loss = value.producer.valid() && graph_.op(value.producer).kind == "cross_entropy";
  const std::uint64_t k = draw_key(draw_key(seed_, "loss"), value.name);
  each(type, box, first_sample, [&](std::int64_t position, std::int64_t index) {
    const double u = loss ? 1 : 2 * draw_uniform(k, static_cast<std::uint64_t>(index));
    out[static_cast<std::size_t>(position)] = u / count;
  });
}

}  // namespace meshwright
