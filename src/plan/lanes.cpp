#include "plan/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/order.h"

namespace meshwright {
namespace {

// "0, 3 and 4", a few of them.
std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i == 4 && numbers.size() > 5)
      return fmt::format("{} and {} more", text, numbers.size() - i);
    const bool last = i + 1 == numbers.size();
    text += fmt::format("{}{}", i == 0 ? "" : last ? " and " : ", ", numbers[i]);
  }
  return text;
}

std::vector<DeviceId> devices_of(const Mesh& mesh) {
  AxisList all;
  for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) all.push_back(a);
  return mesh.group(all);
}

}  // namespace

std::vector<Lane> lanes_of(const Plan& plan) {
  struct Class {
    std::vector<int> stages;
    int devices = 0;
  };
  // Splits the devices by one stage after the other.
  std::vector<Class> classes = {{}};
  std::vector<int> class_of;  // Per device; 0 = of no stage yet.
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::map<int, int> split;  // Class before and after.
    for (DeviceId device : devices_of(plan.stages[s].mesh)) {
      if (device.index() >= class_of.size()) class_of.resize(device.index() + 1, 0);
      int& now = class_of[device.index()];
      const auto [it, fresh] = split.try_emplace(now, static_cast<int>(classes.size()));
      if (fresh) {
        Class smaller;
        smaller.stages = classes[static_cast<std::size_t>(now)].stages;
        smaller.stages.push_back(static_cast<int>(s));
        classes.push_back(std::move(smaller));
      }
      if (now != 0) --classes[static_cast<std::size_t>(now)].devices;
      now = it->second;
      ++classes[static_cast<std::size_t>(now)].devices;
    }
  }
  std::map<int, Lane> by_stage;
  // What stages share first: it says more than what is left of one.
  std::stable_partition(classes.begin(), classes.end(),
                        [](const Class& c) { return c.stages.size() > 1; });
  for (Class& c : classes) {
    if (c.devices == 0) continue;
    const auto size = [&](int stage) {
      return plan.stages[static_cast<std::size_t>(stage)].mesh.device_count();
    };
    const auto own = std::min_element(c.stages.begin(), c.stages.end(),
                                      [&](int a, int b) { return size(a) < size(b); });
    if (size(*own) != c.devices) {
      throw Error(
          c.stages.size() > 1
              ? fmt::format(
                    "stages {} share {} devices, but the smallest of them, stage {}, has {}",
                    list(c.stages), c.devices, *own, size(*own))
              : fmt::format("stage {} shares {} of its {} devices with smaller stages, but not all",
                            *own, size(*own) - c.devices, size(*own)),
          "stages", "stages may be disjoint or equal, or smaller ones may tile a larger one");
    }
    std::rotate(c.stages.begin(), own, own + 1);
    by_stage[c.stages[0]] = {c.stages, plan.stages[static_cast<std::size_t>(c.stages[0])].mesh, {}};
  }
  std::vector<Lane> lanes;
  for (auto& [stage, lane] : by_stage) {
    if (stage != static_cast<int>(lanes.size())) {
      throw Error(
          fmt::format("stage {} lies over other stages but comes before stage {}, which does "
                      "not",
                      lanes.size(), stage),
          "stages", "stages that lie over others come last");
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

Degrees degrees_of(const Plan& plan, const Stage& stage, std::size_t lanes) {
  Degrees d = plan.degrees;
  const Mesh& mesh = stage.mesh;
  const auto replicas = static_cast<std::size_t>(find_schedule(plan.schedule).replicas);
  d.pp = static_cast<int>(lanes);
  d.vpp = static_cast<int>(std::max<std::size_t>(plan.chunks.size() / (replicas * lanes), 1));
  d.dp = mesh.size(stage.roles.data);
  d.cp = mesh.size(stage.roles.context);
  d.tp = mesh.size(stage.roles.tensor);
  d.sp = stage.roles.sequence_parallel;
  d.ep = mesh.size(stage.roles.expert);
  d.etp = mesh.size(stage.roles.expert_tensor);
  const std::int64_t parts = plan.micro_batches * d.dp;
  d.micro_batch = plan.global_batch % parts == 0 ? plan.global_batch / parts : 0;
  d.recompute = stage.recompute;
  d.zero = stage.state;
  d.zero_group = stage.state == StateSharding::kNone ? 0 : mesh.size(stage.state_axes);
  return d;
}

std::vector<std::vector<int>> lanes_of_stages(const std::vector<Lane>& lanes) {
  std::vector<std::vector<int>> covered;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    for (int stage : lanes[lane].stages) {
      const auto s = static_cast<std::size_t>(stage);
      if (s >= covered.size()) covered.resize(s + 1);
      covered[s].push_back(static_cast<int>(lane));
    }
  }
  return covered;
}

ScheduleShape schedule_shape(const Plan& plan, const std::vector<Lane>& lanes) {
  const Schedule& schedule = find_schedule(plan.schedule);
  const std::vector<std::vector<int>> covered = lanes_of_stages(lanes);
  ScheduleShape shape;
  shape.stages = static_cast<int>(lanes.size());
  shape.micro_batches = static_cast<int>(plan.micro_batches);
  std::vector<std::size_t> first(static_cast<std::size_t>(schedule.replicas) + 1, 0);
  int replica = 0;
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const Chunk& chunk = plan.chunks[c];
    if (chunk.replica != replica && c > 0) first[static_cast<std::size_t>(++replica)] = c;
    if (chunk.replica != replica || replica >= schedule.replicas) {
      throw Error(
          fmt::format("chunk {} belongs to replica {} of {}", c, chunk.replica, schedule.replicas),
          "chunks",
          fmt::format("{} has {}, the chunks of one after those of the other", schedule.name,
                      schedule.replicas == 1 ? "one replica"
                                             : fmt::format("{} replicas", schedule.replicas)));
    }
    if (replica > 0) continue;
    const auto& on = covered[static_cast<std::size_t>(chunk.stage)];
    if (on.size() == 1) continue;
    if (on.size() != lanes.size()) {
      throw Error(
          fmt::format("stage {} lies over stages {} of {}", chunk.stage, list(on), lanes.size()),
          "stages", "a stage has devices of its own or those of all stages");
    }
    shape.everywhere.push_back(static_cast<int>(c));
  }
  const auto per_replica = plan.chunks.size() / static_cast<std::size_t>(schedule.replicas);
  if (replica + 1 != schedule.replicas ||
      per_replica * static_cast<std::size_t>(schedule.replicas) != plan.chunks.size() ||
      (schedule.replicas > 1 && first[1] != per_replica)) {
    throw Error(fmt::format("{} has {} replicas of the model with as many chunks each",
                            schedule.name, schedule.replicas),
                "chunks");
  }
  const std::size_t alone = per_replica - shape.everywhere.size();
  if (alone % lanes.size() != 0) {
    throw Error(fmt::format("{} chunks do not go round {} stages evenly", alone, lanes.size()),
                "chunks");
  }
  shape.chunks_per_stage = static_cast<int>(alone / lanes.size());
  return shape;
}

std::string refusal(const Schedule& schedule, const ScheduleShape& shape) {
  if (!shape.everywhere.empty() && !schedule.takes_everywhere) {
    return fmt::format("{} has no place for chunks that all devices run together; use interlaced",
                       schedule.name);
  }
  if (shape.chunks_per_stage < 1) {
    return fmt::format("{} needs a chunk on every stage", schedule.name);
  }
  const std::string_view reason = schedule.refuses(shape);
  if (reason.empty() && schedule.vpp_max > 0 && shape.chunks_per_stage < schedule.vpp_min) {
    return fmt::format("{} has {} or more chunks per stage, not {}", schedule.name,
                       schedule.vpp_min, shape.chunks_per_stage);
  }
  return std::string(reason);
}

std::vector<std::vector<ScheduleItem>> pass_orders(const Schedule& schedule,
                                                   const ScheduleShape& shape) {
  if (const std::string reason = refusal(schedule, shape); !reason.empty()) {
    throw Error(reason, "schedule");
  }
  auto orders = schedule.generate(shape);
  if (shape.backward.empty()) return orders;
  for (auto& order : orders) {
    std::erase_if(order, [&](const ScheduleItem& item) {
      return item.phase != Phase::kForward && !shape.has_backward(item.chunk);
    });
  }
  return orders;
}

void fill_lanes(const Plan& plan, Program& program) {
  const Schedule& schedule = find_schedule(plan.schedule);
  program.lanes = lanes_of(plan);
  ScheduleShape shape = schedule_shape(plan, program.lanes);
  const auto missing = std::find_if(program.chunks.begin(), program.chunks.end(),
                                    [](const ChunkProgram& c) { return !c.backward; });
  if (missing != program.chunks.end()) {
    for (const ChunkProgram& c : program.chunks) shape.backward.push_back(c.backward);
  } else if (schedule.recycles) {
    shape.backward.assign(program.chunks.size(), true);
  }
  auto orders = pass_orders(schedule, shape);
  for (std::size_t l = 0; l < orders.size(); ++l) program.lanes[l].order = std::move(orders[l]);
  if (schedule.slices) {
    for (const Transfer& t : program.transfers) {
      const int from = t.gradient ? t.to_chunk : t.from_chunk;
      const int to = t.gradient ? t.from_chunk : t.to_chunk;
      if (schedule.stage_of(shape, from) <= schedule.stage_of(shape, to)) continue;
      throw Error(
          fmt::format("{} needs slices that go from stage to stage, but chunk {} on stage {} "
                      "needs what chunk {} leaves on stage {}",
                      schedule.name, to, schedule.stage_of(shape, to), from,
                      schedule.stage_of(shape, from)),
          "schedule",
          "cut the sequence into slices first (plan --space terapipe), or use interleaved");
    }
  }
  if (!plan.order.empty()) {
    check_rules(plan.order, plan, shape);
    apply_rules(plan.order, program);
  }
  place_transfers(program);
}

}  // namespace meshwright
