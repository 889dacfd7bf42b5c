#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "api/request.h"

namespace meshwright::cli {

/// The options that describe a model, a cluster and a run, shared by every command that needs them.
struct RequestOptions {
  std::vector<std::string> positional;  // MODEL CLUSTER, or CLUSTER with --layers …
  GptSizes sizes;
  bool untied = false;
  std::int64_t global_batch = 1024;
  std::int64_t seq = 0;
  std::string precision = "bf16";
  std::string optimizer = "adamw";
  std::string gradient_dtype = "f32";
  std::string attention = "flash";
  bool dropout = false;
  bool mtp = false;
  std::string cost;  // Empty = analytic, or profiled with a profile.
  std::string profile;
  std::string engine = "default";
  std::string objective = "throughput";

  std::string pp, vpp, tp, cp, dp, ep, etp, micro_batch;
  std::vector<std::string> zero, recompute;
  bool no_recompute = false;
  bool no_sp = false;
  std::string schedule;
  double max_memory = 0.94;
  int devices = 0;
  std::string space;
};

/// Declares the model, cluster and run options; `with_pins` adds those that pin or forbid degrees.
void declare(CLI::App& app, RequestOptions& options, bool with_pins, bool required = true);

/// Checks and converts. Throws Error naming the option.
Request to_request(const RequestOptions& options);

}  // namespace meshwright::cli
