#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace meshwright {

/// The degrees of a Megatron layout. Dense layers lie on a grid tp x cp x dp x pp, expert layers on
/// a grid etp x ep x edp x pp over the same ranks; `weight_shards` (GTP) and `expert_weight_shards`
/// are the further axis along which weights alone are split.
struct MegatronDegrees {
  std::int64_t world = 1;
  std::int64_t tp = 1, cp = 1, pp = 1;
  std::int64_t ep = 1, etp = 1;
  std::int64_t weight_shards = 1, expert_weight_shards = 1;
  bool pp_before_dp =
      false;  ///< `--use-tp-pp-dp-mapping`: order tp-cp-ep-pp-dp, not tp-cp-ep-dp-pp.

  /// Data-parallel size of the dense and of the expert layers. Throw Error when the degrees do not
  /// divide the world.
  std::int64_t dp() const;
  std::int64_t expert_dp() const;
};

enum class MegatronGrid { kDense, kExpert };

using RankGroups = std::vector<std::vector<std::int64_t>>;

/// The groups of ranks that differ only in the axes named by `axes` (parted by `-`, order
/// irrelevant): of `tp cp dp pp gtp` on the dense grid, of `tp ep dp pp gtp` on the expert grid.
/// Groups and ranks within them are in Megatron's order: the axis named first in the rank order
/// varies fastest. Throws Error for an unknown axis, degrees that do not divide the world, or more
/// than 1,048,576 ranks.
RankGroups megatron_rank_groups(const MegatronDegrees& degrees, MegatronGrid grid,
                                std::string_view axes);

/// Whether dense and expert layers form the same pipeline groups, which Megatron requires. False
/// when either grid does not divide the world.
bool pipeline_groups_agree(const MegatronDegrees& degrees);

}  // namespace meshwright
