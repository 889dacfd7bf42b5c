#include "emit/plan_grid.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "base/error.h"

namespace meshwright {
namespace {

// Axes of a stage from the outermost to the innermost rank coordinate.
std::vector<int> rank_axes(const Stage& stage) {
  std::vector<int> axes;
  for (const AxisList* list : {&stage.roles.data, &stage.roles.context, &stage.roles.tensor}) {
    for (int axis : *list) axes.push_back(axis);
  }
  return axes;
}

std::string axis_name(const Stage& stage, int axis) {
  return stage.mesh.axes[static_cast<std::size_t>(axis)].name;
}

/// How far apart in rank order neighbours along each mesh axis are; 0: the axis has no role.
std::vector<std::int64_t> rank_strides(const Stage& stage) {
  std::vector<std::int64_t> strides(stage.mesh.axes.size(), 0);
  const std::vector<int> axes = rank_axes(stage);
  std::int64_t stride = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    strides[static_cast<std::size_t>(axes[i])] = stride;
    stride *= stage.mesh.axes[static_cast<std::size_t>(axes[i])].size;
  }
  return strides;
}

/// Whether `list` (outermost first) is the run of rank coordinates that begins at stride `begin`.
bool is_run(const Stage& stage, const std::vector<std::int64_t>& strides, const AxisList& list,
            std::int64_t begin) {
  for (int i = list.size(); i-- > 0;) {
    const auto axis = static_cast<std::size_t>(list[i]);
    if (strides[axis] != begin) return false;
    begin *= stage.mesh.axes[axis].size;
  }
  return true;
}

/// The devices that share one copy of the state: the product of `list`, if its axes are the run of
/// rank coordinates from `begin` on.
std::optional<std::int64_t> state_group(const Stage& stage, const AxisList& list,
                                        std::int64_t begin) {
  if (!is_run(stage, rank_strides(stage), list, begin)) return std::nullopt;
  return stage.mesh.size(list);
}

// What the roles of one stage must obey for its ranks to be a grid. Empty: they do.
std::string stage_fault(const Stage& stage) {
  std::vector<int> uses(stage.mesh.axes.size(), 0);
  for (int axis : rank_axes(stage)) ++uses[static_cast<std::size_t>(axis)];
  for (std::size_t a = 0; a < uses.size(); ++a) {
    if (uses[a] == 1) continue;
    return fmt::format("axis '{}' has {} of the roles data, context and tensor",
                       stage.mesh.axes[a].name, uses[a] == 0 ? "none" : "several");
  }
  const std::vector<std::int64_t> strides = rank_strides(stage);
  const Roles& roles = stage.roles;
  if (!is_run(stage, strides, roles.expert_tensor, 1) ||
      !is_run(stage, strides, roles.expert, stage.mesh.size(roles.expert_tensor))) {
    return fmt::format("expert groups do not follow the rank order (expert axis '{}')",
                       roles.expert.empty() ? axis_name(stage, roles.expert_tensor[0])
                                            : axis_name(stage, roles.expert[0]));
  }
  return {};
}

PlanGrid stage_grid(const Stage& stage) {
  PlanGrid grid;
  grid.dp = stage.mesh.size(stage.roles.data);
  grid.cp = stage.mesh.size(stage.roles.context);
  grid.tp = stage.mesh.size(stage.roles.tensor);
  grid.ep = stage.mesh.size(stage.roles.expert);
  grid.etp = stage.mesh.size(stage.roles.expert_tensor);
  grid.sequence_parallel = stage.roles.sequence_parallel;
  grid.recompute = stage.recompute;
  grid.state = stage.state;
  return grid;
}

struct GridField {
  std::string_view name;
  std::int64_t PlanGrid::* field;
};
constexpr GridField kFields[] = {
    {"data", &PlanGrid::dp},
    {"context", &PlanGrid::cp},
    {"tensor", &PlanGrid::tp},
    {"expert", &PlanGrid::ep},
    {"expert-tensor", &PlanGrid::etp},
    {"state sharding", &PlanGrid::state_group},
    {"expert state sharding", &PlanGrid::expert_state_group},
};

std::string difference(const PlanGrid& a, const PlanGrid& b) {
  for (const GridField& f : kFields) {
    if (a.*f.field != b.*f.field) {
      return fmt::format("the {} degree ({} and {})", f.name, a.*f.field, b.*f.field);
    }
  }
  if (a.sequence_parallel != b.sequence_parallel) return "sequence parallelism";
  if (a.recompute != b.recompute) return "what is recomputed";
  if (a.state != b.state) return "state sharding";
  return {};
}

class GridReader {
 public:
  explicit GridReader(const Plan& plan) : plan_(plan) {}

  GridReading read() {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) read_stage(s);
    if (plan_.stages.empty()) say("it has no stages");
    reading_.grid.pp = static_cast<std::int64_t>(plan_.stages.size());
    read_chunks();
    const PlanGrid& grid = reading_.grid;
    const std::int64_t parts = grid.dp * plan_.micro_batches;
    if (parts < 1 || plan_.global_batch % parts != 0) {
      say(fmt::format("global batch {} is not split evenly over {} micro-batches of {} replicas",
                      plan_.global_batch, plan_.micro_batches, grid.dp));
    } else {
      reading_.grid.micro_batch = plan_.global_batch / parts;
    }
    return std::move(reading_);
  }

 private:
  void say(std::string fault) { reading_.faults.push_back(std::move(fault)); }

  void read_stage(std::size_t s) {
    const Stage& stage = plan_.stages[s];
    const std::string fault = stage_fault(stage);
    if (!fault.empty()) return say(fmt::format("stage {}: {}", s, fault));
    PlanGrid grid = stage_grid(stage);
    if (stage.state != StateSharding::kNone) {
      const auto dense = state_group(stage, stage.state_axes, grid.tp);
      const auto expert = state_group(stage, stage.expert_state_axes, grid.ep * grid.etp);
      if (!dense || !expert) {
        return say(fmt::format("stage {}: state is not sharded over neighbouring replicas", s));
      }
      grid.state_group = *dense;
      grid.expert_state_group = *expert;
      if (*dense == 1 && *expert == 1) grid.state = StateSharding::kNone;
    }
    if (s == 0) {
      reading_.grid = grid;
      return;
    }
    const std::string differs = difference(reading_.grid, grid);
    if (!differs.empty() && !uneven_) {
      say(fmt::format("stages 0 and {} differ in {}", s, differs));
      uneven_ = true;
    }
  }

  void read_chunks() {
    const std::size_t pp = plan_.stages.size(), chunks = plan_.chunks.size();
    if (pp == 0 || chunks == 0 || chunks % pp != 0) {
      return say(
          fmt::format("schedule '{}' has {} chunks on {} stages: every stage needs the same number",
                      plan_.schedule, chunks, pp));
    }
    for (std::size_t c = 0; c < chunks; ++c) {
      if (plan_.chunks[c].stage == static_cast<int>(c % pp)) continue;
      return say(
          fmt::format("schedule '{}' has chunk {} on stage {}, not {}: stages do not take turns",
                      plan_.schedule, c, plan_.chunks[c].stage, c % pp));
    }
    reading_.grid.vpp = static_cast<std::int64_t>(chunks / pp);
  }

  const Plan& plan_;
  GridReading reading_;
  bool uneven_ = false;
};

}  // namespace

GridReading read_grid(const Plan& plan) { return GridReader(plan).read(); }

RankPlace place_of(const PlanGrid& grid, std::int64_t rank, RankOrder order) {
  RankPlace place;
  const auto digit = [&](std::int64_t size) {
    const std::int64_t d = rank % size;
    rank /= size;
    return d;
  };
  place.tp = digit(grid.tp);
  place.cp = digit(grid.cp);
  if (order == RankOrder::kPpBeforeDp) place.pp = digit(grid.pp);
  place.dp = digit(grid.dp);
  if (order == RankOrder::kDpBeforePp) place.pp = digit(grid.pp);
  const std::int64_t in_stage = place.tp + grid.tp * (place.cp + grid.cp * place.dp);
  place.etp = in_stage % grid.etp;
  place.ep = in_stage / grid.etp % grid.ep;
  return place;
}

std::vector<DeviceId> rank_devices(const Plan& plan, const PlanGrid& grid, RankOrder order) {
  // Device offsets of the tp, cp and dp coordinates; the axes of a role are mixed-radix digits.
  std::vector<DeviceId> devices;
  devices.reserve(static_cast<std::size_t>(grid.ranks()));
  for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
    const RankPlace place = place_of(grid, rank, order);
    const Stage& stage = plan.stages[static_cast<std::size_t>(place.pp)];
    std::int64_t device = stage.mesh.first_device;
    const std::pair<const AxisList*, std::int64_t> parts[] = {{&stage.roles.tensor, place.tp},
                                                              {&stage.roles.context, place.cp},
                                                              {&stage.roles.data, place.dp}};
    for (auto [list, coordinate] : parts) {
      for (int i = list->size(); i-- > 0;) {
        const MeshAxis& axis = stage.mesh.axes[static_cast<std::size_t>((*list)[i])];
        device += coordinate % axis.size * axis.stride;
        coordinate /= axis.size;
      }
    }
    devices.emplace_back(device);
  }
  return devices;
}

}  // namespace meshwright
