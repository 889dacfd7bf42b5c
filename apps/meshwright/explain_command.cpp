#include <fmt/format.h>

#include <memory>

#include "api/advise.h"
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
  std::vector<Restrictions> wishes;  // Read before anything is printed.
  for (const std::string& text : o.why_not) {
    wishes.push_back(parse_wish(text, problem.restrictions));
    wishes.back().devices = file.plan.degrees.devices();
  }
  const Judged judged = judge(problem, file.plan);
  print(fmt::format("model    {}: {} parameters\ncluster  {}\n\n", model.name,
                    format_integer(static_cast<long long>(model.parameters)),
                    file.loaded.cluster.name));
  print(plan_text(problem, model, judged));
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    print(fmt::format("\nwhy not {}?\n", o.why_not[i]));
    Problem wished = problem;
    wished.restrictions = wishes[i];
    SearchControl control;
    control.top = 1;
    control.stop = &interrupted();
    const SearchResult found = search_layouts(wished, control);
    if (found.ranking.empty()) {
      print(fmt::format("  illegal: {}\n", explain_illegal(problem, wishes[i])));
      continue;
    }
    const Judged& other = found.ranking[0];
    const Degrees& degrees = other.plan.degrees;
    print(fmt::format("  the best with it of {} legal layouts:\n", found.legal));
    print(fmt::format("  {}, {}: {} per step ({:+.1f} %)\n", to_string(degrees),
                      other.plan.schedule, format_seconds(other.step()),
                      100 * (other.step() / judged.step() - 1)));
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
