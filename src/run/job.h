#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace meshwright {

/// All that a rank needs to know of a run besides which rank it is: read by every rank from one
/// file. The optimizer's name is the plan's.
struct Job {
  std::string plan;  ///< Path of the plan file.
  std::int64_t steps = 1;
  std::string data = "synthetic";  ///< "synthetic" or the path of a file.
  std::string dtype = "float32";   ///< "float64", "float32" or "bfloat16".
  std::uint64_t seed = 0;
  double learning_rate = 1e-3;
  double momentum = 0.9;  ///< SGD.
  double beta1 = 0.9;     ///< Adam and AdamW.
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< AdamW.
  double clip_norm = 0;        ///< Gradients are scaled to this global norm at most; 0 = never.
  bool verify = false;         ///< Compare with the single-device program.
  double tolerance = 1e-3;     ///< Largest relative difference that `verify` lets pass.
  std::string checkpoint_directory;   ///< Empty = none are written.
  std::int64_t checkpoint_every = 0;  ///< Steps; 0 = only after the last.
  std::string resume;                 ///< Path of a checkpoint to go on from; empty = start anew.
  std::string profile;                ///< Path for the measured timeline; empty = none.
  std::string device = "cpu";         ///< "cpu" or "cuda".
  std::int64_t print_every = 1;       ///< Steps; 0 = never.
  double timeout_seconds = 1800;      ///< A message that takes longer is a lost peer.
  double predicted_step_seconds = 0;  ///< For the report; 0 = not known.

  friend bool operator==(const Job&, const Job&) = default;
};

/// Throws Error when a value is out of its range: what is written can be read.
Json job_to_json(const Job& job);
/// Keys other than plan may be missing, which leaves their defaults. Throws Error whose place is
/// `source` and a JSON pointer: unknown keys, wrong types, values out of range, and settings that
/// contradict each other.
Job job_from_json(const Json& json, std::string_view source);

}  // namespace meshwright
