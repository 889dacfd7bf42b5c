#include "engine/split_kernel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/call_kernel.h"
#include "mesh/region.h"
#include "run/draw.h"

namespace meshwright {
namespace {

// Where integer operands must stay below.
std::int64_t integer_bound(const KernelCase& c) {
  const std::string_view kind = c.def->kind;
  if (kind == "embedding") return c.inputs[1].dims[0].size;
  if (kind == "gather") {
    std::int64_t dim = attr_int(c.attrs, "dim", 0);
    if (dim < 0) dim += c.inputs[0].rank();
    return c.inputs[0].dims[static_cast<std::size_t>(dim)].size;
  }
  return 5;
}

at::Tensor draw_tensor(const KernelCase& c, std::size_t k, std::uint64_t key) {
  const std::string_view kind = c.def->kind;
  const TensorType& type = c.inputs[k];
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : type.dims) sizes.push_back(dim.size);
  at::Tensor t = at::empty(sizes, at::kDouble);
  double* data = t.data_ptr<double>();
  const auto uniform = [&](std::int64_t i) {
    return draw_uniform(key, static_cast<std::uint64_t>(i));
  };
  if (is_floating(type.dtype)) {
    // Most tokens do not choose an expert.
    const bool sparse = kind.starts_with("moe_") && kind != "moe_router" && k == 1;
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      const double u = uniform(i);
      data[i] = sparse ? std::max(0.0, u - 0.75) : 2 * u - 1;
    }
    return t;
  }
  // Labels include some that are no word: they count for nothing.
  const bool labels = kind == "cross_entropy";
  const std::int64_t low = labels ? -2 : 0;
  const std::int64_t high = labels ? c.inputs[0].dims.back().size + 2 : integer_bound(c);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    data[i] = static_cast<double>(low) + std::floor(uniform(i) * static_cast<double>(high - low));
  }
  return t.to(parse_numerics("float64").type_of(type.dtype));
}

at::Tensor part_of(at::Tensor t, const Box& box) {
  for (std::size_t d = 0; d < box.size(); ++d) {
    t = t.slice(static_cast<std::int64_t>(d), box[d].begin, box[d].end);
  }
  return t;
}

// Which of a mesh's devices along some axes this is.
int index_along(const Mesh& mesh, std::uint32_t axes, const std::vector<int>& at) {
  int index = 0;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
    if (axes >> a & 1u) index = index * mesh.axes[a].size + at[a];
  }
  return index;
}

// Adds the rows that lowering takes from the neighbours.
void widen(const KernelCase& c, const Strategy& strategy, const Mesh& mesh, std::size_t input,
           Box& box) {
  int widened = 0;
  for (std::size_t f = 0; f < c.rule.factors.size(); ++f) {
    const Factor& factor = c.rule.factors[f];
    const int parts = mesh.size(strategy.factors[f]);
    if (factor.kind != FactorKind::kHalo || parts == 1) continue;
    const auto widths = c.def->halo == nullptr
                            ? std::nullopt
                            : c.def->halo({c.attrs, c.inputs, c.outputs}, factor.id);
    if (!widths || factor.size % parts != 0 ||
        factor.size / parts < std::max(widths->before, widths->after)) {
      throw Error(fmt::format("'{}' cannot be split into {} parts", factor.label, parts));
    }
    const RuleTensor& tensor = c.rule.inputs[input];
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
      if (tensor.dims[d].factors != std::vector<int>{static_cast<int>(f)}) continue;
      if (widths->before == 0 && widths->after == 0) continue;
      if (++widened > 1) throw Error("only one dimension of an operand may have a halo");
      box[d].begin = std::max<std::int64_t>(box[d].begin - widths->before, 0);
      box[d].end = std::min(box[d].end + widths->after, c.inputs[input].dims[d].size);
    }
  }
}

// Collectives of devices that run one after the other: a device that reaches one which others have
// yet to reach stops, and all run again with its result known.
struct Paused {};
struct Group {
  std::vector<at::Tensor> known;
  std::vector<at::Tensor> pending;
  bool maximum = false;

  void close_round() {
    at::Tensor sum = pending.at(0);
    for (std::size_t i = 1; i < pending.size(); ++i) {
      sum = maximum ? at::maximum(sum, pending[i]) : sum + pending[i];
    }
    known.push_back(sum);
    pending.clear();
  }
};

}  // namespace

KernelCase draw_case(const OpDef& def, const OpDef::Example& example) {
  KernelCase c;
  c.def = &def;
  c.attrs = example.attrs;
  c.inputs = example.inputs;
  c.rule = rule_of(def, {c.attrs, c.inputs, {}});
  c.outputs = infer(def, {c.attrs, c.inputs, {}});
  for (std::size_t k = 0; k < c.inputs.size(); ++k) {
    c.operands.push_back(draw_tensor(c, k, draw_key(k, def.kind)));
  }
  for (std::size_t k = 0; k < c.outputs.size(); ++k) {
    std::vector<std::int64_t> sizes;
    for (const Dim& dim : c.outputs[k].dims) sizes.push_back(dim.size);
    at::Tensor seed = at::empty(sizes, at::kDouble);
    for (std::int64_t i = 0; i < seed.numel(); ++i) {
      seed.data_ptr<double>()[i] =
          2 * draw_uniform(draw_key(k, "seed"), static_cast<std::uint64_t>(i)) - 1;
    }
    c.seeds.push_back(seed);
  }
  return c;
}

KernelRun run_split(const KernelCase& c, const Strategy& strategy, const Mesh& mesh,
                    std::string_view numerics_name) {
  const Numerics numerics = parse_numerics(numerics_name);
  std::uint32_t summed = 0;
  for (std::size_t f = 0; f < c.rule.factors.size(); ++f) {
    if (c.rule.factors[f].kind == FactorKind::kSum) summed |= strategy.factors[f].mask();
  }
  std::vector<DType> types;
  for (const TensorType& t : c.outputs) types.push_back(t.dtype);

  struct Device {
    std::vector<Box> inputs, outputs;
    Kernel kernel;
    int group = 0;
    std::vector<at::Tensor> operands, results;
  };
  std::vector<Device> devices;
  for (int position = 0; position < mesh.device_count(); ++position) {
    const std::vector<int> at = mesh_coordinates(mesh, position);
    Device d;
    for (std::size_t k = 0; k < c.inputs.size(); ++k) {
      d.inputs.push_back(box_of(c.inputs[k], input_sharding(c.rule, strategy, k), mesh, at));
      widen(c, strategy, mesh, k, d.inputs.back());
      at::Tensor part = part_of(c.operands[k], d.inputs.back())
                            .to(numerics.type_of(c.inputs[k].dtype), /*non_blocking=*/false,
                                /*copy=*/true);
      d.operands.push_back(part.requires_grad_(is_floating(c.inputs[k].dtype)));
    }
    for (std::size_t k = 0; k < c.outputs.size(); ++k) {
      d.outputs.push_back(box_of(c.outputs[k], output_sharding(c.rule, strategy, k), mesh, at));
    }
    d.kernel = kernel_of(*c.def, {c.attrs, c.inputs, c.outputs, d.inputs, d.outputs,
                                  mesh.size(axes_of_mask(summed)), index_along(mesh, summed, at)});
    d.group = index_along(mesh, ~summed, at);
    devices.push_back(std::move(d));
  }

  std::vector<Group> groups(devices.size());
  for (bool paused = true; paused;) {
    paused = false;
    for (Device& d : devices) {
      Group& group = groups[static_cast<std::size_t>(d.group)];
      std::size_t reached = 0;
      KernelServices services;
      services.draw = {draw_key(5, "draw"), 3};
      services.group_reduce = [&](at::Tensor& t, bool maximum) {
        if (reached == group.known.size()) {
          group.pending.push_back(t);
          group.maximum = maximum;
          throw Paused();
        }
        t = group.known[reached++].clone();
      };
      try {
        d.results = call_kernel(d.kernel, d.operands, types, numerics, services);
      } catch (const Paused&) {
        paused = true;
      }
    }
    for (Group& group : groups) {
      if (!group.pending.empty()) group.close_round();
    }
  }

  KernelRun run;
  for (const at::Tensor& seed : c.seeds) run.results.push_back(at::zeros_like(seed));
  for (std::size_t k = 0; k < c.operands.size(); ++k) {
    run.gradients.push_back(is_floating(c.inputs[k].dtype) ? at::zeros_like(c.operands[k])
                                                           : at::Tensor());
  }
  for (Device& d : devices) {
    std::vector<at::Tensor> from, seeds, to;
    std::vector<std::size_t> wanted;
    for (std::size_t k = 0; k < d.results.size(); ++k) {
      if (d.results[k].sizes() != at::IntArrayRef(sizes_of(d.outputs[k]))) {
        throw InternalError(fmt::format("a part of result {} has the wrong shape", k));
      }
      part_of(run.results[k], d.outputs[k]).add_(d.results[k].detach().to(at::kDouble));
      if (!at::GradMode::is_enabled() || !d.results[k].requires_grad()) continue;
      from.push_back(d.results[k]);
      seeds.push_back(part_of(c.seeds[k], d.outputs[k]).to(d.results[k].scalar_type()));
    }
    for (std::size_t k = 0; k < d.operands.size(); ++k) {
      if (!d.operands[k].requires_grad()) continue;
      to.push_back(d.operands[k]);
      wanted.push_back(k);
    }
    if (from.empty() || to.empty()) continue;
    const auto gradients = torch::autograd::grad(from, to, seeds, /*retain_graph=*/false,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (gradients[i].defined()) {
        part_of(run.gradients[wanted[i]], d.inputs[wanted[i]]).add_(gradients[i].to(at::kDouble));
      }
    }
  }
  return run;
}

KernelRun run_whole(const KernelCase& c, std::string_view numerics) {
  Strategy strategy;
  strategy.factors.resize(c.rule.factors.size());
  return run_split(c, strategy, Mesh{}, numerics);
}

Mesh test_mesh(std::initializer_list<int> sizes) {
  Mesh mesh;
  int stride = 1;
  for (int size : sizes) {
    mesh.axes.push_back({fmt::format("a{}", mesh.axes.size()), size, stride});
    stride *= size;
  }
  return mesh;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return a.numel() == 0 ? 0 : 1;
  const double scale = std::max(1.0, b.abs().max().item<double>());
  return (a - b).abs().max().item<double>() / scale;
}

}  // namespace meshwright
