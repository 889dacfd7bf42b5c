#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "api/validate.h"
#include "base/error.h"
#include "base/files.h"
#include "cli.h"

namespace meshwright::cli {
namespace {

struct ValidateOptions {
  std::vector<std::filesystem::path> files;
  std::string engine = "auto";
  std::string efficiency, json;
  bool rows = false, force = false;
};

int run_validate(const ValidateOptions& o) {
  if (!o.json.empty() && !o.force && std::filesystem::exists(o.json)) {
    throw Error("exists already and is not overwritten", o.json, "add --force");
  }
  const Json numbers = o.efficiency.empty() ? shipped_efficiency() : read_json(o.efficiency);
  MeasuredRuns measured = read_measured_files(o.files);
  ValidationReport report;
  {
    ProgressLine line;
    const PreparedRuns prepared(std::move(measured), [&](std::size_t done, std::size_t all) {
      line.show(fmt::format("{} of {} runs lowered", done, all));
    });
    report = compare(prepared, prepared.predict(numbers, o.engine));
  }
  print(describe(report, o.rows));
  if (!o.json.empty()) {
    write_file(o.json, report_json(report).dump(1) + "\n", o.force);
    print(fmt::format("report written to {}\n", o.json));
  }
  return kOk;
}

}  // namespace

void add_validate(CLI::App& app, Action& action) {
  auto o = std::make_shared<ValidateOptions>();
  CLI::App* command = app.add_subcommand(
      "validate", "Compare predictions with measured training runs: error, ranking, memory");
  command->footer(
      "Examples:\n  meshwright validate runs.csv\n  meshwright validate *.csv --rows --json "
      "report.json\ndocs/validation.md has the columns of a table and what the numbers mean.");
  command->add_option("FILE", o->files, "Tables of measured runs (CSV)")->required();
  command->add_option(
      "--engine", o->engine,
      "Engine whose efficiency numbers are used for all runs; auto: each table's own");
  command->add_option("--efficiency", o->efficiency,
                      "Efficiency file instead of the one that is built in");
  command->add_flag("--rows", o->rows, "List every run");
  command->add_option("--json", o->json, "Write the report, with every run, as JSON");
  command->add_flag("--force", o->force, "Overwrite an existing file");
  command->callback([o, &action] { action.run = [o] { return run_validate(*o); }; });
}

}  // namespace meshwright::cli
