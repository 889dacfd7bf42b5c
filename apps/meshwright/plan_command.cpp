#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "api/advise.h"
#include "api/request.h"
#include "api/space_report.h"
#include "base/error.h"
#include "base/files.h"
#include "base/format.h"
#include "cli.h"
#include "plan/lanes.h"
#include "report/plan_report.h"
#include "request_options.h"
#include "search/layout_search.h"

namespace meshwright::cli {
namespace {

struct PlanOptions {
  RequestOptions request;
  int top = 5;
  double time_limit = 0;
  std::string output;
  bool force = false;
  bool json = false;
};

// Fewer devices may give more tokens per dollar: try halves of the cluster and keep the cheapest.
SearchResult cheapest(const Problem& problem, const SearchControl& control) {
  SearchResult best;
  const auto device_seconds = [](const SearchResult& r) {
    int devices = 0;
    for (const Lane& lane : lanes_of(r.ranking[0].plan)) devices += lane.mesh.device_count();
    return devices * r.ranking[0].step().value;
  };
  int devices = problem.restrictions.devices != 0 ? problem.restrictions.devices
                                                  : problem.cluster.device_count();
  for (; devices >= 1; devices /= 2) {
    Problem part = problem;
    part.restrictions.devices = devices;
    SearchResult r = search_layouts(part, control);
    if (r.ranking.empty() || !r.ranking[0].fits) {
      if (best.ranking.empty()) best = std::move(r);
      break;
    }
    if (best.ranking.empty() || !best.ranking[0].fits || device_seconds(r) < device_seconds(best)) {
      best = std::move(r);
      best.note = fmt::format("{} devices give the most tokens per dollar", devices);
    }
    if (r.status == SearchStatus::kInterrupted) break;
  }
  return best;
}

int run(const PlanOptions& o) {
  // Before the search rather than after it.
  if (!o.output.empty()) check_writable(o.output, o.force);
  if (!(o.time_limit >= 0)) {
    throw Error(fmt::format("must be 0 (none) or more seconds: {}", o.time_limit), "--time-limit");
  }
  if (o.top < 1 || o.top > 1000)
    throw Error(fmt::format("must be between 1 and 1000: {}", o.top), "--top");
  const Loaded loaded = load(to_request(o.request));
  if (const std::string conflict = contradiction(loaded); !conflict.empty()) {
    print("no plan obeys every rule; " + conflict);
    return kNoPlan;
  }
  const Problem problem = loaded.problem();
  const ModelSummary model = summarize(loaded.model.graph, loaded.model_name);

  SearchControl control;
  control.top = o.top;
  control.time_limit_seconds = o.time_limit;
  control.stop = &interrupted();
  SearchResult result;
  {
    ProgressLine line;
    control.progress = [&](const SearchProgress& p) {
      line.show(fmt::format("{} layouts, best {} {}", p.evaluated, format_seconds(p.best),
                            p.best_layout));
    };
    result = problem.objective == Objective::kCost ? cheapest(problem, control)
                                                   : search_layouts(problem, control);
  }
  if (result.status == SearchStatus::kNothingLegal) {
    if (interrupted()) throw Error("interrupted before any plan was found");
    if (loaded.space) {
      const std::string conflict = conflict_text(loaded, /*fitting=*/false);
      if (!conflict.empty()) {
        print("no plan obeys every rule; " + conflict);
        return kNoPlan;
      }
    }
    throw Error("no legal layout: " + explain_illegal(problem, problem.restrictions));
  }
  if (!o.json) {
    int layers = 0;
    for (const Segment& s : loaded.segments) layers += s.is_layer;
    print(fmt::format("model    {} ({}): {} parameters, {} layers\n", model.name,
                      loaded.model.family, format_integer(static_cast<long long>(model.parameters)),
                      layers));
    print(fmt::format("cluster  {}: {} x {} in {} hosts\n", loaded.cluster.name,
                      loaded.cluster.device_count(),
                      loaded.cluster.homogeneous() ? loaded.cluster.kinds[0].name : "mixed devices",
                      loaded.cluster.hosts.size()));
    const std::string shape =
        model.unit == "tokens" ? fmt::format("{} x {}", loaded.model.global_batch, loaded.model.seq)
                               : fmt::format("{}", loaded.model.global_batch);
    print(fmt::format("batch    {} = {} {} per step; {}, {}\n\n", shape,
                      format_count(model.tokens_per_step), model.unit,
                      dtype_name(problem.training.dtype), problem.training.optimizer));
    for (const std::string& note : loaded.model.notes) print("note     " + note + "\n");
  }
  if (result.status == SearchStatus::kNothingFits) {
    if (o.json) {
      print("{\"status\": \"nothing_fits\"}\n");
    } else {
      ProgressLine line;
      line.show("looking for what would fit");
      print(advise(loaded, result, control));
      if (loaded.space) {
        const std::string conflict = conflict_text(loaded, /*fitting=*/true);
        print(conflict.empty() ? "\nthe rules of the space are not at fault\n" : "\n" + conflict);
      }
    }
    return kNoPlan;
  }
  if (o.json) {
    Json plans = Json::array();
    for (const Judged& j : result.ranking) {
      Json entry = plan_file_to_json(loaded, j);
      entry["lost_because"] = j.lost_because;
      plans.push_back(std::move(entry));
    }
    print(plans.dump(2) + "\n");
  } else {
    if (const auto& coverage = result.ranking[0].coverage) {
      print("note     " + to_string(*coverage) + "\n");
    }
    if (!result.note.empty()) print("note     " + result.note + "\n");
    print(search_text(problem, model, result));
    print(fmt::format(
        "\n{} legal layouts, {} fit and priced in full, {} simulated in {:.2f} s{}\n", result.legal,
        result.fitting, result.simulated, result.elapsed_seconds,
        result.status == SearchStatus::kInterrupted ? " (stopped early: best so far)" : ""));
    for (const auto& [rule, count] : result.forbidden) {
      print(fmt::format("{} more layouts are forbidden by rule {}\n", count, rule));
    }
    if (result.lower_bound.value > 0) {
      print(fmt::format("no layout of this space can take less than {} by this cost model\n",
                        format_seconds(result.lower_bound)));
    }
  }
  if (!o.output.empty()) {
    write_file(o.output, plan_file_to_json(loaded, result.ranking[0]).dump(2) + "\n", o.force);
    if (!o.json) print(fmt::format("plan written to {}\n", o.output));
  }
  return kOk;
}

constexpr const char* kFooter = R"(Examples:
  meshwright plan llama-3-70b dgx-h100:8 --global-batch 1024 --seq 8192
  meshwright plan config.json a100-80:4x8@ib200 --tp 8 --pp 2..8 -o plan.json
  meshwright plan --layers 96 --hidden 12288 --heads 96 dgx-a100:128 --global-batch 1536 --seq 2048
  meshwright plan mixtral-8x7b cluster.yaml --no-recompute --max-memory 0.9 --top 10
  meshwright plan llama-3-8b dgx-h100:1 --space megatron-tp-sp
Exit code: 0 a plan was found, 1 nothing fits, 2 wrong input.)";

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Search the layout of a model on a cluster");
  command->footer(kFooter);
  declare(*command, o->request, /*with_pins=*/true);
  command->add_option("--top", o->top, "Plans to show (default: 5)");
  command->add_option("--time-limit", o->time_limit,
                      "Seconds to search at most (default: until done)");
  command->add_option("-o,--output", o->output, "Write the best plan to this file");
  command->add_flag("--force", o->force, "Overwrite the output file");
  command->add_flag("--json", o->json, "Print the plans as JSON");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
