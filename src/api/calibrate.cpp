#include "api/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

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
  for (std::size_t k = 0; k < which.size(); ++k) {
    const MeasuredRun& run = runs.runs()[which[k]];
    const Prediction& p = predictions[k];
    if (goal == FitGoal::kStepTime) {
      if (run.step) means.add(run.source, robust_log_error(p.step.value, run.step->value));
      continue;
    }
    if (run.peak) means.add(run.source + " peak", robust_log_error(p.peak.value, run.peak->value));
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
          {fmt::format("/engines/{}/attention/fraction", engine), 0.05, 1, true, engine, {}});
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
    if (known.contains(name) && known.at(name).contains("matmul_16bit") &&
        known.at(name).at("matmul_16bit").contains("fixed_us")) {
      continue;
    }
    parameters.push_back(
        {fmt::format("/architectures/{}/matmul_16bit/fraction", name), 0.1, 1, true, {}, name});
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

double fit_objective(const PreparedRuns& runs, const std::vector<std::size_t>& which,
                     const Json& efficiency, FitGoal goal) {
  std::vector<std::size_t> all = which;
  if (all.empty()) {
    for (std::size_t i = 0; i < runs.runs().size(); ++i) all.push_back(i);
  }
  return objective(runs, all, runs.predict(efficiency, "auto", all), goal);
}

FitResult fit(const PreparedRuns& runs, const std::vector<std::size_t>& which, const Json& start,
              const std::vector<FitParameter>& parameters, FitGoal goal,
              const std::function<void(const FitProgress&)>& progress) {
  constexpr double kFirstStep = 0.25;  // Of the range, or of the logarithm's.
  constexpr double kLastStep = 0.004;
  std::vector<std::size_t> all = which;
  if (all.empty()) {
    for (std::size_t i = 0; i < runs.runs().size(); ++i) all.push_back(i);
  }
  Json efficiency = start;
  // Positions in `all` that depend on each parameter: only they are simulated again.
  std::vector<std::vector<std::size_t>> affected(parameters.size());
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const FitParameter& p = parameters[k];
      const MeasuredRun& run = runs.runs()[all[i]];
      if ((p.engine.empty() || builds_on(efficiency, run.engine, p.engine)) &&
          (p.architecture.empty() || runs.architecture(all[i]) == p.architecture)) {
        affected[k].push_back(i);
      }
    }
  }
  std::vector<double> value(parameters.size());
  std::vector<double> step(parameters.size(), kFirstStep);
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const FitParameter& p = parameters[k];
    const Json::json_pointer pointer(p.pointer);
    const std::string key = p.pointer.substr(p.pointer.rfind('/') + 1);
    if (efficiency.contains(pointer)) {
      value[k] = efficiency.at(pointer).get<double>();
    } else {
      value[k] = efficiency.at("default").value(
          key, p.logarithmic ? std::sqrt(p.low * p.high) : (p.low + p.high) / 2);
    }
    value[k] = std::clamp(value[k], p.low, p.high);
    efficiency[pointer] = value[k];
  }
  const std::vector<double> initial = value;
  const auto pull = [&](std::size_t changed, double candidate) {
    double sum = 0;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const FitParameter& p = parameters[k];
      const double now = k == changed ? candidate : value[k];
      const double moved = p.logarithmic ? std::log(now / initial[k]) / std::log(p.high / p.low)
                                         : (now - initial[k]) / (p.high - p.low);
      sum += moved * moved;
    }
    return kPull * sum;
  };
  std::vector<Prediction> predictions = runs.predict(efficiency, "auto", all);
  FitResult result;
  result.before = objective(runs, all, predictions, goal);
  double best = result.before;
  const auto try_value = [&](std::size_t k, double candidate) {
    const Json::json_pointer pointer(parameters[k].pointer);
    std::vector<std::size_t> rows;
    for (std::size_t i : affected[k]) rows.push_back(all[i]);
    if (rows.empty()) return false;
    efficiency[pointer] = candidate;
    const std::vector<Prediction> changed = runs.predict(efficiency, "auto", rows);
    ++result.evaluations;
    std::vector<Prediction> mixed = predictions;
    for (std::size_t i = 0; i < affected[k].size(); ++i) mixed[affected[k][i]] = changed[i];
    const double now = objective(runs, all, mixed, goal) + pull(k, candidate);
    if (now >= best * (1 - 1e-6)) {
      efficiency[pointer] = value[k];
      return false;
    }
    best = now;
    predictions = std::move(mixed);
    value[k] = candidate;
    return true;
  };
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool running = false;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const FitParameter& p = parameters[k];
      if (step[k] < kLastStep) continue;
      running = true;
      const auto moved = [&](double by) {
        return std::clamp(p.logarithmic ? value[k] * std::pow(p.high / p.low, by)
                                        : value[k] + (p.high - p.low) * by,
                          p.low, p.high);
      };
      const double up = moved(step[k]);
      const double down = moved(-step[k]);
      if (!(up != value[k] && try_value(k, up)) && !(down != value[k] && try_value(k, down))) {
        step[k] /= 2;
      }
      if (progress) progress({sweep, best, p.pointer});
    }
    if (!running) break;
  }
  result.after = objective(runs, all, predictions, goal);
  result.values = std::move(value);
  return result;
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
