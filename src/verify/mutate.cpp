// Mutants of programs: small faults of the kinds that a wrong lowering makes. A proof that lets one
// pass that changes a number has a hole.
#include "verify/mutate.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshwright {
namespace {

using Random = std::mt19937_64;

std::size_t below(std::size_t count, Random& random) {
  return static_cast<std::size_t>(random() % count);
}

// A list of instructions of a segment, or the step of a stage.
struct Place {
  std::vector<Instr>* list = nullptr;
  std::size_t index = 0;
  SegmentProgram* segment = nullptr;
  StageProgram* stage = nullptr;
  std::string name;
  Instr& instr() const { return (*list)[index]; }
};

std::vector<Place> places(Program& program, bool (*wanted)(const Instr&)) {
  std::vector<Place> found;
  const auto visit = [&](std::vector<Instr>& list, SegmentProgram* segment, StageProgram* stage,
                         const std::string& name) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!wanted(list[i])) continue;
      found.push_back({&list, i, segment, stage,
                       fmt::format("{}[{}] ({}, op {})", name, i, instr_kind_name(list[i].kind),
                                   list[i].op.value)});
    }
  };
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    SegmentProgram& p = program.segments[s];
    visit(p.forward, &p, nullptr, fmt::format("segment {} forward", s));
    visit(p.backward, &p, nullptr, fmt::format("segment {} backward", s));
    visit(p.weight, &p, nullptr, fmt::format("segment {} weight", s));
  }
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    visit(program.stages[s].step, nullptr, &program.stages[s], fmt::format("step {}", s));
  }
  return found;
}

bool pick(Program& program, Random& random, bool (*wanted)(const Instr&), Place& place) {
  std::vector<Place> all = places(program, wanted);
  if (all.empty()) return false;
  place = std::move(all[below(all.size(), random)]);
  return true;
}

template <InstrKind kKind>
bool is(const Instr& i) {
  return i.kind == kKind;
}
bool any(const Instr&) { return true; }
bool has_operands(const Instr& i) { return i.in_count + i.out_count > 0; }
bool in_segment(const Place& p) { return p.segment != nullptr; }

// Operand ranges may be shared by several instructions: an edit gets a range of its own.
void own_operands(const Place& place) {
  Instr& i = place.instr();
  const auto copy = [&](auto& operands) {
    const auto first = static_cast<std::uint32_t>(operands.size());
    for (std::uint32_t k = 0; k < i.in_count + i.out_count; ++k) {
      operands.push_back(operands[i.operands + k]);
    }
    i.operands = first;
  };
  if (in_segment(place)) {
    copy(place.segment->operands);
  } else {
    copy(place.stage->operands);
  }
}

template <bool (*kWanted)(const Instr&)>
std::string drop(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, kWanted, p)) return {};
  p.list->erase(p.list->begin() + static_cast<std::ptrdiff_t>(p.index));
  return p.name;
}

template <bool (*kWanted)(const Instr&)>
std::string duplicate(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, kWanted, p)) return {};
  const Instr copy = p.instr();
  p.list->insert(p.list->begin() + static_cast<std::ptrdiff_t>(p.index), copy);
  return p.name;
}

std::string swap_neighbours(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, any, p) || p.index + 1 >= p.list->size()) return {};
  std::swap((*p.list)[p.index], (*p.list)[p.index + 1]);
  return p.name;
}

std::string swap_far(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, any, p)) return {};
  std::swap((*p.list)[p.index], (*p.list)[below(p.list->size(), random)]);
  return p.name;
}

std::string free_early(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, is<InstrKind::kFree>, p) || p.index == 0) return {};
  const std::size_t to = p.index - 1 - below(std::min<std::size_t>(p.index, 6), random);
  const Instr moved = p.instr();
  p.list->erase(p.list->begin() + static_cast<std::ptrdiff_t>(p.index));
  p.list->insert(p.list->begin() + static_cast<std::ptrdiff_t>(to), moved);
  return p.name;
}

std::string other_group(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, is<InstrKind::kCollective>, p)) return {};
  std::size_t axes = 0;
  for (const Lane& l : program.lanes) axes = std::max(axes, l.mesh.axes.size());
  if (axes == 0) return {};
  AxisList& group = p.instr().group;
  const int axis = static_cast<int>(below(axes, random));
  if (group.contains(axis)) {
    AxisList less;
    for (int a : group) {
      if (a != axis) less.push_back(a);
    }
    group = less;
  } else if (random() % 2 == 0) {
    group.push_back(axis);
  } else {
    group = {axis};
  }
  return p.name;
}

std::string other_collective(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, is<InstrKind::kCollective>, p)) return {};
  CollectiveKind& kind = p.instr().collective;
  constexpr std::size_t kKinds = static_cast<std::size_t>(CollectiveKind::kHalo) + 1;
  kind = static_cast<CollectiveKind>(
      (static_cast<std::size_t>(kind) + 1 + below(kKinds - 1, random)) % kKinds);
  return p.name;
}

std::string other_kind(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, any, p)) return {};
  InstrKind& kind = p.instr().kind;
  kind = static_cast<InstrKind>((static_cast<std::size_t>(kind) + 1 + below(6, random)) % 7);
  return p.name;
}

std::string other_operand(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, has_operands, p)) return {};
  own_operands(p);
  Instr& i = p.instr();
  const std::size_t k = below(i.in_count + i.out_count, random);
  if (in_segment(p)) {
    SegmentProgram& s = *p.segment;
    std::int32_t& operand = s.operands[i.operands + k];
    // Rather another buffer of the same tensor than of any.
    std::vector<std::int32_t> alike;
    for (std::size_t b = 0; b < s.buffers.size(); ++b) {
      const auto other = static_cast<std::int32_t>(b);
      if (operand >= 0 && other != operand &&
          s.buffers[b].value == s.buffers[static_cast<std::size_t>(operand)].value) {
        alike.push_back(other);
      }
    }
    operand = alike.empty() || random() % 4 == 0
                  ? static_cast<std::int32_t>(below(s.buffers.size(), random))
                  : alike[below(alike.size(), random)];
  } else {
    auto& operands = p.stage->operands;
    operands[i.operands + k] = operands[below(operands.size(), random)];
  }
  return fmt::format("{} operand {}", p.name, k);
}

std::string swap_operands(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, has_operands, p)) return {};
  own_operands(p);
  Instr& i = p.instr();
  const std::size_t n = i.in_count + i.out_count;
  const std::size_t a = i.operands + below(n, random), b = i.operands + below(n, random);
  if (a == b) return {};
  if (in_segment(p)) {
    std::swap(p.segment->operands[a], p.segment->operands[b]);
  } else {
    std::swap(p.stage->operands[a], p.stage->operands[b]);
  }
  return p.name;
}

std::string no_operand(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, has_operands, p) || !in_segment(p)) return {};
  own_operands(p);
  Instr& i = p.instr();
  std::int32_t& operand = p.segment->operands[i.operands + below(i.in_count + i.out_count, random)];
  if (operand < 0) return {};
  operand = -1;
  return p.name;
}

std::string other_operator(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, is<InstrKind::kCompute>, p)) return {};
  Place q;
  if (!pick(program, random, is<InstrKind::kCompute>, q) || p.segment != q.segment) return {};
  if (p.instr().op == q.instr().op) return {};
  p.instr().op = q.instr().op;
  return p.name;
}

std::string other_direction(Program& program, Random& random) {
  Place p;
  if (!pick(program, random, is<InstrKind::kCompute>, p)) return {};
  Purpose& purpose = p.instr().purpose;
  purpose = purpose == Purpose::kBackward ? Purpose::kRecompute : Purpose::kBackward;
  return p.name;
}

Sharding moved_axis(Sharding form, std::size_t axes, Random& random) {
  if (axes == 0) return form;
  const int axis = static_cast<int>(below(axes, random));
  for (int d = 0; d < form.rank; ++d) {
    AxisList rest;
    for (int a : form.dims[static_cast<std::size_t>(d)]) {
      if (a != axis) rest.push_back(a);
    }
    form.dims[static_cast<std::size_t>(d)] = rest;
  }
  form.partial &= ~(1u << axis);
  const std::size_t place = below(static_cast<std::size_t>(form.rank) + 2, random);
  if (place < form.rank) {
    form.dims[place].push_back(axis);
  } else if (place == form.rank) {
    form.partial |= 1u << axis;
  }
  return form;
}

std::size_t axis_count(const Program& program) {
  std::size_t axes = 0;
  for (const Lane& l : program.lanes) axes = std::max(axes, l.mesh.axes.size());
  return axes;
}

std::string other_form(Program& program, Random& random) {
  SegmentProgram& s = program.segments[below(program.segments.size(), random)];
  if (s.buffers.empty()) return {};
  const std::size_t b = below(s.buffers.size(), random);
  const Sharding form = moved_axis(s.buffers[b].form, axis_count(program), random);
  if (form == s.buffers[b].form) return {};
  s.buffers[b].form = form;
  return fmt::format("form of buffer {}", b);
}

std::string other_flat(Program& program, Random& random) {
  SegmentProgram& s = program.segments[below(program.segments.size(), random)];
  const std::size_t axes = axis_count(program);
  if (s.buffers.empty() || axes == 0) return {};
  const std::size_t b = below(s.buffers.size(), random);
  AxisList& flat = s.buffers[b].flat;
  flat = flat.empty() ? AxisList{static_cast<int>(below(axes, random))} : AxisList{};
  return fmt::format("pieces of buffer {}", b);
}

std::string other_step_form(Program& program, Random& random) {
  StageProgram& s = program.stages[below(program.stages.size(), random)];
  if (s.buffers.empty()) return {};
  auto it = s.buffers.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(below(s.buffers.size(), random)));
  if (it->second.empty()) return {};
  Buffer& b = it->second[below(it->second.size(), random)];
  const Buffer before = b;
  if (random() % 2 == 0) {
    b.form = moved_axis(b.form, axis_count(program), random);
  } else {
    b.flat = {};
  }
  return b == before ? "" : "form of a buffer of the step";
}

std::string drop_listed(Program& program, Random& random) {
  SegmentProgram& s = program.segments[below(program.segments.size(), random)];
  std::vector<std::int32_t>* lists[] = {&s.arguments, &s.results, &s.gradient_arguments,
                                        &s.gradient_results};
  std::vector<std::int32_t>& list = *lists[below(4, random)];
  if (list.empty()) return {};
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(below(list.size(), random)));
  return "arguments and results";
}

std::string other_listed(Program& program, Random& random) {
  SegmentProgram& s = program.segments[below(program.segments.size(), random)];
  std::vector<std::int32_t>* lists[] = {&s.arguments, &s.results, &s.gradient_arguments,
                                        &s.gradient_results};
  std::vector<std::int32_t>& list = *lists[below(4, random)];
  if (list.empty()) return {};
  std::int32_t& b = list[below(list.size(), random)];
  const auto other = static_cast<std::int32_t>(below(s.buffers.size(), random));
  if (other == b) return {};
  b = other;
  return "arguments and results";
}

std::string other_segment(Program& program, Random& random) {
  ChunkProgram& c = program.chunks[below(program.chunks.size(), random)];
  if (c.segments.empty()) return {};
  int& s = c.segments[below(c.segments.size(), random)];
  const int other = static_cast<int>(below(program.segments.size(), random));
  if (s == other) return {};
  s = other;
  return "segments of a chunk";
}

Lane& a_lane(Program& program, Random& random) {
  return program.lanes[below(program.lanes.size(), random)];
}

std::string drop_item(Program& program, Random& random) {
  Lane& lane = a_lane(program, random);
  if (lane.order.empty()) return {};
  lane.order.erase(lane.order.begin() +
                   static_cast<std::ptrdiff_t>(below(lane.order.size(), random)));
  return "an entry of an order";
}

std::string duplicate_item(Program& program, Random& random) {
  Lane& lane = a_lane(program, random);
  if (lane.order.empty()) return {};
  const ScheduleItem item = lane.order[below(lane.order.size(), random)];
  lane.order.insert(
      lane.order.begin() + static_cast<std::ptrdiff_t>(below(lane.order.size(), random)), item);
  return "an entry of an order";
}

std::string swap_items(Program& program, Random& random) {
  Lane& lane = a_lane(program, random);
  if (lane.order.size() < 2) return {};
  const std::size_t a = below(lane.order.size(), random);
  const std::size_t b =
      random() % 2 == 0 ? below(lane.order.size(), random) : std::min(a + 1, lane.order.size() - 1);
  if (lane.order[a] == lane.order[b]) return {};
  std::swap(lane.order[a], lane.order[b]);
  return "entries of an order";
}

std::string other_micro_batch(Program& program, Random& random) {
  Lane& lane = a_lane(program, random);
  if (lane.order.empty() || program.micro_batches < 2) return {};
  int& m = lane.order[below(lane.order.size(), random)].micro_batch;
  m = static_cast<int>(
      (m + 1 +
       static_cast<int>(below(static_cast<std::size_t>(program.micro_batches - 1), random))) %
      program.micro_batches);
  return "micro-batch of an entry";
}

std::string swap_messages(Program& program, Random& random) {
  Lane& lane = a_lane(program, random);
  std::vector<std::size_t> messages;
  for (std::size_t i = 0; i < lane.order.size(); ++i) {
    if (!is_pass(lane.order[i].phase)) messages.push_back(i);
  }
  if (messages.size() < 2) return {};
  const std::size_t a = messages[below(messages.size(), random)];
  const std::size_t b = messages[below(messages.size(), random)];
  if (a == b) return {};
  std::swap(lane.order[a], lane.order[b]);
  return "sends and receives";
}

std::string other_phase(Program& program, Random& random) {
  Lane& lane = a_lane(program, random);
  if (lane.order.empty()) return {};
  ScheduleItem& item = lane.order[below(lane.order.size(), random)];
  const Phase before = item.phase;
  item.phase =
      is_pass(before)
          ? static_cast<Phase>((static_cast<int>(before) + 1 + static_cast<int>(random() % 2)) % 3)
          : static_cast<Phase>(3 +
                               (static_cast<int>(before) - 2 + static_cast<int>(random() % 3)) % 4);
  return item.phase == before ? "" : "phase of an entry";
}

std::string drop_transferred(Program& program, Random& random) {
  if (program.transfers.empty()) return {};
  auto& items = program.transfers[below(program.transfers.size(), random)].items;
  if (items.empty()) return {};
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(below(items.size(), random)));
  return "items of a transfer";
}

std::string other_transfer_form(Program& program, Random& random) {
  if (program.transfers.empty()) return {};
  Transfer& t = program.transfers[below(program.transfers.size(), random)];
  if (t.items.empty()) return {};
  Transfer::Item& item = t.items[below(t.items.size(), random)];
  const Transfer::Item before = item;
  Sharding& form = random() % 2 == 0 ? item.from : item.to;
  form = moved_axis(form, axis_count(program), random);
  return item == before ? "" : "form of a transfer";
}

std::string other_transfer_end(Program& program, Random& random) {
  if (program.transfers.empty()) return {};
  Transfer& t = program.transfers[below(program.transfers.size(), random)];
  switch (below(3, random)) {
    case 0:
      t.gradient = !t.gradient;
      break;
    case 1:
      std::swap(t.from_chunk, t.to_chunk);
      break;
    default:
      t.aligned = !t.aligned;
  }
  return "ends of a transfer";
}

std::string other_tie(Program& program, Random& random) {
  if (program.ties.empty()) return {};
  Tie& t = program.ties[below(program.ties.size(), random)];
  if (random() % 2 == 0) {
    t.stages.pop_back();
  } else {
    t.values.pop_back();
  }
  return "a tie";
}

std::string other_parameter_buffer(Program& program, Random& random) {
  SegmentProgram& s = program.segments[below(program.segments.size(), random)];
  if (s.parameters.empty()) return {};
  ParameterShard& p = s.parameters[below(s.parameters.size(), random)];
  std::int32_t& b = random() % 2 == 0 ? p.buffer : p.accumulated;
  const auto other = static_cast<std::int32_t>(below(s.buffers.size(), random));
  if (b < 0 || other == b) return {};
  b = other;
  return "buffers of a parameter";
}

constexpr Mutation kMutations[] = {
    {"drop compute", "an operator is not run", drop<is<InstrKind::kCompute>>},
    {"drop collective", "a collective is left out", drop<is<InstrKind::kCollective>>},
    {"drop slice", "a local slice is left out", drop<is<InstrKind::kSlice>>},
    {"drop add", "a sum of gradients is left out", drop<is<InstrKind::kAdd>>},
    {"drop accumulate", "gradients are not accumulated", drop<is<InstrKind::kAccumulate>>},
    {"drop optimizer", "the optimizer does not run", drop<is<InstrKind::kOptimizer>>},
    {"drop free", "buffers are not freed", drop<is<InstrKind::kFree>>},
    {"duplicate compute", "an operator is run twice", duplicate<is<InstrKind::kCompute>>},
    {"duplicate collective", "a collective twice", duplicate<is<InstrKind::kCollective>>},
    {"duplicate accumulate", "added twice", duplicate<is<InstrKind::kAccumulate>>},
    {"duplicate any", "any instruction twice", duplicate<any>},
    {"swap neighbours", "two instructions in a row change places", swap_neighbours},
    {"swap far", "two instructions of a list change places", swap_far},
    {"free early", "buffers are freed up to six instructions earlier", free_early},
    {"other group", "a collective over other axes", other_group},
    {"other collective", "a collective of another kind", other_collective},
    {"other kind", "an instruction of another kind", other_kind},
    {"other operand", "another buffer as operand or result", other_operand},
    {"swap operands", "two operands or results change places", swap_operands},
    {"no operand", "an operand or result is missing", no_operand},
    {"other operator", "another operator of the segment", other_operator},
    {"other direction", "forward for backward or the reverse", other_direction},
    {"other form", "a buffer is split along an axis elsewhere", other_form},
    {"other flat", "a buffer is cut into flat pieces, or not", other_flat},
    {"other step form", "the same for buffers of the step", other_step_form},
    {"drop listed", "an argument or result is not listed", drop_listed},
    {"other listed", "another buffer as argument or result", other_listed},
    {"other segment", "another segment's program", other_segment},
    {"drop entry", "a pass, send or receive is left out", drop_item},
    {"duplicate entry", "a pass, send or receive twice", duplicate_item},
    {"swap entries", "passes, sends or receives change places", swap_items},
    {"other micro-batch", "a pass, send or receive of another micro-batch", other_micro_batch},
    {"swap messages", "sends or receives change places", swap_messages},
    {"other phase", "backward for forward, send for receive", other_phase},
    {"drop transferred", "a value is not sent", drop_transferred},
    {"other transfer form", "a value is sent in another form", other_transfer_form},
    {"other transfer", "direction or alignment of a transfer", other_transfer_end},
    {"other tie", "a stage or parameter is left out of a tie", other_tie},
    {"other parameter", "another buffer for a parameter or its gradient", other_parameter_buffer},
};

}  // namespace

std::span<const Mutation> all_mutations() { return kMutations; }

}  // namespace meshwright
