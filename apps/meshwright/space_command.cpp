#include <fmt/format.h>

#include <memory>

#include "api/space_report.h"
#include "base/error.h"
#include "cli.h"
#include "request_options.h"
#include "search/layout_search.h"

namespace meshwright::cli {
namespace {

struct SpaceOptions {
  std::string space;
  RequestOptions request;
  bool print = false;
};

int run(SpaceOptions o) {
  if (o.space.empty()) {
    print(space_list());
    return kOk;
  }
  if (o.print) {
    print(print_space(read_space(o.space)));
    return kOk;
  }
  if (o.request.positional.empty()) {
    throw Error("a model and a cluster are needed", "arguments",
                "meshwright space megatron-tp-sp llama-3-8b dgx-h100:1");
  }
  o.request.space = o.space;
  const Loaded loaded = load(to_request(o.request));
  print(space_text(loaded));
  std::string conflict = contradiction(loaded);
  if (conflict.empty()) {
    if (any_layout(loaded.problem(), /*fitting=*/false, 0)) return kOk;
    conflict = conflict_text(loaded, /*fitting=*/false);
  }
  print(conflict.empty() ? "\nno plan is legal, with or without the rules\n"
                         : "\nno plan obeys every rule; " + conflict);
  return kNoPlan;
}

constexpr const char* kFooter = R"(Examples:
  meshwright space
  meshwright space megatron-tp-sp llama-3-8b dgx-h100:1
  meshwright space my_space.yaml mixtral-8x7b a100-80:4x8@ib200 --global-batch 256
  meshwright space fsdp --print > my_space.yaml
The format of plan-space files: docs/plan_space.md. `meshwright plan --space` searches one.
Exit code: 0 some plan obeys every rule, 1 none does, 2 wrong input or a rule that matches nothing.)";

}  // namespace

void add_space(CLI::App& app, Action& action) {
  auto o = std::make_shared<SpaceOptions>();
  CLI::App* command =
      app.add_subcommand("space", "List plan spaces, or show what one leaves of a model's plans");
  command->footer(kFooter);
  command->add_option("SPACE", o->space, "A plan-space file or the name of a shipped one");
  declare(*command, o->request, /*with_pins=*/false, /*required=*/false);
  command->add_flag("--print", o->print, "Print the space as a file");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
