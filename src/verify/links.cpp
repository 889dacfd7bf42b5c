// Values and gradients between segments and stages. Every chunk that reads a value of another
// segment reads a copy: the one its producer left, one that a transfer brought, or one that another
// chunk of the same stage has. Copies form a tree that gradients climb: what the readers of a copy
// leave, in one form, goes back through one transfer to the copy it came from, and at the root to
// the producer's backward pass.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "verify/program_replay.h"

namespace meshwright {
namespace {

struct Form {
  Placement place;
  std::uint32_t partial = 0;
};
bool same_form(const Form& a, const Form& b) {
  return a.partial == b.partial && same_place(a.place, b.place);
}

struct Copy {
  ValueId value;
  int chunk = 0;            // That holds it.
  int transfer = -1;        // That brought it; -1 = produced here.
  int parent = -1;          // Copy that it was made of.
  std::vector<Form> forms;  // In which it can be read.
  // Of the producer: the form in which its backward pass takes the gradient, if it does.
  bool takes_gradient = false;
  Form gradient;
  // Gradients that readers leave: their chunks, the one form.
  std::vector<int> readers;
  std::vector<int> arrivals;  // Gradient transfers that end here.
  bool has_gradient = false;
  Form left;
};

// Whether every element is on some device: each dimension's parts tile it, no axis cuts two.
bool covers_all(const Placement& place, const TensorType& type, SpanTable& spans) {
  std::uint32_t used = 0;
  for (std::size_t d = 0; d < place.dims.size(); ++d) {
    const std::uint32_t mask = spans.axes(place.dims[d]);
    if ((used & mask) != 0) return false;
    used |= mask;
    if (spans.gather(place.dims[d], mask) != spans.whole(type.dims[d].size)) return false;
  }
  return place.flat.empty();
}

// Whether device i of one mesh holds the same region as device i of the other.
bool aligned_boxes(const TensorType& type, const Placement& a, const SpanTable& sa,
                   const Placement& b, const SpanTable& sb) {
  if (&sa == &sb) return same_place(a, b);
  const int count = sa.mesh().device_count();
  if (count != sb.mesh().device_count()) return false;
  for (int i = 0; i < count; ++i) {
    const auto ca = mesh_coordinates(sa.mesh(), i), cb = mesh_coordinates(sb.mesh(), i);
    for (std::size_t d = 0; d < type.dims.size(); ++d) {
      if (sa.at(a.dims[d], ca) != sb.at(b.dims[d], cb)) return false;
    }
  }
  return true;
}

class Links {
 public:
  Links(const Program& program, const Plan& plan, const VerifyContext& context,
        const std::vector<std::shared_ptr<SpanTable>>& spans, VerifyCounts& counts)
      : program_(program),
        plan_(plan),
        context_(context),
        spans_(spans),
        counts_(counts),
        instance_(context.graph.values.size()) {
    const auto chunks = plan.chunks.size();
    needs_.forward.resize(chunks);
    needs_.backward.resize(chunks);
    needs_.send.resize(program.transfers.size());
  }

  OrderNeeds run();

 private:
  int stage(int chunk) const { return plan_.chunks[static_cast<std::size_t>(chunk)].stage; }
  int replica(int chunk) const { return plan_.chunks[static_cast<std::size_t>(chunk)].replica; }
  SpanTable& spans(int chunk) { return *spans_[static_cast<std::size_t>(stage(chunk))]; }
  const std::string& name(ValueId id) const { return context_.graph.value(id).name; }
  const Segment& segment(int i) const { return context_.segments[static_cast<std::size_t>(i)]; }

  // Fills instance_ with the values that take the place of the standing segment's in segment `to`.
  void map_values(const SegmentProgram& program, int to);
  ValueId mapped(ValueId id) const { return instance_[id.index()]; }
  Form form_of(int chunk, ValueId value, const Buffer& buffer) {
    return {placement_of(context_.type(value), buffer, spans(chunk)), buffer.form.partial};
  }
  Form form_of(int chunk, ValueId value, const Sharding& sharding) {
    return form_of(chunk, value, Buffer{value, BufferKind::kValue, sharding, {}});
  }
  void check_cover(int replica);
  void arrive(int chunk);
  void run_segment(int chunk, int position);
  int find_copy(int chunk, ValueId value) const;
  int hold(Copy copy);
  void leave(Copy& copy, const Form& form, int chunk, const std::string& where);
  void return_gradients();
  void check_way(const Transfer& t, const Transfer::Item& item, const Form& from, const Form& to,
                 const std::string& where);
  std::string where_transfer(std::size_t t) const {
    const Transfer& transfer = program_.transfers[t];
    return fmt::format("transfer {} ({} from chunk {} to chunk {})", t,
                       transfer.gradient ? "gradients" : "values", transfer.from_chunk,
                       transfer.to_chunk);
  }
  std::string where_segment(int chunk, int segment_index) const {
    return fmt::format("segment {} in chunk {}", segment(segment_index).name, chunk);
  }
  [[noreturn]] void fail(const char* check, std::string message, std::string where, ValueId value,
                         int chunk, const Form* form = nullptr);

  const Program& program_;
  const Plan& plan_;
  const VerifyContext& context_;
  const std::vector<std::shared_ptr<SpanTable>>& spans_;
  VerifyCounts& counts_;
  std::vector<ValueId> instance_;
  std::vector<Copy> copies_;
  std::unordered_map<std::uint64_t, int> copy_of_;  // By value and chunk.
  std::vector<std::vector<std::size_t>>
      arriving_;  // Per chunk: transfers of values that end there.
  OrderNeeds needs_;
};

void Links::fail(const char* check, std::string message, std::string where, ValueId value,
                 int chunk, const Form* form) {
  CounterExample e;
  e.check = check;
  e.message = std::move(message);
  e.instruction = std::move(where);
  if (value.valid()) e.tensor = name(value);
  const Mesh& mesh = plan_.stages[static_cast<std::size_t>(stage(chunk))].mesh;
  e.rank = mesh.first_device;
  if (form != nullptr) {
    e.region = region_text(context_.type(value), form->place, spans(chunk),
                           std::vector<int>(mesh.axes.size(), 0));
  }
  throw Disproof{std::move(e)};
}

void Links::map_values(const SegmentProgram& program, int to) {
  const Segment& from = segment(program.segment);
  const Segment& target = segment(to);
  const std::string where = fmt::format("segment {}", target.name);
  const auto refuse = [&](const char* what, ValueId value) {
    CounterExample e;
    e.check = "links";
    e.message = fmt::format("the program of segment {} stands for it, but {}", from.name, what);
    e.instruction = where;
    if (value.valid()) e.tensor = name(value);
    throw Disproof{std::move(e)};
  };
  if (from.last_op - from.first_op != target.last_op - target.first_op) {
    refuse("it has another number of operators", {});
  }
  const auto pair = [&](ValueId a, ValueId b) {
    const Value& x = context_.graph.value(a);
    const Value& y = context_.graph.value(b);
    if (x.kind != y.kind || !(x.type == y.type)) refuse("a value has another type", b);
    instance_[a.index()] = b;
  };
  for (int i = 0; i < from.last_op - from.first_op; ++i) {
    const Op& a = context_.graph.ops[static_cast<std::size_t>(from.first_op + i)];
    const Op& b = context_.graph.ops[static_cast<std::size_t>(target.first_op + i)];
    if (&a != &b && (a.kind != b.kind || a.attrs != b.attrs || a.inputs.size() != b.inputs.size() ||
                     a.outputs.size() != b.outputs.size())) {
      refuse("an operator is another one", b.outputs.empty() ? ValueId{} : b.outputs[0]);
    }
    for (std::size_t k = 0; k < a.inputs.size(); ++k) {
      pair(a.inputs[k], b.inputs[k]);
      if (context_.uses.owes(target.first_op + i, k) != context_.uses.owes(from.first_op + i, k)) {
        refuse("a gradient is due in only one of them", b.inputs[k]);
      }
    }
    for (std::size_t k = 0; k < a.outputs.size(); ++k) pair(a.outputs[k], b.outputs[k]);
  }
  // One value in the place of two would be another wiring.
  for (int i = 0; i < from.last_op - from.first_op && program.segment != to; ++i) {
    const Op& a = context_.graph.ops[static_cast<std::size_t>(from.first_op + i)];
    const Op& b = context_.graph.ops[static_cast<std::size_t>(target.first_op + i)];
    for (std::size_t k = 0; k < a.inputs.size(); ++k) {
      if (mapped(a.inputs[k]) != b.inputs[k])
        refuse("its operators are wired otherwise", b.inputs[k]);
    }
  }
}

// The chunks of one replica run every segment once, in order.
void Links::check_cover(int which) {
  int next = 0;
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    if (plan_.chunks[c].replica != which) continue;
    const ChunkProgram& chunk = program_.chunks[c];
    if (chunk.first_segment != next) {
      fail("links",
           fmt::format("chunk {} starts with segment {}, but {} is next", c, chunk.first_segment,
                       next),
           fmt::format("chunk {}", c), {}, static_cast<int>(c));
    }
    next += static_cast<int>(chunk.segments.size());
  }
  if (next != static_cast<int>(context_.segments.size())) {
    CounterExample e;
    e.check = "links";
    e.message =
        fmt::format("replica {} runs {} of {} segments", which, next, context_.segments.size());
    throw Disproof{std::move(e)};
  }
}

int Links::hold(Copy copy) {
  const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(copy.value.value)} << 32 |
                            static_cast<std::uint32_t>(copy.chunk);
  const auto [it, fresh] = copy_of_.try_emplace(key, static_cast<int>(copies_.size()));
  if (fresh) {
    copies_.push_back(std::move(copy));
    return it->second;
  }
  return -1;
}

// The copy that a chunk reads: its own, or the nearest before it on the same stage.
int Links::find_copy(int chunk, ValueId value) const {
  for (int c = chunk; c >= 0; --c) {
    if (c != chunk && (stage(c) != stage(chunk) || replica(c) != replica(chunk))) continue;
    const std::uint64_t key = std::uint64_t{static_cast<std::uint32_t>(value.value)} << 32 |
                              static_cast<std::uint32_t>(c);
    if (const auto it = copy_of_.find(key); it != copy_of_.end()) return it->second;
  }
  return -1;
}

void Links::check_way(const Transfer& t, const Transfer::Item& item, const Form& from,
                      const Form& to, const std::string& where) {
  const TensorType& type = context_.type(item.value);
  SpanTable& sa = spans(t.from_chunk);
  SpanTable& sb = spans(t.to_chunk);
  ++counts_.transfers;
  if (t.aligned) {
    if (!aligned_boxes(type, from.place, sa, to.place, sb) || from.partial != to.partial) {
      fail("transfers", "said to be aligned, but devices at equal places hold different regions",
           where, item.value, t.to_chunk, &to);
    }
    return;
  }
  if (from.partial != 0 || to.partial != 0) {
    fail("transfers", "parts of a sum move between placements that do not match", where, item.value,
         t.from_chunk, &from);
  }
  if (!covers_all(from.place, type, sa)) {
    fail("transfers", "the senders do not hold every region of it once", where, item.value,
         t.from_chunk, &from);
  }
}

// Values that transfers bring to a chunk before it runs.
void Links::arrive(int chunk) {
  for (std::size_t t : arriving_[static_cast<std::size_t>(chunk)]) {
    const Transfer& transfer = program_.transfers[t];
    for (const Transfer::Item& item : transfer.items) {
      const int parent = find_copy(transfer.from_chunk, item.value);
      if (parent < 0) {
        fail("transfers", "the sender does not have it", where_transfer(t), item.value,
             transfer.from_chunk);
      }
      const Copy& source = copies_[static_cast<std::size_t>(parent)];
      const Form from = form_of(transfer.from_chunk, item.value, item.from);
      const bool held = std::any_of(source.forms.begin(), source.forms.end(),
                                    [&](const Form& f) { return same_form(f, from); });
      if (!held) {
        fail("transfers", "the sender has it in another form", where_transfer(t), item.value,
             transfer.from_chunk, &from);
      }
      const Form to = form_of(chunk, item.value, item.to);
      check_way(transfer, item, from, to, where_transfer(t));
      needs_.send[t].push_back(source.transfer >= 0
                                   ? OrderEvent{Phase::kReceiveWait, source.transfer}
                                   : OrderEvent{Phase::kForward, source.chunk});
      Copy copy;
      copy.value = item.value;
      copy.chunk = chunk;
      copy.transfer = static_cast<int>(t);
      copy.parent = parent;
      copy.forms = {to};
      if (hold(std::move(copy)) < 0) {
        fail("transfers", "the receiver has it already", where_transfer(t), item.value, chunk, &to);
      }
    }
  }
}

void Links::leave(Copy& copy, const Form& form, int chunk, const std::string& where) {
  if (copy.has_gradient && !same_form(copy.left, form)) {
    fail("links", "its gradients come back in different forms and cannot be added", where,
         copy.value, chunk, &form);
  }
  copy.has_gradient = true;
  copy.left = form;
}

void Links::run_segment(int chunk, int position) {
  const ChunkProgram& lowered = program_.chunks[static_cast<std::size_t>(chunk)];
  const SegmentProgram& program =
      program_
          .segments[static_cast<std::size_t>(lowered.segments[static_cast<std::size_t>(position)])];
  const int index = lowered.first_segment + position;
  const std::string where = where_segment(chunk, index);
  map_values(program, index);
  const auto at = [&](std::int32_t b) -> const Buffer& {
    return program.buffers[static_cast<std::size_t>(b)];
  };
  std::vector<std::pair<ValueId, int>> read;  // Which copy serves each argument.
  for (std::int32_t b : program.arguments) {
    const ValueId value = mapped(at(b).value);
    if (context_.graph.value(value).kind != ValueKind::kActivation) continue;
    ++counts_.links;
    const int found = find_copy(chunk, value);
    const Form form = form_of(chunk, value, at(b));
    if (found < 0) {
      fail("links",
           "no segment before it on this stage makes this argument and no transfer brings it",
           where, value, chunk, &form);
    }
    Copy& copy = copies_[static_cast<std::size_t>(found)];
    if (std::none_of(copy.forms.begin(), copy.forms.end(),
                     [&](const Form& f) { return same_form(f, form); })) {
      fail("links", "this argument is there in another form", where, value, chunk, &form);
    }
    if (copy.transfer >= 0 || copy.chunk != chunk) {
      needs_.forward[static_cast<std::size_t>(chunk)].push_back(
          copy.transfer >= 0 ? OrderEvent{Phase::kReceiveWait, copy.transfer}
                             : OrderEvent{Phase::kForward, copy.chunk});
    }
    read.emplace_back(value, found);
  }
  for (std::int32_t b : program.gradient_results) {
    const ValueId value = mapped(at(b).value);
    ++counts_.links;
    const auto source =
        std::find_if(read.begin(), read.end(), [&](const auto& r) { return r.first == value; });
    if (source == read.end()) {
      fail("links", "leaves the gradient of something that is no argument", where, value, chunk);
    }
    Copy& copy = copies_[static_cast<std::size_t>(source->second)];
    leave(copy, form_of(chunk, value, at(b)), chunk, where);
    copy.readers.push_back(chunk);
  }
  for (std::int32_t b : program.results) {
    const ValueId value = mapped(at(b).value);
    const int found = find_copy(chunk, value);
    const Form form = form_of(chunk, value, at(b));
    if (found >= 0) {
      copies_[static_cast<std::size_t>(found)].forms.push_back(form);
      continue;
    }
    Copy copy;
    copy.value = value;
    copy.chunk = chunk;
    copy.forms = {form};
    hold(std::move(copy));
  }
  for (std::int32_t b : program.gradient_arguments) {
    const ValueId value = mapped(at(b).value);
    int found = find_copy(chunk, value);
    if (found < 0) {
      // A loss, which nobody reads.
      Copy copy;
      copy.value = value;
      copy.chunk = chunk;
      found = hold(std::move(copy));
    }
    Copy& copy = copies_[static_cast<std::size_t>(found)];
    if (copy.takes_gradient) {
      fail("links", "takes the gradient of its result twice", where, value, chunk);
    }
    copy.takes_gradient = true;
    copy.gradient = form_of(chunk, value, at(b));
  }
}

// From the last copies to the first: what each has gathered goes back where it came from.
void Links::return_gradients() {
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> back;  // By value and sending chunk.
  std::int64_t unused = 0;
  for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
    const Transfer& transfer = program_.transfers[t];
    if (!transfer.gradient) continue;
    for (const Transfer::Item& item : transfer.items) {
      back[std::uint64_t{static_cast<std::uint32_t>(item.value.value)} << 32 |
           static_cast<std::uint32_t>(transfer.from_chunk)]
          .push_back(t);
      ++unused;
    }
  }
  for (std::size_t i = copies_.size(); i-- > 0;) {
    Copy& copy = copies_[i];
    std::vector<OrderEvent> ready;
    for (int c : copy.readers) ready.push_back({Phase::kBackward, c});
    for (int t : copy.arrivals) ready.push_back({Phase::kReceiveWait, t});
    if (copy.transfer < 0) {
      const OpId producer = context_.graph.value(copy.value).producer;
      const std::string where = fmt::format("backward pass of chunk {}", copy.chunk);
      if (copy.has_gradient && !copy.takes_gradient) {
        fail("links", "its readers leave a gradient that its producer does not take", where,
             copy.value, copy.chunk, &copy.left);
      }
      if (!copy.takes_gradient) continue;
      const bool read = !context_.uses.of(copy.value).empty();
      const bool owed =
          std::any_of(context_.uses.of(copy.value).begin(), context_.uses.of(copy.value).end(),
                      [&](const GraphUses::Use& u) { return context_.uses.owes(u); });
      if (!copy.has_gradient && read && owed) {
        fail("links", "its producer waits for a gradient that nobody leaves", where, copy.value,
             copy.chunk, &copy.gradient);
      }
      if (copy.has_gradient && !same_form(copy.left, copy.gradient)) {
        fail("links", "its gradient comes back in another form than its producer takes", where,
             copy.value, copy.chunk, &copy.left);
      }
      (void)producer;
      for (const OrderEvent& e : ready) {
        if (e.phase == Phase::kBackward && e.index == copy.chunk) continue;
        needs_.backward[static_cast<std::size_t>(copy.chunk)].push_back(e);
      }
      continue;
    }
    auto& ways = back[std::uint64_t{static_cast<std::uint32_t>(copy.value.value)} << 32 |
                      static_cast<std::uint32_t>(copy.chunk)];
    if (!copy.has_gradient) continue;
    Copy& parent = copies_[static_cast<std::size_t>(copy.parent)];
    if (ways.size() != 1) {
      fail("transfers",
           fmt::format("its gradient goes back from chunk {} {} times", copy.chunk, ways.size()),
           where_transfer(static_cast<std::size_t>(copy.transfer)), copy.value, copy.chunk,
           &copy.left);
    }
    const std::size_t t = ways[0];
    const Transfer& transfer = program_.transfers[t];
    if (transfer.to_chunk != parent.chunk) {
      fail("transfers", fmt::format("its gradient is due in chunk {}", parent.chunk),
           where_transfer(t), copy.value, copy.chunk, &copy.left);
    }
    --unused;
    for (const Transfer::Item& item : transfer.items) {
      if (item.value != copy.value) continue;
      const Form from = form_of(transfer.from_chunk, item.value, item.from);
      const Form to = form_of(transfer.to_chunk, item.value, item.to);
      if (!same_form(from, copy.left)) {
        fail("transfers", "the sender has the gradient in another form", where_transfer(t),
             item.value, transfer.from_chunk, &from);
      }
      check_way(transfer, item, from, to, where_transfer(t));
      leave(parent, to, transfer.to_chunk, where_transfer(t));
    }
    parent.arrivals.push_back(static_cast<int>(t));
    needs_.send[t].insert(needs_.send[t].end(), ready.begin(), ready.end());
  }
  if (unused != 0) {
    for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
      const Transfer& transfer = program_.transfers[t];
      if (!transfer.gradient) continue;
      for (const Transfer::Item& item : transfer.items) {
        const int copy = find_copy(transfer.from_chunk, item.value);
        if (copy < 0 || !copies_[static_cast<std::size_t>(copy)].has_gradient ||
            copies_[static_cast<std::size_t>(copy)].transfer < 0) {
          fail("transfers", "sends a gradient that is not due", where_transfer(t), item.value,
               transfer.from_chunk);
        }
      }
    }
    fail("transfers", "a gradient is sent twice", "transfers of gradients", {}, 0);
  }
}

OrderNeeds Links::run() {
  arriving_.resize(plan_.chunks.size());
  for (std::size_t t = 0; t < program_.transfers.size(); ++t) {
    const Transfer& transfer = program_.transfers[t];
    if (replica(transfer.from_chunk) != replica(transfer.to_chunk)) {
      fail("transfers", "goes from one replica to another", where_transfer(t), {},
           transfer.from_chunk);
    }
    if (!transfer.gradient) arriving_[static_cast<std::size_t>(transfer.to_chunk)].push_back(t);
  }
  std::vector<int> replicas;
  for (const Chunk& c : plan_.chunks) {
    if (std::find(replicas.begin(), replicas.end(), c.replica) == replicas.end()) {
      replicas.push_back(c.replica);
    }
  }
  for (int r : replicas) check_cover(r);
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    arrive(static_cast<int>(c));
    for (std::size_t i = 0; i < program_.chunks[c].segments.size(); ++i) {
      run_segment(static_cast<int>(c), static_cast<int>(i));
    }
  }
  return_gradients();
  return std::move(needs_);
}

}  // namespace

void ProgramReplay::follow_links() {
  needs_ = Links(program_, plan_, context_, spans_, counts_).run();
}

}  // namespace meshwright
