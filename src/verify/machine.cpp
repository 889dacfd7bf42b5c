#include "verify/machine.h"

#include <algorithm>

namespace meshwright {

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
    r.core = r.box;
    if (buffer.halo.dim >= 0 && static_cast<std::size_t>(buffer.halo.dim) < r.box.size()) {
      const auto d = static_cast<std::size_t>(buffer.halo.dim);
      r.box[d].begin = std::max<std::int64_t>(r.box[d].begin - buffer.halo.before, 0);
      r.box[d].end = std::min(r.box[d].end + buffer.halo.after, type.dims[d].size);
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
    } else if (kind == CollectiveKind::kHalo && !value) {
      // What devices have for their neighbours' rows is added to these.
      const Region& r = (*out.regions)[d];
      for (std::size_t k = 0; k < r.elements.size(); ++k) {
        out.data[d][k] = 0;
        for (std::size_t m : members) {
          const Region& other = (*before.regions)[m];
          for (std::size_t j = 0; j < other.elements.size(); ++j) {
            if (other.elements[j] == r.elements[k]) {
              out.data[d][k] = plus(out.data[d][k], before.data[m][j]);
            }
          }
        }
      }
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
        const Region& r = (*buffer(b).regions)[d];
        return {&r.box, &r.core, &buffer(b).data[d]};
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
        fits = fits && e_.stand_in.backward(op_index, gradients, inputs, outputs, k, region.box,
                                            region.core, result);
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

}  // namespace meshwright
