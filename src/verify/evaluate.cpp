#include "verify/evaluate.h"

#include <fmt/format.h>

#include "base/error.h"
#include "verify/machine.h"

namespace meshwright {
namespace {

std::int64_t element_count(const TensorType& type) {
  std::int64_t count = 1;
  for (const Dim& d : type.dims) count *= d.size;
  return count;
}

}  // namespace

void Evaluation::run_reference() {
  std::map<std::int32_t, Data> sums;
  for (std::int64_t m = 0; m < plan.micro_batches; ++m) {
    std::vector<Data> values(graph.values.size()), gradients(graph.values.size());
    std::vector<Box> boxes;
    for (std::size_t v = 0; v < values.size(); ++v) {
      const ValueId id(static_cast<std::int64_t>(v));
      Box& box = boxes.emplace_back();
      for (const Dim& d : type(id).dims) box.push_back({0, d.size});
      values[v].resize(static_cast<std::size_t>(element_count(type(id))));
      if (graph.values[v].kind == ValueKind::kActivation) continue;
      for (std::size_t i = 0; i < values[v].size(); ++i) {
        values[v][i] = given(id, m, static_cast<std::int64_t>(i));
      }
    }
    const auto parts = [&](const std::vector<ValueId>& ids, std::vector<Data>& from) {
      std::vector<Part> list;
      for (ValueId id : ids) {
        const Data& d = from[id.index()];
        list.push_back({&boxes[id.index()], &boxes[id.index()], d.empty() ? nullptr : &d});
      }
      return list;
    };
    for (std::size_t o = 0; o < graph.ops.size(); ++o) {
      const Op& op = graph.ops[o];
      for (std::size_t j = 0; j < op.outputs.size(); ++j) {
        const std::size_t v = op.outputs[j].index();
        MW_CHECK(
            stand_in.forward(static_cast<int>(o), parts(op.inputs, values), j, boxes[v], values[v]),
            "the stand-in refuses whole operands");
        if (unread[v]) losses[{op.outputs[j].value, m}] = values[v];
      }
    }
    for (std::size_t o = graph.ops.size(); o-- > 0;) {
      const Op& op = graph.ops[o];
      bool any = false;
      for (ValueId id : op.outputs) {
        const std::size_t v = id.index();
        if (!trained[v]) continue;
        if (gradients[v].empty()) {
          gradients[v].resize(values[v].size());
          for (std::size_t i = 0; i < values[v].size(); ++i) {
            gradients[v][i] = loss_gradient(id, static_cast<std::int64_t>(i));
          }
        }
        any = true;
      }
      if (!any) continue;
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        const std::size_t v = op.inputs[k].index();
        if (!trained[v]) continue;
        Data& sum = gradients[v];
        sum.resize(values[v].size());
        MW_CHECK(stand_in.backward(static_cast<int>(o), parts(op.outputs, gradients),
                                   parts(op.inputs, values), parts(op.outputs, values), k, boxes[v],
                                   boxes[v], sum),
                 "the stand-in refuses whole operands");
      }
    }
    for (std::size_t v = 0; v < values.size(); ++v) {
      if (graph.values[v].kind != ValueKind::kParameter || !trained[v]) continue;
      Data& sum = sums[static_cast<std::int32_t>(v)];
      sum.resize(values[v].size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = plus(sum[i], gradients[v][i]);
    }
  }
  for (const auto& [id, sum] : sums) {
    Data& after = parameters[id];
    for (std::size_t i = 0; i < sum.size(); ++i) {
      after.push_back(updated(given(ValueId(id), 0, static_cast<std::int64_t>(i)), sum[i]));
    }
  }
}

struct Evaluator::Impl : Evaluation {
  using Evaluation::Evaluation;
};

Evaluator::Evaluator(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments,
                     std::uint64_t seed)
    : impl_(new Impl(plan, graph, segments, seed)) {
  double products = 0;
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    double all = 1;
    for (const Factor& f : impl_->stand_in.rule(static_cast<int>(o)).factors) {
      all *= static_cast<double>(f.size);
    }
    products += all * static_cast<double>(plan.micro_batches);
  }
  for (const Op& op : graph.ops) {
    if (op.inputs.size() + op.outputs.size() <= StandIn::kMaxTensors) continue;
    throw Error(fmt::format("operator {} has {} operands and results; at most {} can be evaluated",
                            op.name, op.inputs.size() + op.outputs.size(), StandIn::kMaxTensors),
                "mutants");
  }
  constexpr double kMaxProducts = 1e7;
  if (products > kMaxProducts) {
    throw Error(fmt::format("evaluating {} takes {:.1e} products; at most {:.0e} are done",
                            graph.name, products, kMaxProducts),
                "mutants", "take a model with smaller sizes");
  }
  impl_->run_reference();
}

Evaluator::~Evaluator() = default;

std::string Evaluator::difference(const Program& program) { return Machine(*impl_, program).run(); }

}  // namespace meshwright
