#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "api/calibration.h"
#include "base/error.h"
#include "base/files.h"
#include "cli.h"

namespace meshwright::cli {
namespace {

struct CalibrateOptions {
  std::vector<std::filesystem::path> files;
  std::string start, output;
  std::uint64_t seed = 1;
  bool force = false;
};

int run_calibrate(const CalibrateOptions& o) {
  if (!o.force && std::filesystem::exists(o.output)) {
    throw Error("exists already and is not overwritten", o.output, "add --force");
  }
  const Json start = o.start.empty() ? shipped_efficiency() : read_json(o.start);
  CalibrationTables tables = read_calibration_tables(o.files);
  Calibration result;
  {
    ProgressLine line;
    result = calibrate(std::move(tables), start, o.seed,
                       [&](const std::string& what) { line.show(what); });
  }
  print(describe(result));
  write_file(o.output, result.efficiency, o.force);
  print(fmt::format("efficiency numbers written to {}\n", o.output));
  return kOk;
}

}  // namespace

void add_calibrate(CLI::App& app, Action& action) {
  auto o = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Fit the efficiency numbers of the cost model to measurements");
  command->footer(
      "Examples:\n  meshwright calibrate runs.csv -o efficiency.json\n  meshwright calibrate "
      "kernels.csv nccl.csv runs/*.csv -o efficiency.json --seed 7\n  meshwright validate runs.csv "
      "--efficiency efficiency.json\nThe kind of a table is seen from its columns; "
      "docs/validation.md "
      "has them.");
  command->add_option("FILE", o->files, "Tables of kernels, of collectives, of runs (CSV)")
      ->required();
  command->add_option("-o,--output", o->output, "Efficiency file to write")->required();
  command->add_option("--start", o->start,
                      "Efficiency file to start from; default: the built-in one");
  command->add_option("--seed", o->seed, "Which half of the runs is held out for the report");
  command->add_flag("--force", o->force, "Overwrite an existing file");
  command->callback([o, &action] { action.run = [o] { return run_calibrate(*o); }; });
}

}  // namespace meshwright::cli
