#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace meshwright {

/// How the memory column of a table was taken.
enum class MemoryMeasure {
  kAllocated,  ///< Peak of live tensors.
  kReserved,   ///< Peak of what the caching allocator held.
  kDevice,     ///< Of the whole process, as nvidia-smi shows it.
};

/// How an engine cuts layers into stages when the table does not say.
enum class CutRule {
  kEven,      ///< Equal layers; a remainder goes to the first chunks.
  kWeighted,  ///< nanotron: stages filled in turn until their share of the weights is passed, the
              ///< output layer counted (build_model in nanotron/models/base.py).
};

/// An engine that was configured in another way: an entry of its own in the efficiency data.
struct EngineVariant {
  std::string_view notes;  ///< Runs whose notes contain this…
  bool pipelined = false;  ///< … or, when it is empty, runs with several stages.
  std::string_view engine;
};

/// What a table of measured runs leaves unsaid, from the publication or the engine's defaults.
struct MeasuredSource {
  std::string_view match;  ///< What its column `source` begins with.
  std::string_view name;   ///< Short name in reports.
  std::string_view engine;
  std::span<const EngineVariant> variants = {};  ///< The first that matches replaces `engine`.
  std::string_view network;  ///< Cluster shorthand after '@' when `interconnect` is blank.
  std::string_view precision = "bf16";
  std::string_view recompute = "none";
  std::string_view attention = "flash";
  int zero_stage = 0;
  bool sequence_parallel = false;
  bool dropout = false;         ///< Attention and hidden dropout, as Megatron's default.
  bool half_gradients = false;  ///< Gradients accumulate in the weights' type.
  bool pads_vocab = false;      ///< Vocabulary rounded up to 128 * tp (Megatron).
  bool tied = true;             ///< Output layer shares the embedding, unless notes say otherwise.
  std::int64_t vocab = 50257;
  std::int64_t seq = 0;
  CutRule cut = CutRule::kEven;
  MemoryMeasure memory = MemoryMeasure::kReserved;
  double memory_unit = 1e9;  ///< Bytes per unit of peak_mem_gb.
  bool memory_of_last_stage = false;
  std::int64_t min_hidden_timed = 0;  ///< Smaller models: the table itself says that its times are
                                      ///< overhead of a test and only memory counts.
};

/// The known tables. A row of any other source gets the plain defaults above.
std::span<const MeasuredSource> measured_sources();
const MeasuredSource& measured_source(std::string_view source);

/// Text in the column `interconnect` and the network it stands for in a cluster shorthand.
struct NetworkText {
  std::string_view contains;
  std::string_view network;
};
std::span<const NetworkText> network_texts();

}  // namespace meshwright
