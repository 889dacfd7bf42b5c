// A plan file for one small model and cluster: read, printed back, checked; judged and
// emitted when legal.
#include <nlohmann/json.hpp>

#include "api/request.h"
#include "base/json.h"
#include "emit/emitter.h"
#include "fuzz.h"
#include "plan/check.h"
#include "search/judge.h"

namespace meshwright {
namespace {

const Loaded& loaded() {
  static const Loaded kLoaded = [] {
    Request request;
    request.model = "moe-tiny";
    request.cluster = "a100-80:8";
    request.import.global_batch = 64;
    return load(request);
  }();
  return kLoaded;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const std::vector<Segment>& segments = loaded().segments;
    const Plan plan = plan_from_json(parse_json(text, "plan.json"), segments, "plan.json");
    const Json printed = plan_to_json(plan, segments);
    MW_CHECK(plan_to_json(plan_from_json(printed, segments, "printed"), segments) == printed,
             "plan does not survive printing");
    if (check_plan(plan, loaded().model.graph, segments, loaded().cluster).empty()) {
      judge(loaded().problem(), plan);
      const EmitInput input{plan, loaded().model.graph, segments, loaded().cluster, "moe-tiny"};
      for (const Emitter* emitter : all_emitters()) {
        if (emitter->why_not(input).empty()) emitter->emit(input);
      }
    }
  });
}

}  // namespace meshwright
