#include "engine/reference.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "engine/regions.h"
#include "ops/gradient_flow.h"
#include "plan/micro_batch_tables.h"

namespace meshwright {

struct Reference::Impl {
  const Graph& graph;
  const Training& training;
  std::int64_t samples, micro_batches;
  const Feeds& feeds;
  const ExecutorSettings& settings;
  MicroBatchTables tables;
  std::vector<bool> trained, unread;
  std::map<std::int32_t, OptimizerState> states;

  const TensorType& type(ValueId id) { return tables.type(id, samples); }
  LocalBuffer whole(ValueId id) {
    LocalBuffer b;
    for (const Dim& d : type(id).dims) b.box.push_back({0, d.size});
    b.core = b.box;
    return b;
  }

  // One micro-batch; adds to the gradients of the parameters. Returns its part of the loss.
  double pass(std::int64_t step, std::int64_t m, std::map<std::int32_t, at::Tensor>& gradients) {
    const std::int64_t first = m * samples;
    std::vector<at::Tensor> values(graph.values.size());
    torch::autograd::variable_list leaves;
    std::vector<std::int32_t> names;
    for (std::size_t v = 0; v < values.size(); ++v) {
      const ValueId id(static_cast<std::int64_t>(v));
      const ValueKind kind = graph.values[v].kind;
      if (kind == ValueKind::kActivation) continue;
      if (kind != ValueKind::kParameter) {
        values[v] = fed_tensor(feeds, id, type(id), whole(id), step, first, settings.numerics);
        continue;
      }
      values[v] =
          states.at(id.value).master.to(settings.numerics.type_of(type(id).dtype), false, true);
      if (!trained[v]) continue;
      values[v].set_requires_grad(true);
      leaves.push_back(values[v]);
      names.push_back(id.value);
    }
    double loss = 0;
    torch::autograd::variable_list losses, weights;
    at::AutoGradMode mode(true);
    for (const Op& op : graph.ops) {
      std::vector<TensorType> inputs, outputs;
      std::vector<Box> input_boxes, output_boxes;
      std::vector<at::Tensor> operands;
      std::vector<DType> result_types;
      for (ValueId id : op.inputs) {
        inputs.push_back(type(id));
        input_boxes.push_back(whole(id).box);
        operands.push_back(values[id.index()]);
      }
      for (ValueId id : op.outputs) {
        outputs.push_back(type(id));
        output_boxes.push_back(whole(id).box);
        result_types.push_back(type(id).dtype);
      }
      const Kernel kernel =
          kernel_of(find_op(op.kind), {op.attrs, inputs, outputs, input_boxes, output_boxes, 1, 0});
      KernelServices services;
      services.draw = {draw_key(draw_key(settings.seed, op.name), static_cast<std::uint64_t>(step)),
                       first};
      const auto results = call_kernel(kernel, operands, result_types, settings.numerics, services);
      for (std::size_t j = 0; j < results.size(); ++j) {
        const ValueId id = op.outputs[j];
        values[id.index()] = results[j];
        if (!unread[id.index()] || !trained[id.index()]) continue;
        Numerics precise = settings.numerics;
        precise.compute = precise.precise = at::kDouble;
        const auto exact = loss_weights(feeds, id, type(id), whole(id), first, precise);
        loss += results[j].detach().to(at::kDouble).mul(exact).sum().item<double>();
        losses.push_back(results[j]);
        weights.push_back(loss_weights(feeds, id, type(id), whole(id), first, settings.numerics));
      }
    }
    if (losses.empty() || leaves.empty()) return loss;
    const auto found = torch::autograd::grad(losses, leaves, weights, false, false, true);
    for (std::size_t i = 0; i < names.size(); ++i) {
      at::Tensor& sum = gradients[names[i]];
      const at::Tensor g = (found[i].defined() ? found[i] : at::zeros_like(leaves[i]))
                               .detach()
                               .to(settings.numerics.type_of(training.gradient_dtype));
      sum = sum.defined() ? sum.add(g) : g;
    }
    return loss;
  }
};

Reference::Reference(const Graph& graph, const Training& training, std::int64_t global_batch,
                     std::int64_t micro_batches, const Feeds& feeds,
                     const ExecutorSettings& settings)
    : impl_(new Impl{graph,
                     training,
                     global_batch / micro_batches,
                     micro_batches,
                     feeds,
                     settings,
                     MicroBatchTables(graph),
                     requires_gradient(graph),
                     std::vector<bool>(graph.values.size(), true),
                     {}}) {
  for (const Op& op : graph.ops) {
    for (ValueId id : op.inputs) impl_->unread[id.index()] = false;
  }
  Numerics precise = settings.numerics;
  precise.compute = precise.precise;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const ValueId id(static_cast<std::int64_t>(v));
    if (graph.values[v].kind != ValueKind::kParameter) continue;
    impl_->states[id.value] = start_state(
        training.optimizer, fed_tensor(feeds, id, impl_->type(id), impl_->whole(id), 0, 0, precise),
        precise.precise);
  }
}

Reference::~Reference() = default;

StepResult Reference::step(std::int64_t step) {
  Impl& r = *impl_;
  StepResult result;
  std::map<std::int32_t, at::Tensor> gradients;
  for (std::int64_t m = 0; m < r.micro_batches; ++m) result.loss += r.pass(step, m, gradients);
  double scale = 1;
  if (r.settings.clip_norm > 0) {
    double square = 0;
    for (const auto& [id, g] : gradients) {
      square += g.to(at::kDouble).pow(2).sum().item<double>();
    }
    result.gradient_norm = std::sqrt(square);
    if (result.gradient_norm > r.settings.clip_norm) {
      scale = r.settings.clip_norm / (result.gradient_norm + 1e-6);
    }
  }
  for (auto& [id, g] : gradients) {
    update(r.training.optimizer, r.settings.optimizer, step, g, scale, r.states.at(id));
  }
  return result;
}

std::map<std::int32_t, OptimizerState>& Reference::parameters() { return impl_->states; }

double relative_difference(const at::Tensor& part, const LocalBuffer& region,
                           const at::Tensor& whole) {
  at::Tensor want = part_of(whole, region.box);
  if (region.flat) want = want.contiguous().view({-1}).slice(0, region.begin, region.end);
  if (part.numel() == 0) return 0;
  const double scale = whole.abs().max().item<double>();
  const double most = part.to(at::kDouble).sub(want.to(at::kDouble)).abs().max().item<double>();
  if (most == 0) return 0;
  return scale == 0 ? std::numeric_limits<double>::infinity() : most / scale;
}

}  // namespace meshwright
