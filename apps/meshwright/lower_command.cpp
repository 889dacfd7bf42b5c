#include <memory>

#include "api/request.h"
#include "base/error.h"
#include "cli.h"
#include "plan/lower.h"
#include "plan/print_program.h"

namespace meshwright::cli {
namespace {

struct LowerOptions {
  std::string plan;
  int order_items = 12;
};

int run(const LowerOptions& o) {
  const PlanFile file = read_plan_file(o.plan);
  const Graph& graph = file.loaded.model.graph;
  const Program program = lower(file.plan, graph, file.loaded.segments);
  print(print_program(program, file.plan, graph, file.loaded.segments, o.order_items));
  return kOk;
}

constexpr const char* kFooter = R"(Examples:
  meshwright lower plan.json
  meshwright lower plan.json --order-items 100 | grep all_gather)";

}  // namespace

void add_lower(CLI::App& app, Action& action) {
  auto o = std::make_shared<LowerOptions>();
  CLI::App* command = app.add_subcommand(
      "lower", "Print the program of a plan: every instruction, transfer and order");
  command->footer(kFooter);
  command->add_option("PLAN", o->plan, "A plan file (meshwright plan -o)")->required();
  command->add_option("--order-items", o->order_items, "Entries of each order to print")
      ->check(CLI::Range(0, 1 << 22));
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
