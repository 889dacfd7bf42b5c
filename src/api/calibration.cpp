#include "api/calibration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "api/efficiency_text.h"
#include "base/error.h"
#include "base/files.h"

namespace meshwright {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

Json fit_runs(const PreparedRuns& runs, const std::vector<std::size_t>& which, Json numbers,
              std::string_view what, const std::function<void(const std::string&)>& progress) {
  const auto follow = [&](const FitProgress& p) {
    if (progress) {
      progress(fmt::format("{}: sweep {}, objective {:.4f}", what, p.sweep + 1, p.objective));
    }
  };
  for (const FitGoal goal : {FitGoal::kStepTime, FitGoal::kMemory}) {
    std::vector<FitParameter> parameters = engine_parameters(runs, numbers, goal);
    if (goal == FitGoal::kStepTime) {
      for (const auto& more :
           {architecture_parameters(runs, numbers), link_parameters(runs, numbers)}) {
        parameters.insert(parameters.end(), more.begin(), more.end());
      }
    }
    const FitResult result = fit(runs, which, numbers, parameters, goal, follow);
    // Numbers that stay are not written: the file's defaults say them.
    std::vector<FitParameter> moved;
    std::vector<double> values;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (result.values[k] == result.start[k]) continue;
      moved.push_back(parameters[k]);
      values.push_back(result.values[k]);
    }
    numbers = with_values(std::move(numbers), moved, values);
  }
  return numbers;
}

// What every engine's numbers were fitted to.
void note_sources(const PreparedRuns& runs, Json& numbers) {
  struct Counted {
    int times = 0, peaks = 0, failures = 0;
    std::set<std::string> tables;
  };
  std::map<std::string, Counted> engines;
  for (const MeasuredRun& run : runs.runs()) {
    Counted& c = engines[run.engine];
    c.times += run.step.has_value();
    c.peaks += run.peak.has_value();
    c.failures += run.out_of_memory;
    c.tables.insert(run.source);
  }
  for (const auto& [name, c] : engines) {
    numbers["engines"][name]["source"] =
        fmt::format("{} step times, {} peaks of memory, {} runs out of memory of {}", c.times,
                    c.peaks, c.failures, fmt::join(c.tables, ", "));
  }
}

ValidationReport report_on(const PreparedRuns& runs, const std::vector<std::size_t>& which,
                           const Json& numbers) {
  if (which.empty()) return {};
  return compare(runs, runs.predict(numbers, "auto", which), which);
}

const SourceReport* find_source(const ValidationReport& report, const std::string& name) {
  for (const SourceReport& s : report.sources) {
    if (s.source == name && s.used > 0) return &s;
  }
  return nullptr;
}

std::string half_columns(const SourceReport* s) {
  if (s == nullptr) return fmt::format("{:>6}{:>9}{:>9}{:>9}{:>9}", "-", "-", "-", "-", "-");
  const auto percent = [](double value, bool known) {
    return known ? fmt::format("{:.1f}%", 100 * value) : std::string("-");
  };
  return fmt::format(
      "{:>6}{:>9}{:>9}{:>9}{:>9}", s->used, percent(s->mape, s->timed > 0),
      percent(s->regret_mean, s->groups > 0), percent(s->memory_mape, s->weighed > 0),
      s->confusion.has_both() ? fmt::format("{:.3f}", s->confusion.balanced_accuracy()) : "-");
}

std::string totals(const ValidationReport& r) {
  return fmt::format(
      "{:>6}{:>9}{:>9}{:>9}{:>9}", r.rows.size(), fmt::format("{:.1f}%", 100 * r.mape),
      fmt::format("{:.1f}%", 100 * r.regret_mean), fmt::format("{:.1f}%", 100 * r.memory_mape),
      fmt::format("{:.3f}", r.balanced_accuracy));
}

}  // namespace

CalibrationTables read_calibration_tables(const std::vector<std::filesystem::path>& files) {
  CalibrationTables tables;
  std::vector<std::filesystem::path> runs;
  for (const std::filesystem::path& file : files) {
    CsvTable table = parse_csv(read_file(file, kMaxFile), file.filename().string());
    if (is_link_table(table))
      tables.links.push_back(std::move(table));
    else if (is_kernel_table(table))
      tables.kernels.push_back(std::move(table));
    else
      runs.push_back(file);
  }
  tables.runs = read_measured_files(runs);
  return tables;
}

Calibration calibrate(CalibrationTables tables, const Json& start, std::uint64_t seed,
                      const std::function<void(const std::string&)>& progress) {
  Calibration result;
  Json numbers = start;
  for (const auto& [list, fit_table, what] : {std::tuple(&tables.kernels, &fit_kernels, "kernels"),
                                              std::tuple(&tables.links, &fit_links, "links")}) {
    for (const CsvTable& table : *list) {
      if (progress) progress(fmt::format("{}: {}", table.source, what));
      KernelFits fits = fit_table(table, numbers);
      result.kernels.insert(result.kernels.end(), fits.fits.begin(), fits.fits.end());
      result.skipped += fits.skipped;
    }
  }
  const PreparedRuns runs(std::move(tables.runs));
  if (!runs.runs().empty()) {
    const Halves halves = split_groups(runs, seed);
    if (!halves.fit.empty()) {
      const Json half = fit_runs(runs, halves.fit, numbers, "half of the runs", progress);
      result.fitted_half = report_on(runs, halves.fit, half);
      result.held_out_half = report_on(runs, halves.held_out, half);
    }
    numbers = fit_runs(runs, {}, std::move(numbers), "all runs", progress);
    note_sources(runs, numbers);
  }
  result.efficiency = efficiency_text(numbers);
  if (!runs.runs().empty()) {
    result.all = compare(runs, runs.predict(parse_json(result.efficiency, "result"), "auto"));
  }
  return result;
}

std::string describe(const Calibration& c) {
  std::string text;
  if (!c.kernels.empty()) {
    text += fmt::format("{:<44}{:>7}{:>12}{:>8}\n", "kernels and links, mean error of time", "rows",
                        "before", "after");
    for (const KernelFit& k : c.kernels) {
      text += fmt::format("{:<44}{:>7}{:>11.1f}%{:>7.1f}%\n", k.pointer, k.rows, 100 * k.before,
                          100 * k.after);
    }
    text += fmt::format("{} rows of these tables say nothing about a number here\n\n", c.skipped);
  }
  if (c.all.rows.empty()) return text;
  text += fmt::format("{:<22}{:^42}{:^42}\n", "", "numbers fitted to one half of the runs,",
                      "the same numbers on the other half");
  const std::string columns =
      fmt::format("{:>6}{:>9}{:>9}{:>9}{:>9}", "runs", "time", "regret", "memory", "fits");
  text += fmt::format("{:<22}{}{}\n", "source", columns, columns);
  for (const SourceReport& s : c.all.sources) {
    if (s.used == 0) continue;
    text +=
        fmt::format("{:<22}{}{}\n", s.source, half_columns(find_source(c.fitted_half, s.source)),
                    half_columns(find_source(c.held_out_half, s.source)));
  }
  text += fmt::format("{:<22}{}{}\n\nnumbers fitted to all runs:\n", "each source once",
                      totals(c.fitted_half), totals(c.held_out_half));
  return text + describe(c.all);
}

}  // namespace meshwright
