// Rank groups as mixed-radix numbers: a rank is written in the radices of the axes, fastest first;
// a group is the set of ranks that share all digits outside the named axes (Megatron-LM 0.20,
// core/parallel_state.py, RankGenerator).
#include "emit/megatron_groups.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/spelling.h"

namespace meshwright {
namespace {

constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;

struct Axis {
  std::string_view name;
  std::int64_t size;
};

/// world / (product of `sizes`), or 0 when it does not divide. Stops before the product can
/// overflow.
std::int64_t rest_of(std::int64_t world, std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) {
    if (size < 1 || world % size != 0) return 0;
    world /= size;
  }
  return world;
}

std::int64_t dense_rest(const MegatronDegrees& d) {
  return rest_of(d.world, {d.tp, d.weight_shards, d.cp, d.pp});
}

std::int64_t expert_rest(const MegatronDegrees& d) {
  return rest_of(d.world, {d.etp, d.ep, d.expert_weight_shards, d.pp});
}

std::vector<Axis> axes_of(const MegatronDegrees& d, MegatronGrid grid) {
  std::vector<Axis> axes;
  if (grid == MegatronGrid::kDense)
    axes = {{"tp", d.tp}, {"gtp", d.weight_shards}, {"cp", d.cp}};
  else
    axes = {{"tp", d.etp}, {"ep", d.ep}, {"gtp", d.expert_weight_shards}};
  const Axis dp{"dp", grid == MegatronGrid::kDense ? d.dp() : d.expert_dp()};
  const Axis pp{"pp", d.pp};
  if (d.pp_before_dp)
    axes.insert(axes.end(), {pp, dp});
  else
    axes.insert(axes.end(), {dp, pp});
  return axes;
}

/// Which of `axes` the text names. Throws Error for a name that is not there.
std::vector<bool> named(const std::vector<Axis>& axes, std::string_view names) {
  std::vector<bool> mask(axes.size());
  for (std::string_view rest = names;;) {
    const auto dash = rest.find('-');
    bool found = false;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].name != rest.substr(0, dash)) continue;
      mask[i] = found = true;
    }
    if (!found)
      throw Error(fmt::format("{} is no axis of this grid", in_quotes(rest.substr(0, dash))),
                  "rank groups");
    if (dash == std::string_view::npos) return mask;
    rest.remove_prefix(dash + 1);
  }
}

/// Ranks of all digit combinations of the axes selected by `mask == wanted`, the first axis
/// fastest.
std::vector<std::int64_t> offsets(const std::vector<Axis>& axes, const std::vector<bool>& mask,
                                  bool wanted) {
  std::vector<std::int64_t> ranks = {0};
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < axes.size(); stride *= axes[i].size, ++i) {
    if (mask[i] != wanted) continue;
    const std::size_t before = ranks.size();
    for (std::int64_t digit = 1; digit < axes[i].size; ++digit)
      for (std::size_t r = 0; r < before; ++r) ranks.push_back(ranks[r] + digit * stride);
  }
  return ranks;
}

std::int64_t checked(std::int64_t rest, const MegatronDegrees& d, std::string_view what,
                     std::string_view degrees) {
  if (rest > 0) return rest;
  throw Error(fmt::format("{} ranks cannot be divided by {} ({})", d.world, what, degrees),
              "rank groups");
}

}  // namespace

std::int64_t MegatronDegrees::dp() const {
  return checked(dense_rest(*this), *this, "tp x weight shards x cp x pp",
                 fmt::format("{} x {} x {} x {}", tp, weight_shards, cp, pp));
}

std::int64_t MegatronDegrees::expert_dp() const {
  return checked(expert_rest(*this), *this, "etp x ep x weight shards x pp",
                 fmt::format("{} x {} x {} x {}", etp, ep, expert_weight_shards, pp));
}

RankGroups megatron_rank_groups(const MegatronDegrees& degrees, MegatronGrid grid,
                                std::string_view names) {
  if (degrees.world < 1 || degrees.world > kMaxRanks)
    throw Error(fmt::format("{} ranks are out of range", degrees.world), "rank groups",
                fmt::format("1 to {}", kMaxRanks));
  const auto axes = axes_of(degrees, grid);
  const auto mask = named(axes, names);
  const auto members = offsets(axes, mask, true);
  RankGroups groups;
  for (const std::int64_t start : offsets(axes, mask, false)) {
    auto& group = groups.emplace_back(members);
    for (auto& rank : group) rank += start;
  }
  return groups;
}

bool pipeline_groups_agree(const MegatronDegrees& d) {
  const std::int64_t dense = dense_rest(d);
  const std::int64_t expert = expert_rest(d);
  if (dense == 0 || expert == 0) return false;
  // With pp slowest its stride is world / pp on both grids; else the strides are what lies below
  // dp.
  return !d.pp_before_dp || d.pp == 1 || dense == expert;
}

}  // namespace meshwright
