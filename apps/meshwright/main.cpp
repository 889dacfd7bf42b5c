// The command line: one subcommand per file, listed in kCommands.
#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "base/error.h"
#include "cli.h"

namespace meshwright::cli {
namespace {

constexpr AddCommand kCommands[] = {
    add_plan,
    add_explain,
    add_models,
    add_clusters,
};

constexpr const char* kDescription =
    "Meshwright plans parallel training: from a model and a cluster to a layout you can launch.";

constexpr const char* kFooter = R"(Examples:
  meshwright plan llama-3-70b dgx-h100:8 --global-batch 1024 --seq 8192
  meshwright plan path/to/config.json cluster.yaml -o plan.json
  meshwright explain plan.json --why-not tp=4,pp=4
Every command has --help with examples of its own.)";

int run(int argc, char** argv) {
  CLI::App app(kDescription, "meshwright");
  app.footer(kFooter);
  app.set_version_flag("--version", "meshwright " MESHWRIGHT_VERSION);
  app.require_subcommand(1);
  Action action;
  for (AddCommand add : kCommands) add(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::fputs(fmt::format("meshwright: {}\nRun with --help for usage.\n", e.what()).c_str(),
               stderr);
    return kUserError;
  }
  catch_interrupts();
  return action.run();
}

}  // namespace
}  // namespace meshwright::cli

int main(int argc, char** argv) {
  using namespace meshwright;
  try {
    return cli::run(argc, argv);
  } catch (const Error& e) {
    std::fputs(fmt::format("meshwright: error: {}\n", e.what()).c_str(), stderr);
    return cli::kUserError;
  } catch (const std::bad_alloc&) {
    std::fputs("meshwright: error: out of memory\n", stderr);
    return cli::kInternalError;
  } catch (const std::exception& e) {
    std::fputs(fmt::format("meshwright: internal error: {}\n", e.what()).c_str(), stderr);
    return cli::kInternalError;
  }
}
