#include "api/replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "base/json.h"
#include "cluster/without_device.h"
#include "plan/lanes.h"
#include "search/layout_search.h"

namespace meshwright {

Replan plan_without(const std::string& plan, int lost, const std::string& directory,
                    const std::string& name, const std::atomic<bool>* stop) {
  const std::string hint = "make a plan for fewer devices and give it as --restart-plan";
  const PlanFile file = read_plan_file(plan);
  const Cluster& cluster = file.loaded.cluster;
  if (cluster.device_count() == 1) {
    throw Error("the plan's cluster has only one device", plan, hint);
  }
  const auto beside = [&](const char* what) {
    return (std::filesystem::absolute(directory) / fmt::format("{}{}.json", name, what)).string();
  };
  std::error_code ignored;  // Writing says what is wrong.
  std::filesystem::create_directories(directory, ignored);
  Request request = file.loaded.request;
  request.cluster = beside("-cluster");
  write_file(request.cluster, print_cluster(without_device(cluster, DeviceId(lost))), true);
  const Loaded loaded = load(std::move(request));
  const Problem whole = loaded.problem();
  // Those that a legal layout uses need not fit; fewer may have one that does.
  for (int devices = loaded.cluster.device_count(); devices >= 1; --devices) {
    Problem problem = whole;
    problem.restrictions.devices = devices;
    SearchControl control;
    control.top = 1;
    control.stop = stop;
    const SearchResult found = search_layouts(problem, control);
    if (stop != nullptr && stop->load()) throw Error("interrupted while planning again");
    if (found.status != SearchStatus::kFound) continue;
    const Judged& best = found.ranking[0];
    const std::string path = beside("");
    write_file(path, plan_file_to_json(loaded, best).dump(2) + "\n", true);
    return {path,
            fmt::format("{} on {} of {} devices, {} a step predicted", to_string(best.plan.degrees),
                        devices, loaded.cluster.device_count(), format_seconds(best.step()))};
  }
  throw Error(fmt::format("no legal layout on fewer than {} devices fits", cluster.device_count()),
              plan, hint);
}

}  // namespace meshwright
