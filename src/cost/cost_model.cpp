#include "cost/cost_model.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr const CostModel* kModels[] = {
    &kAnalytic,
    &kProfiled,
};

}  // namespace

std::span<const CostModel* const> all_cost_models() { return kModels; }

const CostModel& find_cost_model(std::string_view name) {
  std::string known;
  for (const CostModel* model : kModels) {
    if (model->name == name) return *model;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", model->name);
  }
  throw Error(fmt::format("unknown cost model '{}'", name), {}, "known: " + known);
}

}  // namespace meshwright
