#include <fmt/format.h>

#include <memory>

#include "api/request.h"
#include "base/error.h"
#include "base/format.h"
#include "cli.h"
#include "report/plan_report.h"
#include "search/judge.h"
#include "search/layout_search.h"

namespace meshwright::cli {
namespace {

struct ExplainOptions {
  std::string plan;
  std::vector<std::string> why_not;
};

int run(const ExplainOptions& o) {
  const PlanFile file = read_plan_file(o.plan);
  const Problem problem = file.loaded.problem();
  const ModelSummary model = summarize(file.loaded.model.graph, file.loaded.model_name);
  const ModelFacts facts = model_facts(problem.graph, problem.segments);
  std::vector<Degrees> others;  // Read before anything is printed: a typing error is all one sees.
  for (const std::string& text : o.why_not) {
    others.push_back(parse_degrees(text, file.plan.degrees, file.plan.degrees.devices(),
                                   static_cast<int>(facts.experts)));
  }
  const Judged judged = judge(problem, file.plan);
  print(fmt::format("model    {}: {} parameters\ncluster  {}\n\n", model.name,
                    format_integer(static_cast<long long>(model.parameters)),
                    file.loaded.cluster.name));
  print(plan_text(problem, model, judged));
  for (std::size_t i = 0; i < others.size(); ++i) {
    const Degrees& degrees = others[i];
    print(fmt::format("\nwhy not {}?\n", o.why_not[i]));
    const auto violations =
        check_degrees(facts, problem.cluster.device_count(), problem.global_batch, degrees);
    const int used = degrees.devices();
    if (used < file.plan.degrees.devices()) {
      print(fmt::format("  it would use {} of the plan's {} devices\n", used,
                        file.plan.degrees.devices()));
    }
    if (!violations.empty()) {
      for (const Violation& v : violations) {
        print(fmt::format("  illegal (rule {}): {}{}\n", v.rule, v.message,
                          v.hint.empty() ? "" : "; " + v.hint));
      }
      continue;
    }
    const Judged other = judge_degrees(problem, degrees);
    print(fmt::format("  {}: {} per step ({:+.1f} %)\n", to_string(degrees),
                      format_seconds(other.step()), 100 * (other.step() / judged.step() - 1)));
    if (!other.fits || other.step() > judged.step()) {
      print(fmt::format("  it loses: {}\n", why_lost(problem, other, judged)));
    } else {
      print(fmt::format("  it is no worse than this plan; this plan loses: {}\n",
                        why_lost(problem, judged, other)));
    }
    print("\n" + time_table(other) + "\n" + memory_table(problem, other));
  }
  return kOk;
}

constexpr const char* kFooter = R"(Examples:
  meshwright explain plan.json
  meshwright explain plan.json --why-not tp=4,pp=4 --why-not zero=zero3,pp=1)";

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  auto o = std::make_shared<ExplainOptions>();
  CLI::App* command = app.add_subcommand(
      "explain", "Show where time and memory of a plan go, and why not another layout");
  command->footer(kFooter);
  command->add_option("PLAN", o->plan, "A plan file (meshwright plan -o)")->required();
  command->add_option("--why-not", o->why_not, "Degrees to compare, such as tp=4,pp=4")->take_all();
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
