#include "ops/builder.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/op_def.h"

namespace meshwright {
namespace {

// Far above any real model (a 100,000-operator graph has about half a million values).
constexpr std::size_t kMaxValues = 20'000'000;

}  // namespace

GraphBuilder::GraphBuilder(std::string graph_name, DType dtype) : dtype_(dtype) {
  graph_.name = std::move(graph_name);
}

GraphBuilder::Scope GraphBuilder::scope(std::string_view name) {
  const std::size_t previous = prefix_.size();
  prefix_ += name;
  prefix_ += '.';
  return Scope(*this, previous);
}

GraphBuilder::Scope::~Scope() { builder_.prefix_.resize(previous_); }

std::string GraphBuilder::path(std::string_view name) const { return prefix_ + std::string(name); }

ValueId GraphBuilder::add_value(std::string_view name, TensorType type, ValueKind kind) {
  std::string full = path(name);
  check_tensor_type(type, full);
  if (graph_.values.size() >= kMaxValues) throw Error("the model has too many values", full);
  graph_.values.push_back({std::move(full), std::move(type), kind, OpId()});
  return ValueId(static_cast<std::int64_t>(graph_.values.size()) - 1);
}

ValueId GraphBuilder::input(std::string_view name, TensorType type) {
  return add_value(name, std::move(type), ValueKind::kInput);
}

ValueId GraphBuilder::parameter(std::string_view name, std::vector<Dim> dims) {
  return add_value(name, {dtype_, std::move(dims)}, ValueKind::kParameter);
}

ValueId GraphBuilder::buffer(std::string_view name, TensorType type) {
  return add_value(name, std::move(type), ValueKind::kBuffer);
}

std::vector<ValueId> GraphBuilder::add(std::string_view kind, std::string_view name,
                                       std::vector<ValueId> inputs, Attrs attrs) {
  Op op{std::string(kind), path(name), std::move(attrs), std::move(inputs), {}};
  std::vector<TensorType> types;
  types.reserve(op.inputs.size());
  for (ValueId id : op.inputs) types.push_back(type(id));
  std::vector<TensorType> results;
  try {
    results = infer(find_op(kind), {op.attrs, types, {}});
  } catch (const Error& e) {
    throw e.within(fmt::format("{} ({})", op.name, kind));
  }
  const OpId id(static_cast<std::int64_t>(graph_.ops.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string suffix = results.size() == 1 ? "" : fmt::format(":{}", i);
    const ValueId value =
        add_value(fmt::format("{}{}", name, suffix), std::move(results[i]), ValueKind::kActivation);
    graph_.values.back().producer = id;
    op.outputs.push_back(value);
  }
  graph_.ops.push_back(std::move(op));
  return graph_.ops.back().outputs;
}

ValueId GraphBuilder::op(std::string_view kind, std::string_view name, std::vector<ValueId> inputs,
                         Attrs attrs) {
  const std::vector<ValueId> results = add(kind, name, std::move(inputs), std::move(attrs));
  MW_CHECK(results.size() == 1, fmt::format("{} has {} results", kind, results.size()));
  return results[0];
}

ValueId GraphBuilder::linear(std::string_view name, ValueId x, Dim out, bool bias) {
  const Dim in = type(x).dims.back();
  std::vector<ValueId> inputs = {x, parameter(fmt::format("{}.weight", name), {out, in})};
  if (bias) inputs.push_back(parameter(fmt::format("{}.bias", name), {out}));
  return op("linear", name, std::move(inputs));
}

ValueId GraphBuilder::rms_norm(std::string_view name, ValueId x) {
  const Dim last = type(x).dims.back();
  return op("rms_norm", name, {x, parameter(fmt::format("{}.weight", name), {last})});
}

ValueId GraphBuilder::layer_norm(std::string_view name, ValueId x, bool bias) {
  const Dim last = type(x).dims.back();
  std::vector<ValueId> inputs = {x, parameter(fmt::format("{}.weight", name), {last})};
  if (bias) inputs.push_back(parameter(fmt::format("{}.bias", name), {last}));
  return op("layer_norm", name, std::move(inputs));
}

Graph GraphBuilder::finish() {
  check_graph(graph_);
  return std::move(graph_);
}

}  // namespace meshwright
