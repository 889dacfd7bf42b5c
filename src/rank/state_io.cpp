#include "rank/state_io.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace meshwright {
namespace {

DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBf16;
    default:
      throw InternalError("a parameter of an element type that checkpoints do not hold");
  }
}

std::vector<std::int64_t> shape_of(const TensorType& type) {
  std::vector<std::int64_t> shape;
  for (const Dim& d : type.dims) shape.push_back(d.size);
  return shape;
}

std::pair<std::int64_t, std::int64_t> range_of(const LocalBuffer& region) {
  if (region.flat) return {region.begin, region.end};
  return {0, element_count(region.box)};
}

// Calls f(part's name, tensor) for what the optimizer holds.
template <typename F>
void each_part(OptimizerState& state, F&& f) {
  f("parameter", state.master);
  if (state.moment1.defined()) f("moment1", state.moment1);
  if (state.moment2.defined()) f("moment2", state.moment2);
}

void write(CheckpointWriter& writer, const std::string& tensor, const char* part,
           const TensorType& type, const LocalBuffer& region, const at::Tensor& data) {
  const at::Tensor bytes = data.to(at::kCPU).contiguous();
  const auto [begin, end] = range_of(region);
  writer.add({tensor,
              part,
              dtype_of(bytes),
              shape_of(type),
              region.box,
              begin,
              end,
              {static_cast<const std::byte*>(bytes.data_ptr()),
               static_cast<std::size_t>(bytes.numel()) * bytes.element_size()}});
}

void read(CheckpointReader& reader, const std::string& tensor, const char* part,
          const LocalBuffer& region, at::Tensor& data) {
  const at::Tensor bytes = at::empty(data.sizes(), data.options().device(at::kCPU));
  const auto [begin, end] = range_of(region);
  reader.read(tensor, part, region.box, begin, end, dtype_of(bytes),
              {static_cast<std::byte*>(bytes.data_ptr()),
               static_cast<std::size_t>(bytes.numel()) * bytes.element_size()});
  data.copy_(bytes);
}

}  // namespace

std::string facts_to_text(const RunFacts& facts) {
  return Json{{"seed", facts.seed},
              {"optimizer", facts.optimizer},
              {"dtype", facts.dtype},
              {"global_batch", facts.global_batch}}
      .dump();
}

RunFacts facts_from_text(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  const auto bad = [&] { return Error("says nothing of the run that wrote it", source); };
  if (!json.is_object()) throw bad();
  RunFacts facts;
  try {
    facts.seed = json.at("seed").get<std::uint64_t>();
    facts.optimizer = json.at("optimizer").get<std::string>();
    facts.dtype = json.at("dtype").get<std::string>();
    facts.global_batch = json.at("global_batch").get<std::int64_t>();
  } catch (const Json::exception&) {
    throw bad();
  }
  return facts;
}

void write_state(CheckpointWriter& writer, Executor& executor, const Graph& graph) {
  std::set<std::int32_t> trained;
  for (const HeldState& held : executor.states()) {
    trained.insert(held.value.value);
    if (!held.owner) continue;
    each_part(*held.state, [&](const char* part, const at::Tensor& data) {
      write(writer, graph.value(held.value).name, part, held.type, held.region, data);
    });
  }
  for (const Executor::HeldParameter& held : executor.parameters()) {
    if (!held.owner || trained.contains(held.value.value)) continue;
    write(writer, graph.value(held.value).name, "parameter", held.type, held.region, held.data);
  }
}

void read_state(CheckpointReader& reader, Executor& executor, const Graph& graph) {
  for (const HeldState& held : executor.states()) {
    each_part(*held.state, [&](const char* part, at::Tensor& data) {
      read(reader, graph.value(held.value).name, part, held.region, data);
    });
  }
  std::set<std::int32_t> trained;
  for (const HeldState& held : executor.states()) trained.insert(held.value.value);
  for (const Executor::HeldParameter& held : executor.parameters()) {
    at::Tensor data = held.data;
    // As the optimizer has it, and rounded to what is held at rest.
    at::Tensor exact = trained.contains(held.value.value)
                           ? at::empty(data.sizes(), data.options().dtype(executor.precise()))
                           : data;
    read(reader, graph.value(held.value).name, "parameter", held.region, exact);
    data.copy_(exact);
  }
}

void read_state(CheckpointReader& reader, Reference& reference, const Graph& graph) {
  for (auto& [id, state] : reference.parameters()) {
    LocalBuffer whole;
    for (std::int64_t size : state.master.sizes()) whole.box.push_back({0, size});
    const std::string& name = graph.value(ValueId(id)).name;
    each_part(state, [&](const char* part, at::Tensor& data) {
      if (part != std::string_view("parameter") && !reader.holds(name, part)) return;
      read(reader, name, part, whole, data);
    });
  }
}

}  // namespace meshwright
