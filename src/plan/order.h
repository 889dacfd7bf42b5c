#pragma once

#include "plan/lanes.h"
#include "plan/plan.h"

namespace meshwright {

/// op-order: adds the rule that every pass of `before` ends before one of `after` starts.
void op_order(Plan& plan, const PassSet& before, const PassSet& after);

/// Throws Error when a rule names a chunk, pass or micro-batch that the plan lacks, or passes that
/// no lane runs both of: devices that share nothing but messages have no order of their own.
void check_rules(const std::vector<OrderRule>& rules, const Plan& plan, const ScheduleShape& shape);

/// Changes the lanes' orders, made of passes alone, as little as the rules take: of the passes that
/// may run next, the one that the schedule had first. Chunks of one lane keep their order within a
/// micro-batch. Throws Error when rules contradict one another or what passes need of each other;
/// the message is the shortest circle.
void apply_rules(const std::vector<OrderRule>& rules, Program& program);

}  // namespace meshwright
