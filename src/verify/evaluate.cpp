#include "verify/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "base/error.h"
#include "ops/gradient_flow.h"
#include "verify/stand_in.h"

namespace meshwright {
namespace {

using Data = std::vector<Number>;

// What one device holds of a tensor: flat positions in the whole tensor, in local order.
struct Region {
  Box box;
  std::vector<std::int64_t> elements;
  bool flat = false;
};

// A tensor on all devices of a stage.
struct Spread {
  std::shared_ptr<const std::vector<Region>> regions;
  std::vector<Data> data;
};

bool same_regions(const Spread& a, const Spread& b) {
  if (a.regions->size() != b.regions->size()) return false;
  for (std::size_t i = 0; i < a.regions->size(); ++i) {
    if ((*a.regions)[i].elements != (*b.regions)[i].elements) return false;
  }
  return true;
}

std::int64_t element_count(const TensorType& type) {
  std::int64_t count = 1;
  for (const Dim& d : type.dims) count *= d.size;
  return count;
}

struct Setup {
  Setup(const Plan& p, const Graph& g, const std::vector<Segment>& s, std::uint64_t random)
      : plan(p),
        graph(g),
        segments(s),
        samples(p.global_batch / p.micro_batches),
        tables(g),
        stand_in(g, tables, samples, random),
        seed(random),
        trained(requires_gradient(g)),
        unread(g.values.size(), true) {
    for (const Op& op : g.ops) {
      for (ValueId id : op.inputs) unread[id.index()] = false;
    }
  }

  const TensorType& type(ValueId id) { return tables.type(id, samples); }
  // Given numbers: inputs differ by micro-batch, parameters and constants do not.
  Number given(ValueId id, std::int64_t micro_batch, std::int64_t element) const {
    const bool input = graph.value(id).kind == ValueKind::kInput;
    return random_number(seed + static_cast<std::uint64_t>(id.value) * 7919,
                         static_cast<std::uint64_t>(input ? micro_batch + 1 : 0),
                         static_cast<std::uint64_t>(element));
  }
  Number loss_gradient(ValueId id, std::int64_t element) const {
    return random_number(seed + static_cast<std::uint64_t>(id.value), 77777,
                         static_cast<std::uint64_t>(element));
  }
  static Number updated(Number parameter, Number gradient) {
    return plus(times(parameter, 48271), times(gradient, 69621));
  }
  void run_reference();

  const Plan& plan;
  const Graph& graph;
  const std::vector<Segment>& segments;
  std::int64_t samples;
  MicroBatchTables tables;
  StandIn stand_in;
  std::uint64_t seed;
  std::vector<bool> trained;  // Per value: has a gradient.
  std::vector<bool> unread;
  std::map<std::int32_t, Data> parameters;                       // After the step.
  std::map<std::pair<std::int32_t, std::int64_t>, Data> losses;  // By value and micro-batch.
};

void Setup::run_reference() {
  std::map<std::int32_t, Data> sums;
  for (std::int64_t m = 0; m < plan.micro_batches; ++m) {
    std::vector<Data> values(graph.values.size()), gradients(graph.values.size());
    std::vector<Box> boxes;
    for (std::size_t v = 0; v < values.size(); ++v) {
      const ValueId id(static_cast<std::int64_t>(v));
      Box& box = boxes.emplace_back();
      for (const Dim& d : type(id).dims) box.push_back({0, d.size});
      values[v].resize(static_cast<std::size_t>(element_count(type(id))));
      if (graph.values[v].kind == ValueKind::kActivation) continue;
      for (std::size_t i = 0; i < values[v].size(); ++i) {
        values[v][i] = given(id, m, static_cast<std::int64_t>(i));
      }
    }
    const auto parts = [&](const std::vector<ValueId>& ids, std::vector<Data>& from) {
      std::vector<Part> list;
      for (ValueId id : ids) {
        const Data& d = from[id.index()];
        list.push_back({&boxes[id.index()], d.empty() ? nullptr : &d});
      }
      return list;
    };
    for (std::size_t o = 0; o < graph.ops.size(); ++o) {
      const Op& op = graph.ops[o];
      for (std::size_t j = 0; j < op.outputs.size(); ++j) {
        const std::size_t v = op.outputs[j].index();
        MW_CHECK(
            stand_in.forward(static_cast<int>(o), parts(op.inputs, values), j, boxes[v], values[v]),
            "the stand-in refuses whole operands");
        if (unread[v]) losses[{op.outputs[j].value, m}] = values[v];
      }
    }
    for (std::size_t o = graph.ops.size(); o-- > 0;) {
      const Op& op = graph.ops[o];
      bool any = false;
      for (ValueId id : op.outputs) {
        const std::size_t v = id.index();
        if (!trained[v]) continue;
        if (gradients[v].empty()) {
          gradients[v].resize(values[v].size());
          for (std::size_t i = 0; i < values[v].size(); ++i) {
            gradients[v][i] = loss_gradient(id, static_cast<std::int64_t>(i));
          }
        }
        any = true;
      }
      if (!any) continue;
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        const std::size_t v = op.inputs[k].index();
        if (!trained[v]) continue;
        Data& sum = gradients[v];
        sum.resize(values[v].size());
        MW_CHECK(stand_in.backward(static_cast<int>(o), parts(op.outputs, gradients),
                                   parts(op.inputs, values), parts(op.outputs, values), k, boxes[v],
                                   sum),
                 "the stand-in refuses whole operands");
      }
    }
    for (std::size_t v = 0; v < values.size(); ++v) {
      if (graph.values[v].kind != ValueKind::kParameter || !trained[v]) continue;
      Data& sum = sums[static_cast<std::int32_t>(v)];
      sum.resize(values[v].size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = plus(sum[i], gradients[v][i]);
    }
  }
  for (const auto& [id, sum] : sums) {
    Data& after = parameters[id];
    for (std::size_t i = 0; i < sum.size(); ++i) {
      after.push_back(updated(given(ValueId(id), 0, static_cast<std::int64_t>(i)), sum[i]));
    }
  }
}

class Machine {
 public:
  Machine(Setup& impl, const Program& program) : e_(impl), p_(program) {
    if (program.lanes.size() != impl.plan.stages.size()) {
      throw Error("programs whose stages share devices cannot be evaluated", "lanes");
    }
  }

  std::string run() {
    for (std::size_t s = 0; s < e_.plan.stages.size(); ++s) {
      if (p_.lanes[s].stages != std::vector<int>{static_cast<int>(s)}) {
        throw Error("programs whose stages share devices cannot be evaluated", "lanes");
      }
    }
    if (!play()) return "hangs in the passes";
    if (!run_steps()) return "hangs in the step";
    return compare();
  }

 private:
  struct Run {
    std::vector<Spread> buffers;
  };
  using Key = std::tuple<int, int, std::int32_t, std::int64_t>;  // stage, replica, value, micro.

  const Mesh& mesh(int stage) const { return e_.plan.stages[static_cast<std::size_t>(stage)].mesh; }
  Number rubbish() { return random_number(e_.seed, 4242, ++rubbish_); }
  void spoil(Spread& spread) {
    for (Data& d : spread.data) {
      for (Number& n : d) n = rubbish();
    }
  }
  std::shared_ptr<const std::vector<Region>> regions(int stage, const Buffer& buffer,
                                                     ValueId value);
  Spread make(int stage, const Buffer& buffer, ValueId value) {
    Spread s{regions(stage, buffer, value), {}};
    for (const Region& r : *s.regions) s.data.emplace_back(r.elements.size());
    spoil(s);
    return s;
  }
  template <typename F>
  void fill(Spread& s, F&& number) {
    for (std::size_t i = 0; i < s.data.size(); ++i) {
      const Region& r = (*s.regions)[i];
      for (std::size_t k = 0; k < r.elements.size(); ++k) s.data[i][k] = number(r.elements[k]);
    }
  }
  // Element by element from a device's own, or any of the listed devices'.
  void assemble(const Spread& from, std::span<const std::size_t> sources, std::size_t to,
                Spread& out);
  std::vector<std::size_t> group(int stage, std::size_t device, std::uint32_t mask) const;
  void communicate(int stage, const Instr& instr, bool value, const Spread& in, Spread& out);
  void slice(const Spread& in, Spread& out) {
    for (std::size_t d = 0; d < in.data.size(); ++d) {
      const std::size_t own[] = {d};
      assemble(in, own, d, out);
    }
  }
  static bool add(const Spread& in, Spread& out) {
    bool fits = true;
    for (std::size_t d = 0; d < in.data.size(); ++d) {
      if (in.data[d].size() != out.data[d].size()) {
        fits = false;
        continue;
      }
      for (std::size_t k = 0; k < in.data[d].size(); ++k) {
        out.data[d][k] = plus(out.data[d][k], in.data[d][k]);
      }
    }
    return fits;
  }

  const std::map<std::int32_t, ValueId>& names(int program, int segment);
  void pass(Phase phase, int chunk, std::int64_t micro_batch);
  void run_list(const std::vector<Instr>& list, int which, int chunk, std::size_t position,
                std::int64_t m, Run& run);
  void compute(const Instr& instr, bool backward, int chunk, std::size_t position, Run& run);
  Spread& accumulated(int stage, ValueId value, const Buffer& buffer);
  bool play();
  bool step_item(std::size_t lane);
  bool run_steps();
  std::string compare();

  Setup& e_;
  const Program& p_;
  std::uint64_t rubbish_ = 0;
  std::map<std::pair<int, int>, std::map<std::int32_t, ValueId>> names_;
  std::map<std::tuple<int, std::size_t, std::int64_t>, Run> runs_;
  std::map<Key, std::vector<Spread>> values_;
  std::map<Key, Spread> gradients_;
  std::map<std::pair<int, std::int32_t>, Spread> sums_;        // By stage and parameter.
  std::map<std::pair<int, std::int32_t>, Spread> parameters_;  // After the step.
  std::map<std::tuple<int, std::int32_t, std::int64_t>, Spread> losses_;
  struct Message {
    int transfer = 0;
    std::int64_t micro_batch = 0;
    std::vector<Spread> items;
  };
  std::map<std::pair<int, int>, std::vector<Message>> sent_;
  std::map<std::pair<int, int>, std::vector<std::pair<int, std::int64_t>>> received_;
  std::vector<std::size_t> at_;
};

std::shared_ptr<const std::vector<Region>> Machine::regions(int stage, const Buffer& buffer,
                                                            ValueId value) {
  const TensorType& type = e_.type(value);
  const Mesh& m = mesh(stage);
  auto list = std::make_shared<std::vector<Region>>();
  for (int i = 0; i < m.device_count(); ++i) {
    const auto coordinates = mesh_coordinates(m, i);
    Region r;
    Sharding form = buffer.form;
    r.box = box_of(type, form, m, coordinates);
    for (Interval& d : r.box) {
      if (d.empty()) d = {0, 0};
    }
    std::int64_t count = 1;
    for (const Interval& d : r.box) count *= d.size();
    std::int64_t index = 0, pieces = 1;
    for (int axis : buffer.flat) {
      const auto a = static_cast<std::size_t>(axis);
      index = index * m.axes[a].size + coordinates[a];
      pieces *= m.axes[a].size;
    }
    const std::int64_t each = (count + pieces - 1) / pieces;
    r.flat = !buffer.flat.empty();
    for (std::int64_t k = index * each; k < std::min(count, (index + 1) * each); ++k) {
      std::int64_t rest = k, element = 0, stride = 1;
      for (std::size_t d = r.box.size(); d-- > 0;) {
        element += (r.box[d].begin + rest % r.box[d].size()) * stride;
        rest /= r.box[d].size();
        stride *= type.dims[d].size;
      }
      r.elements.push_back(element);
    }
    list->push_back(std::move(r));
  }
  return list;
}

void Machine::assemble(const Spread& from, std::span<const std::size_t> sources, std::size_t to,
                       Spread& out) {
  std::map<std::int64_t, Number> held;
  for (std::size_t s : sources) {
    const Region& r = (*from.regions)[s];
    for (std::size_t k = 0; k < r.elements.size(); ++k) {
      held.try_emplace(r.elements[k], from.data[s][k]);
    }
  }
  const Region& r = (*out.regions)[to];
  for (std::size_t k = 0; k < r.elements.size(); ++k) {
    const auto it = held.find(r.elements[k]);
    out.data[to][k] = it == held.end() ? rubbish() : it->second;
  }
}

std::vector<std::size_t> Machine::group(int stage, std::size_t device, std::uint32_t mask) const {
  const Mesh& m = mesh(stage);
  const auto mine = mesh_coordinates(m, static_cast<std::int64_t>(device));
  std::vector<std::size_t> members;
  for (int i = 0; i < m.device_count(); ++i) {
    const auto other = mesh_coordinates(m, i);
    bool same = true;
    for (std::size_t a = 0; a < mine.size(); ++a) {
      same &= (mask >> a & 1u) != 0 || mine[a] == other[a];
    }
    if (same) members.push_back(static_cast<std::size_t>(i));
  }
  return members;
}

void Machine::communicate(int stage, const Instr& instr, bool value, const Spread& in,
                          Spread& out) {
  CollectiveKind kind = instr.collective;
  if (kind == CollectiveKind::kRing) {
    kind = value ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
  }
  const Spread before = in;  // `out` may be the same buffer.
  for (std::size_t d = 0; d < before.data.size(); ++d) {
    const auto members = group(stage, d, instr.group.mask());
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter) {
      // By position, as the library does: it knows nothing of regions.
      Spread sum{before.regions, before.data};
      for (std::size_t m : members) {
        if (m == d) continue;
        for (std::size_t k = 0; k < sum.data[d].size(); ++k) {
          const Data& other = before.data[m];
          sum.data[d][k] = k < other.size() ? plus(sum.data[d][k], other[k]) : rubbish();
        }
      }
      const std::size_t own[] = {d};
      assemble(sum, own, d, out);
    } else if (kind == CollectiveKind::kBroadcast) {
      const std::size_t root[] = {members[0]};
      assemble(before, root, d, out);
    } else {
      assemble(before, members, d, out);
    }
  }
}

const std::map<std::int32_t, ValueId>& Machine::names(int program, int segment) {
  auto& map = names_[{program, segment}];
  if (!map.empty()) return map;
  const Segment& from =
      e_.segments[static_cast<std::size_t>(p_.segments[static_cast<std::size_t>(program)].segment)];
  const Segment& to = e_.segments[static_cast<std::size_t>(segment)];
  for (int i = 0; i < from.last_op - from.first_op; ++i) {
    const Op& a = e_.graph.ops[static_cast<std::size_t>(from.first_op + i)];
    const Op& b = e_.graph.ops[static_cast<std::size_t>(to.first_op + i)];
    for (std::size_t k = 0; k < a.inputs.size(); ++k) map[a.inputs[k].value] = b.inputs[k];
    for (std::size_t k = 0; k < a.outputs.size(); ++k) map[a.outputs[k].value] = b.outputs[k];
  }
  return map;
}

Spread& Machine::accumulated(int stage, ValueId value, const Buffer& buffer) {
  const auto [it, fresh] = sums_.try_emplace({stage, value.value});
  if (fresh) {
    it->second = make(stage, buffer, value);
    for (Data& d : it->second.data) std::fill(d.begin(), d.end(), 0);
  }
  return it->second;
}

void Machine::compute(const Instr& instr, bool backward, int chunk, std::size_t position,
                      Run& run) {
  const ChunkProgram& c = p_.chunks[static_cast<std::size_t>(chunk)];
  const SegmentProgram& sp = p_.segments[static_cast<std::size_t>(c.segments[position])];
  const int shift = e_.segments[static_cast<std::size_t>(c.first_segment) + position].first_op -
                    e_.segments[static_cast<std::size_t>(sp.segment)].first_op;
  const int op_index = instr.op.value + shift;
  const Op& op = e_.graph.ops[static_cast<std::size_t>(op_index)];
  const auto in = sp.in(instr);
  const auto out = sp.out(instr);
  const std::size_t results = op.outputs.size(), operands = op.inputs.size();
  const auto buffer = [&](std::int32_t b) -> Spread& {
    return run.buffers[static_cast<std::size_t>(b)];
  };
  const auto count = static_cast<std::size_t>(mesh(c.stage).device_count());
  const bool shaped = backward ? in.size() == 2 * results + operands && out.size() == operands
                               : in.size() == operands && out.size() == results;
  std::vector<Spread> made;
  for (std::int32_t b : out) made.push_back(b < 0 ? Spread{} : buffer(b));
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (out[k] < 0) continue;
    for (std::size_t d = 0; d < count; ++d) {
      Data& result = made[k].data[d];
      const Region& region = (*made[k].regions)[d];
      std::fill(result.begin(), result.end(), 0);
      bool fits = shaped && !region.flat;
      const auto part = [&](std::int32_t b) -> Part {
        if (b < 0) return {};
        fits &= !(*buffer(b).regions)[d].flat;
        return {&(*buffer(b).regions)[d].box, &buffer(b).data[d]};
      };
      if (fits && !backward) {
        std::vector<Part> inputs;
        for (std::int32_t b : in) inputs.push_back(part(b));
        fits = fits && e_.stand_in.forward(op_index, inputs, k, region.box, result);
      } else if (fits) {
        std::vector<Part> gradients, inputs, outputs;
        for (std::size_t j = 0; j < results; ++j) gradients.push_back(part(in[j]));
        for (std::size_t j = 0; j < operands; ++j) inputs.push_back(part(in[results + j]));
        for (std::size_t j = 0; j < results; ++j) {
          outputs.push_back(part(in[results + operands + j]));
        }
        fits = fits &&
               e_.stand_in.backward(op_index, gradients, inputs, outputs, k, region.box, result);
      }
      if (!fits) {
        for (Number& n : result) n = rubbish();
      }
    }
  }
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (out[k] < 0) continue;
    buffer(out[k]) = std::move(made[k]);
  }
}

void Machine::run_list(const std::vector<Instr>& list, int which, int chunk, std::size_t position,
                       std::int64_t m, Run& run) {
  const ChunkProgram& c = p_.chunks[static_cast<std::size_t>(chunk)];
  const int program = c.segments[position];
  const SegmentProgram& sp = p_.segments[static_cast<std::size_t>(program)];
  const auto& name = names(program, c.first_segment + static_cast<int>(position));
  const auto buffer = [&](std::int32_t b) -> Spread& {
    return run.buffers[static_cast<std::size_t>(b)];
  };
  const auto described = [&](std::int32_t b) -> const Buffer& {
    return sp.buffers[static_cast<std::size_t>(b)];
  };
  for (const Instr& instr : list) {
    const auto in = sp.in(instr);
    const auto out = sp.out(instr);
    switch (instr.kind) {
      case InstrKind::kCompute:
        if (instr.op.valid()) {
          compute(instr, which != 0 && instr.purpose == Purpose::kBackward, chunk, position, run);
        }
        break;
      case InstrKind::kCollective:
        for (std::size_t i = 0; i < std::min(in.size(), out.size()); ++i) {
          communicate(c.stage, instr, described(in[i]).kind == BufferKind::kValue, buffer(in[i]),
                      buffer(out[i]));
        }
        break;
      case InstrKind::kSlice:
        for (std::size_t i = 0; i < std::min(in.size(), out.size()); ++i) {
          const Spread before = buffer(in[i]);
          slice(before, buffer(out[i]));
        }
        break;
      case InstrKind::kAdd: {
        if (in.empty() || out.empty()) break;
        Spread sum = buffer(in[0]);
        bool fits = true;
        for (std::size_t i = 1; i < in.size(); ++i) fits &= add(buffer(in[i]), sum);
        Spread& target = buffer(out[0]);
        for (std::size_t d = 0; d < target.data.size(); ++d) {
          fits &= target.data[d].size() == sum.data[d].size();
        }
        if (fits) {
          target.data = sum.data;
        } else {
          spoil(target);
        }
        break;
      }
      case InstrKind::kAccumulate:
        for (std::size_t i = 0; i < std::min(in.size(), out.size()); ++i) {
          Spread& sum =
              accumulated(c.stage, name.at(described(out[i]).value.value), described(out[i]));
          if (!add(buffer(in[i]), sum)) spoil(sum);
        }
        break;
      case InstrKind::kFree:
        for (std::int32_t b : in) spoil(buffer(b));
        break;
      case InstrKind::kOptimizer:
        break;
    }
    // A loss is what its buffers last held.
    for (std::int32_t b : out) {
      if (b < 0 || which != 0 || described(b).kind != BufferKind::kValue) continue;
      const ValueId id = name.at(described(b).value.value);
      if (e_.unread[id.index()] && e_.graph.value(id).kind == ValueKind::kActivation) {
        losses_[{c.stage, id.value, m}] = buffer(b);
      }
    }
  }
}

void Machine::pass(Phase phase, int chunk, std::int64_t m) {
  const ChunkProgram& c = p_.chunks[static_cast<std::size_t>(chunk)];
  const int replica = e_.plan.chunks[static_cast<std::size_t>(chunk)].replica;
  for (std::size_t n = 0; n < c.segments.size(); ++n) {
    const std::size_t i = phase == Phase::kForward ? n : c.segments.size() - 1 - n;
    const int program = c.segments[i];
    const SegmentProgram& sp = p_.segments[static_cast<std::size_t>(program)];
    const auto& name = names(program, c.first_segment + static_cast<int>(i));
    const auto actual = [&](std::int32_t b) {
      return name.at(sp.buffers[static_cast<std::size_t>(b)].value.value);
    };
    Run& run = runs_[{chunk, i, m}];
    if (run.buffers.empty() || phase == Phase::kForward) {
      run.buffers.clear();
      for (std::size_t b = 0; b < sp.buffers.size(); ++b) {
        const Buffer& described = sp.buffers[b];
        const ValueId id = actual(static_cast<std::int32_t>(b));
        run.buffers.push_back(make(c.stage, described, id));
        const ValueKind kind = e_.graph.value(id).kind;
        if (described.kind == BufferKind::kValue &&
            (kind == ValueKind::kInput || kind == ValueKind::kBuffer)) {
          fill(run.buffers.back(), [&](std::int64_t k) { return e_.given(id, m, k); });
        }
      }
    }
    if (phase == Phase::kForward) {
      for (std::int32_t b : sp.arguments) {
        Spread& target = run.buffers[static_cast<std::size_t>(b)];
        const ValueId id = actual(b);
        if (e_.graph.value(id).kind == ValueKind::kParameter) {
          fill(target, [&](std::int64_t k) { return e_.given(id, m, k); });
          continue;
        }
        for (const Spread& s : values_[{c.stage, replica, id.value, m}]) {
          if (same_regions(s, target)) target.data = s.data;
        }
      }
      run_list(sp.forward, 0, chunk, i, m, run);
      for (std::int32_t b : sp.results) {
        values_[{c.stage, replica, actual(b).value, m}].push_back(
            run.buffers[static_cast<std::size_t>(b)]);
      }
      continue;
    }
    if (phase == Phase::kBackward) {
      for (std::int32_t b : sp.gradient_arguments) {
        Spread& target = run.buffers[static_cast<std::size_t>(b)];
        const ValueId id = actual(b);
        if (e_.unread[id.index()]) {
          fill(target, [&](std::int64_t k) { return e_.loss_gradient(id, k); });
          continue;
        }
        const auto it = gradients_.find({c.stage, replica, id.value, m});
        if (it != gradients_.end() && same_regions(it->second, target)) {
          target.data = it->second.data;
        }
      }
      run_list(sp.backward, 1, chunk, i, m, run);
      for (std::int32_t b : sp.gradient_results) {
        Spread& left = run.buffers[static_cast<std::size_t>(b)];
        const auto [it, fresh] =
            gradients_.try_emplace({c.stage, replica, actual(b).value, m}, left);
        if (!fresh && !(same_regions(it->second, left) && add(left, it->second))) {
          spoil(it->second);
        }
      }
      continue;
    }
    run_list(sp.weight, 2, chunk, i, m, run);
  }
}

// One entry of a lane's order; false when it has to wait.
bool Machine::step_item(std::size_t lane) {
  const ScheduleItem& item = p_.lanes[lane].order[at_[lane]];
  if (is_pass(item.phase)) {
    pass(item.phase, item.chunk, item.micro_batch);
    return true;
  }
  const Transfer& t = p_.transfers[static_cast<std::size_t>(item.chunk)];
  const int from = p_.chunks[static_cast<std::size_t>(t.from_chunk)].stage;
  const int to = p_.chunks[static_cast<std::size_t>(t.to_chunk)].stage;
  const int replica = e_.plan.chunks[static_cast<std::size_t>(t.from_chunk)].replica;
  const std::pair pair{from, to};
  const auto is_this = [&](int transfer, std::int64_t m) {
    return transfer == item.chunk && m == item.micro_batch;
  };
  if (item.phase == Phase::kSend) {
    Message message{item.chunk, item.micro_batch, {}};
    for (const Transfer::Item& i : t.items) {
      Spread s = make(from, {i.value, BufferKind::kValue, i.from, {}}, i.value);
      const Key key{from, replica, i.value.value, item.micro_batch};
      if (t.gradient) {
        const auto it = gradients_.find(key);
        if (it != gradients_.end() && same_regions(it->second, s)) s.data = it->second.data;
      } else {
        for (const Spread& held : values_[key]) {
          if (same_regions(held, s)) s.data = held.data;
        }
      }
      message.items.push_back(std::move(s));
    }
    sent_[pair].push_back(std::move(message));
    return true;
  }
  if (item.phase == Phase::kReceive) {
    received_[pair].emplace_back(item.chunk, item.micro_batch);
    return true;
  }
  if (item.phase == Phase::kSendWait) {
    const auto& messages = sent_[pair];
    for (std::size_t n = 0; n < messages.size(); ++n) {
      if (is_this(messages[n].transfer, messages[n].micro_batch)) {
        return n < received_[pair].size();
      }
    }
    return true;  // Nothing was sent.
  }
  const auto& wanted = received_[pair];
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    if (!is_this(wanted[n].first, wanted[n].second)) continue;
    if (n >= sent_[pair].size()) return false;
    const Message& message = sent_[pair][n];
    for (std::size_t i = 0; i < t.items.size(); ++i) {
      const Transfer::Item& described = t.items[i];
      Spread s = make(to, {described.value, BufferKind::kValue, described.to, {}}, described.value);
      // Messages are told apart by their order only: a wrong one fills the buffer as it comes.
      if (i < message.items.size()) {
        const Spread& source = message.items[i];
        std::vector<std::size_t> all(source.data.size());
        for (std::size_t d = 0; d < all.size(); ++d) all[d] = d;
        for (std::size_t d = 0; d < s.data.size(); ++d) {
          if (t.aligned) {
            if (d < source.data.size() && source.data[d].size() == s.data[d].size()) {
              s.data[d] = source.data[d];
            }
          } else {
            assemble(source, all, d, s);
          }
        }
      }
      const Key key{to, replica, described.value.value, item.micro_batch};
      if (!t.gradient) {
        values_[key].push_back(std::move(s));
        continue;
      }
      const auto [it, fresh] = gradients_.try_emplace(key, s);
      if (!fresh && !(same_regions(it->second, s) && add(s, it->second))) spoil(it->second);
    }
    return true;
  }
  return true;  // Waits for what it never asked for: nothing comes.
}

bool Machine::play() {
  at_.assign(p_.lanes.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t l = 0; l < p_.lanes.size(); ++l) {
      while (at_[l] < p_.lanes[l].order.size() && step_item(l)) {
        ++at_[l];
        moved = true;
      }
    }
  }
  for (std::size_t l = 0; l < p_.lanes.size(); ++l) {
    if (at_[l] < p_.lanes[l].order.size()) return false;
  }
  return true;
}

bool Machine::run_steps() {
  // Which segment's buffers stand for each parameter that a stage holds.
  struct Held {
    ValueId value;
    int program = 0;
    const ParameterShard* shard = nullptr;
    std::map<int, Spread> buffers;
  };
  std::vector<std::map<std::int32_t, Held>> stages(e_.plan.stages.size());
  for (std::size_t c = 0; c < p_.chunks.size(); ++c) {
    const ChunkProgram& chunk = p_.chunks[c];
    auto& held = stages[static_cast<std::size_t>(chunk.stage)];
    for (std::size_t i = 0; i < chunk.segments.size(); ++i) {
      const int program = chunk.segments[i];
      const auto& name = names(program, chunk.first_segment + static_cast<int>(i));
      for (const ParameterShard& s : p_.segments[static_cast<std::size_t>(program)].parameters) {
        const ValueId id = name.at(s.value.value);
        const auto [it, fresh] = held.try_emplace(id.value, Held{id, program, &s, {}});
        if (!fresh && it->second.shard->accumulated < 0 && s.accumulated >= 0) {
          it->second = {id, program, &s, {}};
        }
      }
    }
  }
  const auto described = [&](int stage, int program, int b) -> const Buffer& {
    const auto& own = p_.segments[static_cast<std::size_t>(program)].buffers;
    const auto i = static_cast<std::size_t>(b);
    if (i < own.size()) return own[i];
    return p_.stages[static_cast<std::size_t>(stage)].buffers.at(program)[i - own.size()];
  };
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (auto& [id, held] : stages[s]) {
      const int stage = static_cast<int>(s);
      Spread rest = make(stage, described(stage, held.program, held.shard->buffer), held.value);
      fill(rest, [&, v = held.value](std::int64_t k) { return e_.given(v, 0, k); });
      held.buffers[held.shard->buffer] = std::move(rest);
      if (held.shard->accumulated >= 0) {
        const Buffer& b = described(stage, held.program, held.shard->accumulated);
        Spread mine = make(stage, b, held.value);
        const Spread& sum = accumulated(stage, held.value, b);
        if (same_regions(sum, mine)) mine.data = sum.data;
        held.buffers[held.shard->accumulated] = std::move(mine);
      }
    }
  }
  const auto run_instr = [&](int stage, const Instr& instr, Held& held) {
    const StageProgram& program = p_.stages[static_cast<std::size_t>(stage)];
    const auto in = program.in(instr);
    const auto out = program.out(instr);
    const auto at = [&](int b) -> Spread& {
      const auto it = held.buffers.find(b);
      if (it != held.buffers.end()) return it->second;
      return held.buffers[b] = make(stage, described(stage, held.program, b), held.value);
    };
    for (std::size_t i = 0; i < std::min(in.size(), out.size()); ++i) {
      if (out[i].segment != held.program || in[i].segment != held.program) continue;
      if (described(stage, held.program, out[i].buffer).value != held.shard->value) continue;
      const Spread before = at(in[i].buffer);
      Spread& target = at(out[i].buffer);
      switch (instr.kind) {
        case InstrKind::kCollective:
          communicate(stage, instr, true, before, target);
          break;
        case InstrKind::kSlice:
          slice(before, target);
          break;
        case InstrKind::kOptimizer: {
          // The optimizer has its own copy of the parameter, which goes on from step to step.
          Spread old = make(stage, described(stage, held.program, out[i].buffer), held.value);
          fill(old, [&](std::int64_t k) { return e_.given(held.value, 0, k); });
          const bool again = held.buffers.contains(-1 - out[i].buffer);
          if (again) old = held.buffers[-1 - out[i].buffer];
          for (std::size_t d = 0; d < target.data.size(); ++d) {
            for (std::size_t k = 0; k < target.data[d].size(); ++k) {
              const bool fits = target.data[d].size() == before.data[d].size();
              target.data[d][k] =
                  fits ? Setup::updated(old.data[d][k], before.data[d][k]) : rubbish();
            }
          }
          held.buffers[-1 - out[i].buffer] = target;
          break;
        }
        default:
          break;
      }
    }
  };
  std::vector<std::size_t> at(stages.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& step = p_.stages[s].step;
      while (at[s] < step.size() && step[at[s]].tie < 0) {
        for (auto& [id, held] : stages[s]) run_instr(static_cast<int>(s), step[at[s]], held);
        ++at[s];
        moved = true;
      }
    }
    for (std::size_t t = 0; t < p_.ties.size(); ++t) {
      const Tie& tie = p_.ties[t];
      const auto here = [&](int s) {
        const auto i = static_cast<std::size_t>(s);
        return at[i] < p_.stages[i].step.size() &&
               p_.stages[i].step[at[i]].tie == static_cast<int>(t);
      };
      if (!std::all_of(tie.stages.begin(), tie.stages.end(), here)) continue;
      for (ValueId value : tie.values) {
        std::vector<Spread*> parts;
        for (int s : tie.stages) {
          const auto i = static_cast<std::size_t>(s);
          const auto it = stages[i].find(value.value);
          if (it == stages[i].end()) continue;
          for (const StageProgram::Operand& o : p_.stages[i].in(p_.stages[i].step[at[i]])) {
            if (o.segment != it->second.program) continue;
            if (described(s, o.segment, o.buffer).value != it->second.shard->value) continue;
            const auto found = it->second.buffers.find(o.buffer);
            if (found != it->second.buffers.end()) parts.push_back(&found->second);
          }
        }
        if (parts.empty()) continue;
        Spread sum = *parts[0];
        bool fits = parts.size() == tie.stages.size();
        for (std::size_t i = 1; i < parts.size(); ++i) {
          fits &= parts[i]->data.size() == sum.data.size() && add(*parts[i], sum);
        }
        for (Spread* p : parts) {
          if (fits) {
            p->data = sum.data;
          } else {
            spoil(*p);
          }
        }
      }
      for (int s : tie.stages) ++at[static_cast<std::size_t>(s)];
      moved = true;
    }
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (at[s] < p_.stages[s].step.size()) return false;
    for (auto& [id, held] : stages[s]) {
      parameters_[{static_cast<int>(s), id}] = held.buffers[held.shard->buffer];
    }
  }
  return true;
}

std::string Machine::compare() {
  for (const auto& [key, after] : parameters_) {
    const auto it = e_.parameters.find(key.second);
    if (it == e_.parameters.end()) continue;
    for (std::size_t d = 0; d < after.data.size(); ++d) {
      const Region& r = (*after.regions)[d];
      for (std::size_t k = 0; k < r.elements.size(); ++k) {
        if (after.data[d][k] == it->second[static_cast<std::size_t>(r.elements[k])]) continue;
        return fmt::format("parameter {} on device {} of stage {}",
                           e_.graph.value(ValueId(key.second)).name, d, key.first);
      }
    }
  }
  for (const auto& [key, whole] : e_.losses) {
    bool found = false;
    for (const auto& [where, loss] : losses_) {
      if (std::get<1>(where) != key.first || std::get<2>(where) != key.second) continue;
      found = true;
      for (std::size_t d = 0; d < loss.data.size(); ++d) {
        const Region& r = (*loss.regions)[d];
        for (std::size_t k = 0; k < r.elements.size(); ++k) {
          if (loss.data[d][k] == whole[static_cast<std::size_t>(r.elements[k])]) continue;
          return fmt::format("result {} of micro-batch {}", e_.graph.value(ValueId(key.first)).name,
                             key.second);
        }
      }
    }
    if (!found) return fmt::format("no result {}", e_.graph.value(ValueId(key.first)).name);
  }
  return {};
}

}  // namespace

struct Evaluator::Impl : Setup {
  using Setup::Setup;
};

Evaluator::Evaluator(const Plan& plan, const Graph& graph, const std::vector<Segment>& segments,
                     std::uint64_t seed)
    : impl_(new Impl(plan, graph, segments, seed)) {
  double products = 0;
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    double all = 1;
    for (const Factor& f : impl_->stand_in.rule(static_cast<int>(o)).factors) {
      all *= static_cast<double>(f.size);
    }
    products += all * static_cast<double>(plan.micro_batches);
  }
  constexpr double kMaxProducts = 1e7;
  if (products > kMaxProducts) {
    throw Error(fmt::format("evaluating {} takes {:.1e} products; at most {:.0e} are done",
                            graph.name, products, kMaxProducts),
                "mutants", "take a model with smaller sizes");
  }
  impl_->run_reference();
}

Evaluator::~Evaluator() = default;

std::string Evaluator::difference(const Program& program) { return Machine(*impl_, program).run(); }

}  // namespace meshwright
