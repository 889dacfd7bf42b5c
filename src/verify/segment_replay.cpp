#include "verify/segment_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::string_view kListNames[] = {"forward", "backward", "weight"};

std::string_view buffer_kind_name(BufferKind kind) {
  constexpr std::string_view kNames[] = {"value", "gradient", "accumulated gradient"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string comma_list(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

SegmentReplay::SegmentReplay(const VerifyContext& context, const SegmentProgram& program,
                             SpanTable& spans)
    : context_(context),
      program_(program),
      segment_(context.segments[static_cast<std::size_t>(program.segment)]),
      spans_(spans),
      states_(program.buffers.size()) {
  places_.reserve(program.buffers.size());
  for (const Buffer& b : program.buffers) {
    places_.push_back(placement_of(context.type(b.value), b, spans));
  }
}

const std::vector<Instr>& SegmentReplay::list(int which) const {
  return which == kForwardList    ? program_.forward
         : which == kBackwardList ? program_.backward
                                  : program_.weight;
}

std::string SegmentReplay::instruction_text(int which, int index) const {
  const Instr& i = list(which)[static_cast<std::size_t>(index)];
  std::string text = fmt::format("{}[{}] of segment {}: ", kListNames[which], index, segment_.name);
  if (i.kind == InstrKind::kCollective) {
    text += fmt::format("{} along {}", collective_name(i.collective),
                        axis_names(i.group.mask(), spans_.mesh()));
  } else {
    text += instr_kind_name(i.kind);
    if (i.kind == InstrKind::kCompute && i.purpose == Purpose::kBackward) text += " (backward)";
    if (i.kind == InstrKind::kCompute && i.purpose == Purpose::kRecompute) text += " (again)";
  }
  if (i.op.valid()) text += fmt::format(" {}", context_.graph.op(i.op).name);
  std::set<std::string> names;
  if (i.kind != InstrKind::kCompute) {
    for (std::int32_t b : program_.in(i)) {
      if (b < 0) continue;
      names.insert(fmt::format("{} {}", buffer_kind_name(buffer(b).kind),
                               context_.graph.value(buffer(b).value).name));
    }
  }
  if (!names.empty()) text += fmt::format(" ({})", fmt::join(names, ", "));
  return text;
}

// The history, in order: the steps that filled what the failing one reads, back to the operators
// that computed it.
void SegmentReplay::fail(std::string message, std::int32_t b, SpanId wanted, SpanId held) {
  CounterExample e;
  e.check = "segment";
  e.message = std::move(message);
  std::vector<int> coordinates(spans_.mesh().axes.size(), 0);
  if (wanted != kNoSpan && held != kNoSpan) coordinates = spans_.first_difference(wanted, held);
  e.rank = device_at(spans_.mesh(), coordinates).value;
  std::vector<std::int32_t> open;
  if (b >= 0 && static_cast<std::size_t>(b) < program_.buffers.size()) {
    e.tensor = fmt::format("{} {}", buffer_kind_name(buffer(b).kind),
                           context_.graph.value(buffer(b).value).name);
    e.region = region_text(context_.type(buffer(b).value), place(b), spans_, coordinates);
    open.push_back(state(b).writer);
    open.push_back(state(b).freed);
  }
  if (!trace_.empty()) {
    const Step& last = trace_.back();
    e.instruction = instruction_text(last.list, last.index);
    open.push_back(static_cast<std::int32_t>(trace_.size()) - 1);
  } else {
    e.instruction = fmt::format("start of segment {}", segment_.name);
  }
  std::set<std::int32_t> reached;
  while (!open.empty()) {
    const std::int32_t step = open.back();
    open.pop_back();
    if (step < 0 || !reached.insert(step).second) continue;
    const auto s = static_cast<std::size_t>(step);
    // What an operator computed is right: no more of the past explains the failure.
    const Step& made = trace_[s];
    if (s + 1 < trace_.size() &&
        list(made.list)[static_cast<std::size_t>(made.index)].kind == InstrKind::kCompute) {
      continue;
    }
    const std::size_t end = s + 1 < trace_.size() ? trace_[s + 1].first_writer : writers_.size();
    for (std::size_t w = trace_[s].first_writer; w < end; ++w) open.push_back(writers_[w]);
  }
  for (std::int32_t step : reached) {
    const Step& s = trace_[static_cast<std::size_t>(step)];
    e.history.push_back(instruction_text(s.list, s.index));
  }
  throw Disproof{std::move(e)};
}

const BufferState& SegmentReplay::read(std::int32_t b) {
  const BufferState& s = state(b);
  writers_.push_back(s.writer);
  if (s.alive) return s;
  const ValueKind kind = context_.graph.value(buffer(b).value).kind;
  const bool given = kind == ValueKind::kInput || kind == ValueKind::kBuffer;
  if (given && buffer(b).kind == BufferKind::kValue && s.freed < 0) {
    state(b).alive = true;
    state(b).terms = {{kValueTerm, 0}};
    return s;
  }
  if (s.freed >= 0) {
    const Step& f = trace_[static_cast<std::size_t>(s.freed)];
    fail(fmt::format("used after {}[{}] freed it", kListNames[f.list], f.index), b);
  }
  fail("used before anything fills it", b);
}

void SegmentReplay::write(std::int32_t b, Terms terms) {
  std::uint32_t open = 0;
  for (const Term& t : terms) open |= t.open;
  const Placement& p = place(b);
  if (const std::uint32_t both = open & (p.mask | p.flat.mask()); both != 0) {
    fail(
        fmt::format("a sum is due along {}, which also cuts the tensor: the parts of no region are "
                    "all there",
                    axis_names(both, spans_.mesh())),
        b);
  }
  if ((p.mask & p.flat.mask()) != 0) {
    fail(fmt::format("flat pieces along {}, which cuts the tensor already, leave gaps",
                     axis_names(p.mask & p.flat.mask(), spans_.mesh())),
         b);
  }
  if (open != buffer(b).form.partial) {
    fail(fmt::format("its form says that a sum is due along {}, but one is due along {}",
                     axis_names(buffer(b).form.partial, spans_.mesh()),
                     axis_names(open, spans_.mesh())),
         b);
  }
  std::sort(terms.begin(), terms.end(),
            [](const Term& a, const Term& t) { return a.source < t.source; });
  BufferState& s = state(b);
  if (s.alive && buffer(b).kind != BufferKind::kAccumulated) {
    fail("filled again before it was freed", b);
  }
  s.alive = true;
  s.freed = -1;
  s.writer = static_cast<std::int32_t>(trace_.size()) - 1;
  s.was_whole |= open == 0;
  s.terms = std::move(terms);
}

void SegmentReplay::expect(std::int32_t b, BufferKind kind, ValueId value, const char* role) {
  if (buffer(b).kind != kind || buffer(b).value != value) {
    fail(fmt::format("{} is to be the {} of {}, not the {} of {}", role, buffer_kind_name(kind),
                     context_.graph.value(value).name, buffer_kind_name(buffer(b).kind),
                     context_.graph.value(buffer(b).value).name),
         b);
  }
}

std::vector<std::int64_t> SegmentReplay::owed(ValueId id) const {
  std::vector<std::int64_t> sources;
  bool outside = false;
  for (const GraphUses::Use& use : context_.uses.of(id)) {
    if (!context_.uses.owes(use)) continue;
    if (use.op < segment_.first_op || use.op >= segment_.last_op) {
      outside = true;
    } else {
      sources.push_back(operand_term(use.op, static_cast<std::size_t>(use.operand)));
    }
  }
  // A loss that nothing reads is given its gradient.
  const OpId producer = context_.graph.value(id).producer;
  const bool seed = sources.empty() && !outside && context_.uses.requires_gradient(id);
  if (producer.valid() && producer.value >= segment_.first_op && (outside || seed)) {
    sources.push_back(kOutsideTerm);
  }
  std::sort(sources.begin(), sources.end());
  return sources;
}

std::string SegmentReplay::term_text(std::int64_t source) const {
  if (source == kOutsideTerm) return "later segments";
  if (source == kValueTerm) return "the value";
  const auto op = static_cast<std::size_t>(source / 256);
  return fmt::format("{} (operand {})", context_.graph.ops[op].name, source % 256);
}

std::string SegmentReplay::incomplete(const Terms& terms, ValueId id) const {
  const std::vector<std::int64_t> sources = owed(id);
  std::vector<std::string> missing, foreign;
  for (std::int64_t s : sources) {
    if (std::none_of(terms.begin(), terms.end(), [&](const Term& t) { return t.source == s; })) {
      missing.push_back(term_text(s));
    }
  }
  for (const Term& t : terms) {
    if (!std::binary_search(sources.begin(), sources.end(), t.source)) {
      foreign.push_back(term_text(t.source));
    }
  }
  if (!missing.empty()) return "lacks the gradient of " + comma_list(missing);
  if (!foreign.empty()) return "holds a gradient that is not due, of " + comma_list(foreign);
  return {};
}

void SegmentReplay::start() {
  kept_.resize(states_.size());
  for (const auto* list : {&program_.arguments, &program_.results, &program_.gradient_arguments,
                           &program_.gradient_results}) {
    for (std::int32_t b : *list) kept_[static_cast<std::size_t>(b)] = true;
  }
  for (std::int32_t b : program_.arguments) {
    if (buffer(b).kind != BufferKind::kValue) fail("an argument is a value", b);
    if (buffer(b).form.partial != 0) fail("an argument on which a sum is due", b);
    const Value& value = context_.graph.value(buffer(b).value);
    if (value.kind == ValueKind::kActivation && value.producer.value >= segment_.first_op &&
        value.producer.value < segment_.last_op) {
      fail("an argument that the segment itself computes", b);
    }
    write(b, {{kValueTerm, 0}});
  }
  for (std::size_t b = 0; b < states_.size(); ++b) {
    if (program_.buffers[b].kind == BufferKind::kAccumulated) states_[b].alive = true;
  }
}

void SegmentReplay::run() {
  start();
  run_list(kForwardList);
  finish_forward();
  for (std::int32_t b : program_.gradient_arguments) {
    if (buffer(b).kind != BufferKind::kGradient) fail("a gradient argument is a gradient", b);
    if (state(b).alive) fail("a gradient argument is there before the backward pass", b);
    const Value& value = context_.graph.value(buffer(b).value);
    if (value.kind != ValueKind::kActivation || value.producer.value < segment_.first_op ||
        value.producer.value >= segment_.last_op) {
      fail("a gradient argument of a value that the segment does not compute", b);
    }
    write(b, {{kOutsideTerm, buffer(b).form.partial}});
  }
  run_list(kBackwardList);
  run_list(kWeightList);
  finish();
}

void SegmentReplay::run_list(List which) {
  current_ = which;
  const std::vector<Instr>& instrs = list(which);
  for (std::size_t i = 0; i < instrs.size(); ++i) {
    trace_.push_back({which, static_cast<int>(i), static_cast<std::uint32_t>(writers_.size())});
    run(instrs[i]);
  }
}

void SegmentReplay::run(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::kCompute:
      if (!instr.op.valid() || instr.op.value < segment_.first_op ||
          instr.op.value >= segment_.last_op) {
        fail("computes no operator of the segment");
      }
      if (instr.purpose == Purpose::kBackward) return compute_backward(instr);
      if (current_ == kForwardList && instr.purpose == Purpose::kRecompute) {
        fail("recomputes in the forward pass");
      }
      return compute_forward(instr);
    case InstrKind::kCollective:
      return collective(instr);
    case InstrKind::kSlice:
      return slice(instr);
    case InstrKind::kAdd:
      return add(instr);
    case InstrKind::kAccumulate:
      return accumulate(instr);
    case InstrKind::kFree:
      return free(instr);
    case InstrKind::kOptimizer:
      fail("the optimizer runs at the end of the step, not in a segment");
  }
}

void SegmentReplay::collective(const Instr& instr) {
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  if (in.size() != out.size()) fail("a collective has as many results as operands");
  if (instr.peer_offset != 0) fail("an exchange with another stage inside a segment");
  if (instr.group.empty()) fail("a collective over no axis");
  std::vector<Terms> results;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] < 0 || out[i] < 0) fail("a collective without operand or result");
    const BufferState& s = read(in[i]);
    expect(out[i], buffer(in[i]).kind, buffer(in[i]).value, "the result");
    if (buffer(in[i]).kind == BufferKind::kAccumulated) {
      fail("a collective on accumulated gradients before the micro-batches are done", in[i]);
    }
    const std::string fault = apply_collective(instr, place(in[i]), s.terms, place(out[i]), spans_,
                                               results.emplace_back());
    if (!fault.empty()) fail(fault, in[i]);
  }
  for (std::size_t i = 0; i < in.size(); ++i) write(out[i], std::move(results[i]));
}

void SegmentReplay::slice(const Instr& instr) {
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  if (in.size() != out.size()) fail("a slice has as many results as operands");
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] < 0 || out[i] < 0) fail("a slice without operand or result");
    Terms terms = read(in[i]).terms;
    expect(out[i], buffer(in[i]).kind, buffer(in[i]).value, "the slice");
    if (buffer(in[i]).kind == BufferKind::kAccumulated) fail("a slice of a running sum", in[i]);
    const std::string fault = apply_slice(place(in[i]), place(out[i]), spans_);
    if (!fault.empty()) {
      for (std::size_t d = 0; d < place(in[i]).dims.size(); ++d) {
        if (!spans_.within(place(out[i]).dims[d], place(in[i]).dims[d])) {
          fail(fault, out[i], place(out[i]).dims[d], place(in[i]).dims[d]);
        }
      }
      fail(fault, out[i]);
    }
    write(out[i], std::move(terms));
  }
}

void SegmentReplay::add(const Instr& instr) {
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  if (in.size() < 2 || out.size() != 1 || out[0] < 0) fail("a sum has operands and one result");
  Terms sum;
  for (std::int32_t b : in) {
    if (b < 0) fail("a sum without operand");
    const BufferState& s = read(b);
    if (buffer(b).kind != BufferKind::kGradient) fail("only gradients are added", b);
    expect(b, BufferKind::kGradient, buffer(out[0]).value, "an operand of the sum");
    if (!same_place(place(b), place(out[0]))) fail("operands of the sum lie in other regions", b);
    for (const Term& t : s.terms) {
      for (const Term& other : sum) {
        if (other.source == t.source) {
          fail(fmt::format("the gradient of {} is added twice", term_text(t.source)), b);
        }
      }
    }
    sum.insert(sum.end(), s.terms.begin(), s.terms.end());
  }
  expect(out[0], BufferKind::kGradient, buffer(in[0]).value, "the sum");
  write(out[0], std::move(sum));
}

void SegmentReplay::accumulate(const Instr& instr) {
  const auto in = program_.in(instr);
  const auto out = program_.out(instr);
  if (in.size() != out.size()) fail("accumulation has as many results as operands");
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] < 0 || out[i] < 0) fail("accumulation without operand or result");
    Terms sum = read(in[i]).terms;
    expect(in[i], BufferKind::kGradient, buffer(out[i]).value, "the operand");
    expect(out[i], BufferKind::kAccumulated, buffer(in[i]).value, "the running sum");
    if (!same_place(place(in[i]), place(out[i]))) {
      fail("the gradient lies in another region than the running sum", in[i]);
    }
    writers_.push_back(state(out[i]).writer);
    for (const Term& t : state(out[i]).terms) {
      for (const Term& other : sum) {
        if (other.source == t.source) {
          fail(fmt::format("the gradient of {} is accumulated twice per micro-batch",
                           term_text(t.source)),
               in[i]);
        }
      }
    }
    const Terms& before = state(out[i]).terms;
    sum.insert(sum.end(), before.begin(), before.end());
    write(out[i], std::move(sum));
  }
}

void SegmentReplay::free(const Instr& instr) {
  for (std::int32_t b : program_.in(instr)) {
    if (b < 0) fail("frees nothing");
    if (buffer(b).kind == BufferKind::kAccumulated) fail("frees accumulated gradients", b);
    if (kept_[static_cast<std::size_t>(b)]) fail("frees what other segments have or need", b);
    read(b);
    BufferState& s = state(b);
    s.alive = false;
    s.freed = static_cast<std::int32_t>(trace_.size()) - 1;
  }
}

void SegmentReplay::finish_forward() {
  for (std::int32_t b : program_.results) {
    const BufferState& s = state(b);
    const Value& value = context_.graph.value(buffer(b).value);
    if (!s.alive) {
      fail(s.freed >= 0 ? "a result for later segments is freed" : "a result is never computed", b);
    }
    if (buffer(b).kind != BufferKind::kValue || value.kind != ValueKind::kActivation) {
      fail("a result is an activation", b);
    }
    if (s.terms.size() != 1 || s.terms[0].open != 0) {
      fail("a result on which a sum is due", b);
    }
  }
  // Losses and other final results are read by nobody here, but must come to be.
  for (int i = segment_.first_op; i < segment_.last_op; ++i) {
    for (ValueId id : context_.graph.ops[static_cast<std::size_t>(i)].outputs) {
      if (!context_.uses.of(id).empty()) continue;
      bool whole = false;
      for (std::size_t b = 0; b < states_.size(); ++b) {
        whole |= program_.buffers[b].value == id &&
                 program_.buffers[b].kind == BufferKind::kValue && states_[b].was_whole;
      }
      if (!whole) {
        fail(fmt::format("{} never exists whole: a sum is still due on it",
                         context_.graph.value(id).name));
      }
    }
  }
}

// What the passes leave: whole gradients, and nothing that nobody asked for.
void SegmentReplay::finish() {
  check_gradient_results();
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const auto b = static_cast<std::int32_t>(i);
    const ValueKind kind = context_.graph.value(buffer(b).value).kind;
    if (buffer(b).kind == BufferKind::kAccumulated || kept_[i] || !state(b).alive) continue;
    if (kind == ValueKind::kInput || kind == ValueKind::kBuffer) continue;
    fail("never freed: neither a result nor needed any more", b);
  }
}

void SegmentReplay::check_gradient_results() {
  // Gradients of what came from outside, parameters included, owed by this segment's operators.
  std::set<std::int32_t> due;
  for (int i = segment_.first_op; i < segment_.last_op; ++i) {
    const Op& op = context_.graph.ops[static_cast<std::size_t>(i)];
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const Value& value = context_.graph.value(op.inputs[k]);
      if (context_.uses.owes(i, k) && value.producer.value < segment_.first_op) {
        due.insert(op.inputs[k].value);
      }
    }
  }
  const auto check = [&](std::int32_t b) {
    if (!state(b).alive) fail("a gradient that is due is freed or never computed", b);
    if (std::string f = incomplete(state(b).terms, buffer(b).value); !f.empty()) fail(f, b);
    if (due.erase(buffer(b).value.value) == 0) fail("a gradient is left twice, or not due", b);
  };
  for (std::int32_t b : program_.gradient_results) {
    if (buffer(b).kind != BufferKind::kGradient) fail("a gradient result is a gradient", b);
    check(b);
  }
  for (std::size_t b = 0; b < states_.size(); ++b) {
    if (program_.buffers[b].kind == BufferKind::kAccumulated &&
        due.contains(program_.buffers[b].value.value)) {
      check(static_cast<std::int32_t>(b));
    }
  }
  for (std::int32_t id : due) {
    for (std::size_t b = 0; b < states_.size(); ++b) {
      if (program_.buffers[b].value.value == id) {
        fail("its gradient is neither accumulated nor a result", static_cast<std::int32_t>(b));
      }
    }
    fail(fmt::format("the gradient of {} is neither accumulated nor a result",
                     context_.graph.value(ValueId(id)).name));
  }
}

}  // namespace meshwright
