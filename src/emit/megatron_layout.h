#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshwright {

/// Decoder layers per chunk, indexed [pipeline rank][virtual stage].
using LayerTable = std::vector<std::vector<std::int64_t>>;

/// Megatron's `--pipeline-model-parallel-layout`: which units every pipeline stage holds, in the
/// order of execution. A unit is a letter: `E` embedding, `t` decoder layer, `m`
/// multi-token-prediction layer, `L` loss. A stage may be empty.
struct MegatronLayout {
  std::vector<std::string> stages;

  friend bool operator==(const MegatronLayout&, const MegatronLayout&) = default;
};

/// Reads a layout string: stages separated by `|`, `(...)*n` repeats a text, `x*n` repeats one
/// letter or separator, commas are cosmetic. Groups are unrolled first, then single repeats, as
/// Megatron does it. Throws Error at the offending text; the unrolled text is bounded by
/// `kMaxMegatronLayoutUnits`.
MegatronLayout parse_megatron_layout(std::string_view text);
inline constexpr std::size_t kMaxMegatronLayoutUnits = std::size_t{1} << 18;

/// The shortest customary spelling, e.g. `Et*5|(t*6|)*14,ttt|tL`; parse(print(x)) == x.
std::string print_megatron_layout(const MegatronLayout& layout);

/// A layout from decoder layers per stage in order of execution: the embedding opens the first
/// stage, `mtp_layers` and the loss close the last one. Counts must not be negative, and there must
/// be a stage.
MegatronLayout make_megatron_layout(std::span<const std::int64_t> layers_per_stage,
                                    std::int64_t mtp_layers = 0);

/// Splits `layers` over `stages` so that the embedding and the loss weigh as much as one layer each
/// and stages differ by at most one unit; the longer stages stand in the middle. With fewer layers
/// than stages some stages are empty.
std::vector<std::int64_t> balanced_layers(std::int64_t layers, std::int64_t stages);

/// Decoder layers per chunk when the stages go round robin over `pp` pipeline ranks: stage s runs
/// on rank s % pp as its virtual stage s / pp. The number of stages must be a multiple of `pp`.
LayerTable layers_of(const MegatronLayout& layout, std::int64_t pp);

/// What is wrong with the order or number of units for a model of `num_layers` decoder and
/// `mtp_layers` prediction layers on `pp` pipeline ranks; empty when nothing is.
std::string layout_fault(const MegatronLayout& layout, std::int64_t pp, std::int64_t num_layers,
                         std::int64_t mtp_layers);

}  // namespace meshwright
