#pragma once

#include <string>

#include "plan/program.h"

namespace meshwright {

/// A program for people: distinct segments with their instructions (what each reads, how it lies
/// before and after, bytes and work), transfers, orders and steps. Long orders are cut after
/// `order_items` entries a lane.
std::string print_program(const Program& program, const Plan& plan, const Graph& graph,
                          const std::vector<Segment>& segments, int order_items = 12);

/// One instruction of a segment's list.
std::string instr_text(const Instr& instr, const SegmentProgram& segment, const Graph& graph,
                       const Mesh& mesh);

}  // namespace meshwright
