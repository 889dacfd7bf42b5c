#include <fmt/format.h>

#include "import/onnx/emitter.h"

namespace meshwright::onnx {
namespace {

double epsilon(Emitter& e) {
  const double eps = e.view().attr("epsilon", 1e-5);
  return eps >= 0 && eps <= 1 ? eps : 1e-5;
}

void last_dim(Emitter& e, std::string_view kind) {
  const std::int64_t rank = e.view().rank(0);
  const bool last =
      axis_in(e.view().attr("axis", std::int64_t{-1}), rank) + 1 == static_cast<std::size_t>(rank);
  if (!last || e.is_used(1) || e.is_used(2) || !e.is_floating(0)) return e.opaque();
  const ValueId x = e.in(0);
  std::vector<ValueId> inputs = {x};
  for (std::size_t i = 1; i < e.view().count(); ++i) {
    if (e.view().in(i).elements() != static_cast<double>(e.type(x).dims.back().size))
      return e.opaque();
    inputs.push_back(e.vector(i, e.type(x).dims.back()));
  }
  e.result(e.op(kind, std::move(inputs), {{"eps", epsilon(e)}}));
}

void layer_norm(Emitter& e) { last_dim(e, "layer_norm"); }
void rms_norm(Emitter& e) { last_dim(e, "rms_norm"); }

void batch_norm(Emitter& e) {
  for (std::size_t k = 1; k < e.node().outputs.size(); ++k) {
    // Running statistics are state, not part of the step.
    if (e.is_used(k)) return e.opaque();
  }
  const ValueId x = e.in(0);
  std::vector<ValueId> inputs = {x};
  for (std::size_t i = 1; i < 5; ++i) inputs.push_back(e.vector(i, e.type(x).dims[1]));
  e.result(e.op("batch_norm", std::move(inputs), {{"eps", epsilon(e)}}));
}

void instance_norm(Emitter& e) {
  if (e.view().rank(0) < 2 || !e.is_floating(0)) return e.opaque();
  const ValueId x = e.in(0);
  const Dim channels = e.type(x).dims[1];
  e.result(e.op("instance_norm", {x, e.vector(1, channels), e.vector(2, channels)},
                {{"eps", epsilon(e)}}));
}

void group_norm(Emitter& e) {
  if (e.view().rank(0) < 2 || !e.is_floating(0)) return e.opaque();
  const std::int64_t groups = e.view().attr("num_groups", std::int64_t{0});
  const ValueId x = e.in(0);
  const Dim channels = e.type(x).dims[1];
  // Before opset 21 scale and shift were per group.
  const bool per_channel = e.view().in(1).elements() == static_cast<double>(channels.size);
  if (!per_channel || groups < 1 || channels.size % groups != 0) return e.opaque();
  e.result(e.op("group_norm", {x, e.vector(1, channels), e.vector(2, channels)},
                {{"eps", epsilon(e)}, {"groups", groups}}));
}

void lrn(Emitter& e) {
  e.result(
      e.op("over_dims", {e.in(0)},
           {{"fn", std::string("local_response_norm")}, {"dims", std::vector<std::int64_t>{1}}}));
}

void lp_normalize(Emitter& e) {
  const auto axis =
      static_cast<std::int64_t>(axis_in(e.view().attr("axis", std::int64_t{-1}), e.view().rank(0)));
  e.result(e.op("over_dims", {e.in(0)},
                {{"fn", std::string("lp_normalize")}, {"dims", std::vector<std::int64_t>{axis}}}));
}

constexpr EmitRow kRows[] = {
    {"LayerNormalization", layer_norm}, {"RMSNormalization", rms_norm},
    {"BatchNormalization", batch_norm}, {"InstanceNormalization", instance_norm},
    {"GroupNormalization", group_norm}, {"LRN", lrn},
    {"LpNormalization", lp_normalize},
};

}  // namespace

std::span<const EmitRow> norm_emitters() { return kRows; }

}  // namespace meshwright::onnx
