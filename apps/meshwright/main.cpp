// The command line: one subcommand per file, listed in kCommands.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/spelling.h"
#include "cli.h"

namespace meshwright::cli {
namespace {

constexpr AddCommand kCommands[] = {
    add_plan,     add_space,     add_import, add_lower,  add_verify,
    add_explain,  add_emit,      add_check,  add_models, add_clusters,
    add_validate, add_calibrate, add_run,    add_resume, add_profile,
};

constexpr const char* kDescription =
    "Meshwright plans parallel training: from a model and a cluster to a layout you can launch.";

constexpr const char* kFooter = R"(Examples:
  meshwright plan llama-3-70b dgx-h100:8 --global-batch 1024 --seq 8192
  meshwright plan path/to/config.json cluster.yaml -o plan.json
  meshwright explain plan.json --why-not tp=4,pp=4
Every command has --help with examples of its own.)";

void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
  throw Error(fmt::format("unknown command '{}'", argv[1]), {},
              fmt::format("did you mean {}? meshwright --help lists the commands",
                          nearest_names(argv[1], names, 1).front()));
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "meshwright");
  app.footer(kFooter);
  app.set_version_flag("--version", "meshwright " MESHWRIGHT_VERSION);
  app.require_subcommand(1);
  Action action;
  for (AddCommand add : kCommands) add(app, action);
  refuse_unknown_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw Error(e.what(), {}, "--help shows usage");
  }
  catch_interrupts();
  const int code = action.run();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error("standard output cannot be written");
  }
  return code;
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
