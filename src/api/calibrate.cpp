#include "api/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "api/coordinate_search.h"
#include "base/error.h"

namespace meshwright {
namespace {

// How sharply "fits" is told from "does not": a tenth of the memory past the limit counts as much
// as a factor e.
constexpr double kFitSharpness = 10;
// Errors beyond this (of the logarithm) count less and less.
constexpr double kLargeError = 0.25;
// Runs from which on a source has its full weight.
constexpr double kFullWeight = 10;
// What it costs to move a number over its whole range: numbers that the runs say nothing about stay
// where they are.
constexpr double kPull = 0.01;

// Mean of the runs' losses per source; sources of few runs count less.
class SourceMeans {
 public:
  void add(const std::string& source, double loss) {
    Sum& s = sums_[source];
    s.loss += loss;
    ++s.count;
  }
  double mean() const {
    double total = 0, weights = 0;
    for (const auto& [name, s] : sums_) {
      const double weight = std::min(1.0, s.count / kFullWeight);
      total += weight * s.loss / s.count;
      weights += weight;
    }
    return weights > 0 ? total / weights : 0;
  }

 private:
  struct Sum {
    double loss = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums_;
};

// Grows like the logarithm of a large error only, so that runs which something else went wrong with
// (a misplaced process, an allocator out of memory) do not bend the rest.
double robust_log_error(double predicted, double measured) {
  const double error = std::abs(std::log(std::max(predicted, 1e-30) / measured));
  return kLargeError * std::log1p(error / kLargeError);
}

double objective(const PreparedRuns& runs, const std::vector<std::size_t>& which,
                 const std::vector<Prediction>& predictions, FitGoal goal) {
  SourceMeans means;
  // That runs fit says something only where others do not.
  std::set<std::string> labelled;
  for (std::size_t i : which) {
    if (runs.runs()[i].out_of_memory) labelled.insert(runs.runs()[i].source);
  }
  for (std::size_t k = 0; k < which.size(); ++k) {
    const MeasuredRun& run = runs.runs()[which[k]];
    const Prediction& p = predictions[k];
    if (goal == FitGoal::kStepTime) {
      if (run.step) means.add(run.source, robust_log_error(p.step.value, run.step->value));
      continue;
    }
    if (run.peak) means.add(run.source + " peak", robust_log_error(p.peak.value, run.peak->value));
    if (!labelled.contains(run.source)) continue;
    const double margin = kFitSharpness * (p.memory.total() / p.capacity - 1);
    means.add(run.source + (run.out_of_memory ? " full" : " fits"),
              std::log1p(std::exp(run.out_of_memory ? -margin : margin)));
  }
  return means.mean();
}

// Whether an engine's numbers are those of `base` or of an engine that extends it.
bool builds_on(const Json& efficiency, std::string engine, const std::string& base) {
  const Json& engines = efficiency.at("engines");
  for (int depth = 0; depth < 8 && engine != base; ++depth) {
    const auto it = engines.find(engine);
    if (it == engines.end() || !it->contains("extends")) return false;
    engine = it->at("extends").get<std::string>();
  }
  return engine == base;
}

}  // namespace

std::vector<FitParameter> engine_parameters(const PreparedRuns& runs, const Json& efficiency,
                                            FitGoal goal) {
  std::set<std::string> engines;
  for (const MeasuredRun& run : runs.runs()) {
    for (const auto& [name, value] : efficiency.at("engines").items()) {
      if (builds_on(efficiency, run.engine, name)) engines.insert(name);
    }
  }
  struct Kind {
    const char* key;
    double low, high;
    bool logarithmic;
    FitGoal goal;
  };
  constexpr Kind kKinds[] = {
      {"compute_scale", 0.5, 3, true, FitGoal::kStepTime},
      {"launch_us", 1, 300, true, FitGoal::kStepTime},
      {"collective_launch_us", 5, 1000, true, FitGoal::kStepTime},
      {"memory_passes", 1, 8, true, FitGoal::kStepTime},
      {"attention_passes", 1, 8, true, FitGoal::kStepTime},
      {"optimizer_passes", 1, 8, true, FitGoal::kStepTime},
      {"step_fixed_ms", 0.5, 100, true, FitGoal::kStepTime},
      {"micro_batch_fixed_us", 10, 20000, true, FitGoal::kStepTime},
      {"peer_fixed_us", 5, 5000, true, FitGoal::kStepTime},
      {"gradient_overlap", 0, 1, false, FitGoal::kStepTime},
      {"update_overlap", 0, 1, false, FitGoal::kStepTime},
      {"gather_overlap", 0, 1, false, FitGoal::kStepTime},
      {"bucket_mib", 10, 10000, true, FitGoal::kStepTime},
      {"context_gib", 0.5, 8, true, FitGoal::kMemory},
      {"fragmentation", 0.01, 0.3, true, FitGoal::kMemory},
      {"activation_scale", 0.8, 2, true, FitGoal::kMemory},
      {"loss_copies", 0.5, 6, true, FitGoal::kMemory},
      {"working_gradients", 0, 1, false, FitGoal::kMemory},
  };
  std::vector<FitParameter> parameters;
  for (const std::string& engine : engines) {
    const Json& entry = efficiency.at("engines").at(engine);
    for (const Kind& kind : kKinds) {
      if (kind.goal != goal) continue;
      // An engine that extends another one has only the numbers in which it differs.
      if (entry.contains("extends") && !entry.contains(kind.key)) continue;
      parameters.push_back({fmt::format("/engines/{}/{}", engine, kind.key),
                            kind.low,
                            kind.high,
                            kind.logarithmic,
                            engine,
                            {}});
    }
    if (goal == FitGoal::kStepTime && entry.contains("attention")) {
      parameters.push_back(
          {fmt::format("/engines/{}/attention/fraction", engine), 0.05, 1, true, engine, {}, {}});
    }
  }
  return parameters;
}

std::vector<FitParameter> architecture_parameters(const PreparedRuns& runs,
                                                  const Json& efficiency) {
  std::set<std::string> architectures;
  for (std::size_t i = 0; i < runs.runs().size(); ++i) architectures.insert(runs.architecture(i));
  std::vector<FitParameter> parameters;
  for (const std::string& name : architectures) {
    const Json& known = efficiency.at("architectures");
    if (known.contains(name) && known.at(name).contains("source")) continue;
    parameters.push_back(
        {fmt::format("/architectures/{}/matmul_16bit/fraction", name), 0.1, 1, true, {}, name, {}});
  }
  return parameters;
}

std::vector<FitParameter> link_parameters(const PreparedRuns& runs, const Json& efficiency) {
  std::vector<FitParameter> parameters;
  for (const auto& [name, link] : efficiency.at("default").at("links").items()) {
    bool used = false;
    for (std::size_t i = 0; i < runs.runs().size(); ++i) used |= runs.uses_link(i, name);
    if (!used || link.contains("source")) continue;
    for (const char* key : {"fraction", "all_reduce_fraction"}) {
      parameters.push_back(
          {fmt::format("/default/links/{}/{}", name, key), 0.05, 1, true, {}, {}, name});
    }
  }
  return parameters;
}

Json with_values(Json efficiency, const std::vector<FitParameter>& parameters,
                 const std::vector<double>& values) {
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    efficiency[Json::json_pointer(parameters[k].pointer)] = values[k];
  }
  return efficiency;
}

namespace {

// The state of a fit: predictions of all runs under the current numbers, and of those that depend
// on the number tried last.
class Fit {
 public:
  Fit(const PreparedRuns& runs, std::vector<std::size_t> which, Json efficiency,
      const std::vector<FitParameter>& parameters, FitGoal goal)
      : runs_(runs),
        which_(std::move(which)),
        efficiency_(std::move(efficiency)),
        parameters_(parameters),
        goal_(goal) {
    for (const FitParameter& p : parameters_) {
      ranges_.push_back({p.low, p.high, p.logarithmic});
      initial_.push_back(start_of(p));
      set(values_.size(), initial_.back());
      values_.push_back(initial_.back());
      affected_.push_back(affected_by(p));
    }
    predictions_ = runs_.predict(efficiency_, "auto", which_);
  }

  FitResult run(const std::function<void(const FitProgress&)>& progress) {
    FitResult result;
    result.before = objective(runs_, which_, predictions_, goal_);
    SearchTarget target;
    target.tried = [&](std::size_t k, double candidate) {
      ++result.evaluations;
      return tried(k, candidate);
    };
    target.kept = [&](std::size_t k, double candidate) {
      predictions_ = std::move(mixed_);
      values_[k] = candidate;
      set(k, candidate);
    };
    if (progress) {
      target.progress = [&](int sweep, std::size_t k, double best) {
        progress({sweep, best, parameters_[k].pointer});
      };
    }
    result.start = initial_;
    result.values = coordinate_search(values_, ranges_, result.before, target);
    result.after = objective(runs_, which_, predictions_, goal_);
    return result;
  }

 private:
  // The number in the file, or the one of its defaults.
  double start_of(const FitParameter& p) const {
    const Json::json_pointer pointer(p.pointer);
    const std::string key = p.pointer.substr(p.pointer.rfind('/') + 1);
    const double middle = p.logarithmic ? std::sqrt(p.low * p.high) : (p.low + p.high) / 2;
    const double value = efficiency_.contains(pointer)
                             ? efficiency_.at(pointer).get<double>()
                             : efficiency_.at("default").value(key, middle);
    return std::clamp(value, p.low, p.high);
  }

  void set(std::size_t k, double value) {
    efficiency_[Json::json_pointer(parameters_[k].pointer)] = value;
  }

  // Positions in which_: only they are simulated again.
  std::vector<std::size_t> affected_by(const FitParameter& p) const {
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < which_.size(); ++i) {
      const MeasuredRun& run = runs_.runs()[which_[i]];
      if ((p.engine.empty() || builds_on(efficiency_, run.engine, p.engine)) &&
          (p.architecture.empty() || runs_.architecture(which_[i]) == p.architecture) &&
          (p.link.empty() || runs_.uses_link(which_[i], p.link))) {
        positions.push_back(i);
      }
    }
    return positions;
  }

  double tried(std::size_t k, double candidate) {
    std::vector<std::size_t> rows;
    for (std::size_t i : affected_[k]) rows.push_back(which_[i]);
    mixed_ = predictions_;
    if (!rows.empty()) {
      set(k, candidate);
      const std::vector<Prediction> changed = runs_.predict(efficiency_, "auto", rows);
      for (std::size_t i = 0; i < rows.size(); ++i) mixed_[affected_[k][i]] = changed[i];
      set(k, values_[k]);
    }
    return objective(runs_, which_, mixed_, goal_) + pull(k, candidate);
  }

  double pull(std::size_t changed, double candidate) const {
    double sum = 0;
    for (std::size_t k = 0; k < values_.size(); ++k) {
      const double now = k == changed ? candidate : values_[k];
      const double distance = range_distance(ranges_[k], initial_[k], now);
      sum += distance * distance;
    }
    return kPull * sum;
  }

  const PreparedRuns& runs_;
  const std::vector<std::size_t> which_;
  Json efficiency_;
  const std::vector<FitParameter>& parameters_;
  const FitGoal goal_;
  std::vector<SearchRange> ranges_;
  std::vector<double> initial_, values_;
  std::vector<std::vector<std::size_t>> affected_;
  std::vector<Prediction> predictions_, mixed_;
};

std::vector<std::size_t> all_of(const PreparedRuns& runs, std::vector<std::size_t> which) {
  if (which.empty()) {
    for (std::size_t i = 0; i < runs.runs().size(); ++i) which.push_back(i);
  }
  return which;
}

}  // namespace

FitResult fit(const PreparedRuns& runs, const std::vector<std::size_t>& which, const Json& start,
              const std::vector<FitParameter>& parameters, FitGoal goal,
              const std::function<void(const FitProgress&)>& progress) {
  return Fit(runs, all_of(runs, which), start, parameters, goal).run(progress);
}

Halves split_groups(const PreparedRuns& runs, std::uint64_t seed) {
  std::map<int, bool> held;
  std::mt19937_64 random(seed);
  Halves halves;
  for (std::size_t i = 0; i < runs.runs().size(); ++i) {
    const auto [it, fresh] = held.try_emplace(runs.group()[i]);
    if (fresh) it->second = (random() >> 63) != 0;
    (it->second ? halves.held_out : halves.fit).push_back(i);
  }
  return halves;
}

}  // namespace meshwright
