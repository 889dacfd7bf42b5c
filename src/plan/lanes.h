#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/program.h"
#include "plan/schedule.h"

namespace meshwright {

/// The lanes of a plan's stages, without orders: devices that belong to the same stages form one.
/// Lane i is stage i's own; stages after the last lane lie over several lanes, or over one that has
/// a stage of its own. Throws Error when the devices that some stages share are no stage's mesh, or
/// a larger stage comes before a smaller one.
std::vector<Lane> lanes_of(const Plan& plan);

/// The degrees that a stage of a plan really has, whatever Plan::degrees says about where it came
/// from; micro_batch is 0 when the batch is not split evenly.
Degrees degrees_of(const Plan& plan, const Stage& stage, std::size_t lanes);

/// Per stage the lanes that it covers, ascending.
std::vector<std::vector<int>> lanes_of_stages(const std::vector<Lane>& lanes);

/// What a plan asks its schedule for, all chunks with a backward pass where the schedule does not
/// say otherwise. Throws Error when the chunks do not go round the lanes evenly, when their
/// replicas are not the schedule's, or a stage covers a part of several lanes.
ScheduleShape schedule_shape(const Plan& plan, const std::vector<Lane>& lanes);

/// Why a schedule cannot be had, or empty.
std::string refusal(const Schedule& schedule, const ScheduleShape& shape);

/// Per lane its passes in the schedule's order; chunks without a backward pass have none. Throws
/// Error when the schedule refuses the shape.
std::vector<std::vector<ScheduleItem>> pass_orders(const Schedule& schedule,
                                                   const ScheduleShape& shape);

/// Puts the items of Program::transfers between the passes of all lanes: a send right after the
/// pass that gives the values, its wait before the lane's next send of the same transfer or at the
/// end; a receive before the pass that precedes its use, or earlier: all receives of a lane stand
/// in the order in which the messages are sent when passes take one unit of time each, and before
/// any pass that starts later than the message is there. So the messages between two lanes are sent
/// and received in one order (untagged NCCL messages are first in, first out), and no wait depends
/// on a receive that stands behind it, whether or not a send waits for its receiver. Throws
/// InternalError when the passes alone deadlock.
void place_transfers(Program& program);

/// When each pass of every lane starts if passes take one unit of time and messages none; the lanes
/// hold passes alone. Throws InternalError when they deadlock.
std::vector<std::vector<std::int32_t>> unit_starts(const Program& program);

/// Fills Program::lanes by the plan's schedule and order rules, with the program's transfers
/// between the passes. Throws Error when the schedule refuses the plan.
void fill_lanes(const Plan& plan, Program& program);

}  // namespace meshwright
