#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/validate.h"
#include "base/format.h"

namespace meshwright {
namespace {

std::string percent(double value, bool known = true) {
  return known ? fmt::format("{:.1f}%", 100 * value) : "-";
}

std::string signed_percent(double value, bool known) {
  return known ? fmt::format("{:+.1f}%", 100 * value) : "-";
}

std::string source_line(const SourceReport& s) {
  return fmt::format(
      "{:<22}{:>6}{:>8}{:>7}{:>8}{:>9}{:>7}{:>7}{:>8}{:>8}{:>7}{:>8}{:>9}{:>10}\n", s.source,
      s.used, s.skipped_rows(), s.timed, percent(s.mape, s.timed > 0),
      signed_percent(s.median, s.timed > 0),
      s.groups > 0 ? fmt::format("{:.2f}", s.ranks.tau()) : "-", s.groups,
      percent(s.regret_mean, s.groups > 0), percent(s.regret_max, s.groups > 0), s.weighed,
      percent(s.memory_mape, s.weighed > 0), signed_percent(s.memory_median, s.weighed > 0),
      s.confusion.has_both() ? fmt::format("{:.3f}", s.confusion.balanced_accuracy()) : "-");
}

std::string row_line(const ValidationReport::Row& r) {
  std::string text =
      fmt::format("{:<34} {:<24} {:>5} {:<40}", r.place, r.model.substr(0, 24), r.gpus, r.layout);
  if (r.step) {
    text += fmt::format("  {} measured, {} predicted ({:+.1f}%)", format_seconds(*r.step),
                        format_seconds(r.predicted.step), 100 * (r.predicted.step / *r.step - 1));
  } else {
    text += fmt::format("  {} predicted", format_seconds(r.predicted.step));
  }
  if (r.peak) {
    text += fmt::format("; {} measured, {} predicted", format_bytes(*r.peak),
                        format_bytes(r.predicted.peak));
  }
  if (r.out_of_memory || !r.predicted.fits()) {
    text +=
        fmt::format("; {}, predicted {} of {}", r.out_of_memory ? "out of memory" : "ran",
                    format_bytes(r.predicted.memory.total()), format_bytes(r.predicted.capacity));
  }
  return text + "\n";
}

Json confusion_json(const Confusion& c) {
  Json json = {{"fits_as_predicted", c.fits_as_predicted},
               {"refused_but_fits", c.refused_but_fits},
               {"accepted_but_full", c.accepted_but_full},
               {"full_as_predicted", c.full_as_predicted}};
  if (c.has_both()) json["balanced_accuracy"] = c.balanced_accuracy();
  return json;
}

}  // namespace

std::string describe(const ValidationReport& report, bool rows) {
  std::string text;
  if (rows) {
    for (const ValidationReport::Row& r : report.rows) text += row_line(r);
    text += "\n";
  }
  text += fmt::format("{:<22}{:>6}{:>8}{:>7}{:>8}{:>9}{:>7}{:>7}{:>8}{:>8}{:>7}{:>8}{:>9}{:>10}\n",
                      "source", "runs", "skipped", "timed", "MAPE", "median", "tau", "groups",
                      "regret", "worst", "peaks", "MAPE", "median", "fits acc.");
  for (const SourceReport& s : report.sources) text += source_line(s);
  bool timed = false, ranked = false, weighed = false, labelled = false;
  for (const SourceReport& s : report.sources) {
    timed |= s.timed > 0;
    ranked |= s.groups > 0;
    weighed |= s.weighed > 0;
    labelled |= s.confusion.has_both();
  }
  std::string totals;
  if (timed) totals += fmt::format("; step time MAPE {}", percent(report.mape));
  if (ranked) {
    totals += fmt::format("; regret {} (worst {}), Kendall tau {:.2f}", percent(report.regret_mean),
                          percent(report.regret_max), report.tau);
  }
  if (weighed) totals += fmt::format("; peak memory MAPE {}", percent(report.memory_mape));
  if (labelled) {
    totals += fmt::format("; balanced accuracy of fitting {:.3f}", report.balanced_accuracy);
  }
  if (!totals.empty()) {
    text += fmt::format("\nover sources, each counted once: {}\n", totals.substr(2));
  }
  for (const SourceReport& s : report.sources) {
    if (!s.confusion.has_both()) continue;
    text += fmt::format(
        "{}: of {} runs that fit, {} predicted to fit; of {} that ran out of memory, {} predicted "
        "to\n",
        s.source, s.confusion.fits(), s.confusion.fits_as_predicted, s.confusion.full(),
        s.confusion.full_as_predicted);
  }
  bool any = false;
  for (const SourceReport& s : report.sources) {
    for (const auto& [reason, count] : s.skipped) {
      if (!any) text += "\nrows left out:\n";
      any = true;
      text += fmt::format("  {:<22}{:>6}  {}\n", s.source, count, reason);
    }
  }
  return text;
}

Json report_json(const ValidationReport& report, bool rows) {
  Json json;
  json["version"] = 1;
  json["total"] = {
      {"step_mape", report.mape},          {"kendall_tau", report.tau},
      {"regret_mean", report.regret_mean}, {"regret_max", report.regret_max},
      {"memory_mape", report.memory_mape}, {"balanced_accuracy", report.balanced_accuracy}};
  json["sources"] = Json::array();
  for (const SourceReport& s : report.sources) {
    Json entry = {{"source", s.source}, {"runs", s.used}};
    entry["skipped"] = Json::object();
    for (const auto& [reason, count] : s.skipped) entry["skipped"][reason] = count;
    if (s.timed > 0) {
      entry["step"] = {{"runs", s.timed}, {"mape", s.mape}, {"median_error", s.median}};
    }
    if (s.groups > 0) {
      entry["ranking"] = {{"groups", s.groups},
                          {"kendall_tau", s.ranks.tau()},
                          {"regret_mean", s.regret_mean},
                          {"regret_max", s.regret_max}};
    }
    if (s.weighed > 0) {
      entry["memory"] = {
          {"runs", s.weighed}, {"mape", s.memory_mape}, {"median_error", s.memory_median}};
    }
    entry["fits"] = confusion_json(s.confusion);
    json["sources"].push_back(std::move(entry));
  }
  if (!rows) return json;
  json["rows"] = Json::array();
  for (const ValidationReport::Row& r : report.rows) {
    Json entry = {{"place", r.place},   {"source", r.source}, {"model", r.model},
                  {"layout", r.layout}, {"gpus", r.gpus},     {"out_of_memory", r.out_of_memory}};
    if (r.step) entry["step_s"] = r.step->value;
    if (r.peak) entry["peak_bytes"] = r.peak->value;
    entry["predicted_step_s"] = r.predicted.step.value;
    entry["predicted_peak_bytes"] = r.predicted.peak.value;
    entry["predicted_total_bytes"] = r.predicted.memory.total().value;
    const MemoryBreakdown& m = r.predicted.memory;
    entry["predicted_memory_bytes"] = {
        {"parameters", m.parameters.value}, {"gradients", m.gradients.value},
        {"optimizer", m.optimizer.value},   {"activations", m.activations.value},
        {"transient", m.transient.value},   {"communication", m.communication.value},
        {"context", m.context.value},       {"fragmentation", m.fragmentation.value}};
    entry["capacity_bytes"] = r.predicted.capacity.value;
    entry["predicted_fits"] = r.predicted.fits();
    json["rows"].push_back(std::move(entry));
  }
  json["skipped_rows"] = Json::array();
  for (const SkippedRow& r : report.skipped) {
    json["skipped_rows"].push_back(
        {{"place", r.place}, {"source", r.source}, {"reason", r.reason}});
  }
  return json;
}

}  // namespace meshwright
