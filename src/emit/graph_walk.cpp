#include "emit/graph_walk.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright {

GraphWalk::GraphWalk(const Graph& graph, int first, int last)
    : graph_(graph), first_(first), last_(last) {}

const Op* GraphWalk::maker(ValueId value) const {
  const OpId op = graph_.value(value).producer;
  if (!op.valid() || op.value < first_ || op.value >= last_) return nullptr;
  return &graph_.op(op);
}

std::vector<const Op*> GraphWalk::readers(ValueId value) const {
  std::vector<const Op*> found;
  for (int i = first_; i < last_; ++i) {
    const Op& op = graph_.ops[static_cast<std::size_t>(i)];
    if (std::ranges::find(op.inputs, value) != op.inputs.end()) found.push_back(&op);
  }
  return found;
}

std::vector<const Op*> GraphWalk::of_kind(std::string_view kind) const {
  std::vector<const Op*> found;
  for (int i = first_; i < last_; ++i) {
    const Op& op = graph_.ops[static_cast<std::size_t>(i)];
    if (op.kind == kind) found.push_back(&op);
  }
  return found;
}

const Op& GraphWalk::take_maker(ValueId value, std::string_view kind, std::string_view what) {
  const Op* op = maker(value);
  if (op == nullptr) throw Unreadable{fmt::format("{} comes from elsewhere", what)};
  if (op->kind != kind) {
    throw Unreadable{fmt::format("{} is made by {}, not by a {}", what, describe(*op), kind)};
  }
  take(*op);
  return *op;
}

void GraphWalk::expect_all_taken() const {
  for (int i = first_; i < last_; ++i) {
    const Op& op = graph_.ops[static_cast<std::size_t>(i)];
    if (!taken(op)) throw Unreadable{fmt::format("there is no place for {}", describe(op))};
  }
}

std::vector<ValueId> GraphWalk::incoming() const {
  std::vector<ValueId> values;
  for (int i = first_; i < last_; ++i) {
    for (ValueId id : graph_.ops[static_cast<std::size_t>(i)].inputs) {
      const ValueKind kind = graph_.value(id).kind;
      if (kind == ValueKind::kParameter || kind == ValueKind::kBuffer) continue;
      if (maker(id) == nullptr && std::ranges::find(values, id) == values.end()) {
        values.push_back(id);
      }
    }
  }
  return values;
}

std::string describe(const Op& op) { return fmt::format("'{}' ({})", op.name, op.kind); }

}  // namespace meshwright
