#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "api/recheck.h"
#include "api/request.h"
#include "base/error.h"
#include "base/files.h"
#include "cli.h"
#include "emit/emitter.h"

namespace meshwright::cli {
namespace {

namespace fs = std::filesystem;

struct EmitOptions {
  std::string plan;
  std::string target = "megatron";
  std::string output;
  bool force = false;
};

// All or nothing: what stands in the way is found before the first file is written.
void write_files(const std::vector<EmittedFile>& files, const fs::path& directory, bool force) {
  if (fs::exists(directory) && !fs::is_directory(directory)) {
    throw Error("is a file, not a directory", directory.string());
  }
  for (const EmittedFile& file : files) {
    const fs::path path = directory / file.path;
    if (fs::is_directory(path)) throw Error("is a directory, not a file", path.string());
    if (!force && fs::exists(path)) {
      throw Error("exists already and is not overwritten", path.string(), "add --force");
    }
  }
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) throw Error("cannot be created: " + failed.message(), directory.string());
  for (const EmittedFile& file : files) {
    const fs::path path = directory / file.path;
    write_file(path, file.content, force);
    if (!file.path.ends_with(".sh")) continue;
    constexpr fs::perms kRun =
        fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
    fs::permissions(path, kRun, fs::perm_options::add, failed);
    if (failed) throw Error("cannot be made executable: " + failed.message(), path.string());
  }
}

int run(const EmitOptions& o) {
  const Emitter& emitter = find_emitter(o.target);
  const PlanFile file = read_plan_file(o.plan);
  // What breaks a rule would not run; what does not fit in memory may still be wanted.
  for (const Violation& v : recheck(file).violations) {
    if (v.rule != "M1") throw Error(v.message, fmt::format("{}: rule {}", o.plan, v.rule), v.hint);
    std::fputs(fmt::format("meshwright: warning: {}\n", v.message).c_str(), stderr);
  }
  const EmitInput input{file.plan, file.loaded.model.graph, file.loaded.segments,
                        file.loaded.cluster, file.loaded.model_name};
  const std::vector<std::string> faults = emitter.why_not(input);
  if (!faults.empty()) {
    print(fmt::format("{} cannot express this plan:\n", emitter.name));
    for (const std::string& fault : faults) print(fmt::format("  {}\n", fault));
    return kNoPlan;
  }
  const std::vector<EmittedFile> files = emitter.emit(input);
  if (o.output.empty()) {
    for (const EmittedFile& f : files) {
      print(fmt::format("{}==> {} <==\n{}", &f == &files[0] ? "" : "\n", f.path, f.content));
    }
    return kOk;
  }
  write_files(files, o.output, o.force);
  for (const EmittedFile& f : files) {
    print(fmt::format("{} written\n", (fs::path(o.output) / f.path).string()));
  }
  return kOk;
}

std::string footer() {
  std::string text = "Targets:\n";
  for (const Emitter* e : all_emitters()) text += fmt::format("  {}  {}\n", e->name, e->summary);
  return text + R"(Examples:
  meshwright emit plan.json --target megatron
  meshwright emit plan.json --target megatron -o launch/
Exit code: 0 emitted, 1 the target cannot express the plan, 2 wrong input.)";
}

}  // namespace

void add_emit(CLI::App& app, Action& action) {
  auto o = std::make_shared<EmitOptions>();
  CLI::App* command = app.add_subcommand("emit", "Write what another program needs to run a plan");
  command->footer(footer());
  command->add_option("PLAN", o->plan, "A plan file (meshwright plan -o)")->required();
  command->add_option("-t,--target", o->target, "What to emit for (default: megatron)");
  command->add_option("-o,--output", o->output, "Write the files into this directory");
  command->add_flag("--force", o->force, "Overwrite files that are there");
  command->callback([o, &action] { action.run = [o] { return run(*o); }; });
}

}  // namespace meshwright::cli
