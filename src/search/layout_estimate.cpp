#include "search/layout_estimate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "plan/lanes.h"
#include "search/judge.h"
#include "search/pipeline_cut.h"

namespace meshwright {
namespace {

// Micro-batches in flight on chunk `position` of stage s under 1F1B and its interleaved form.
std::vector<double> one_forward_flight(int pp, int vpp, std::int64_t micro_batches) {
  std::vector<double> flight(static_cast<std::size_t>(pp * vpp));
  for (int s = 0; s < pp; ++s) {
    const double m = static_cast<double>(micro_batches);
    if (vpp == 1) {
      flight[static_cast<std::size_t>(s)] = std::min<double>(pp - s, m);
      continue;
    }
    // Warm-up passes of the interleaved schedule, spread over the chunks in order, groups of pp at
    // a time.
    double left = std::min<double>((pp - 1 - s) * 2 + (vpp - 1) * pp + 1, m * vpp);
    std::vector<double> per_chunk(static_cast<std::size_t>(vpp), 0);
    for (int v = 0; left > 0; v = (v + 1) % vpp) {
      const double take = std::min<double>(left, pp);
      per_chunk[static_cast<std::size_t>(v)] += take;
      left -= take;
    }
    for (int v = 0; v < vpp; ++v) {
      flight[static_cast<std::size_t>(v * pp + s)] = per_chunk[static_cast<std::size_t>(v)];
    }
  }
  return flight;
}

// Over how many devices the state is sharded.
double state_group(const Degrees& d) {
  if (d.zero == StateSharding::kNone) return 1;
  return d.zero_group == 0 ? static_cast<double>(d.dp) * d.cp : d.zero_group;
}

// ZeRO-1 changes nothing inside the passes: costs are shared with the unsharded layout, only the
// optimizer state is divided.
bool sharded_at_the_step(const Degrees& d, const Stage& stage) {
  return stage.state == StateSharding::kNone && d.zero == StateSharding::kZero1;
}

}  // namespace

LayoutEstimator::LayoutEstimator(const Problem& problem)
    : problem_(problem),
      facts_(model_facts(problem.graph, problem.segments)),
      pricer_(pricer_of(problem)),
      costs_(problem, facts_, pricer_),
      class_count_(static_cast<std::size_t>(shape_class_count(problem.segments)), 0) {
  for (const Segment& s : problem.segments) ++class_count_[static_cast<std::size_t>(s.shape_class)];
  if (problem.restrictions.schedule) schedule_ = &find_schedule(*problem.restrictions.schedule);
  if (problem.space) filter_.emplace(*problem.space, problem.graph, facts_);
}

const std::vector<double>& LayoutEstimator::flight_of(const Schedule& schedule,
                                                      const ScheduleShape& shape) {
  const auto [it, fresh] =
      flights_.try_emplace({shape.stages, shape.chunks_per_stage, shape.micro_batches});
  if (!fresh) return it->second;
  std::vector<double>& flight = it->second;
  if (&schedule == &kOneForwardOneBackward || &schedule == &kInterleaved) {
    flight = one_forward_flight(shape.stages, shape.chunks_per_stage, shape.micro_batches);
    return flight;
  }
  // More micro-batches than fill the pipeline change nothing, or there is no bound to them.
  ScheduleShape few = shape;
  few.micro_batches = std::min(shape.micro_batches, 4 * shape.stages + 8);
  flight.assign(static_cast<std::size_t>(shape.chunks()), 0);
  const std::vector<double> weight(flight.size() * static_cast<std::size_t>(schedule.replicas), 1);
  const auto orders = pass_orders(schedule, few);
  for (std::size_t lane = 0; lane < orders.size(); ++lane) {
    const std::vector<int> held = in_flight(orders[lane], weight);
    for (std::size_t c = 0; c < held.size(); ++c) {
      if (held[c] == 0) continue;
      const double all = held[c] == few.micro_batches ? shape.micro_batches : held[c];
      flight[c < flight.size() ? c : lane] += all;
    }
  }
  return flight;
}

std::string_view LayoutEstimator::broken_rule(const Degrees& degrees) {
  if (!filter_) return {};
  const int rule = filter_->broken_rule(degrees);
  if (rule < 0) return {};
  return problem_.space->space.rules[static_cast<std::size_t>(rule)].name;
}

double LayoutEstimator::fixed_memory(const ClassCost& c, const Degrees& d,
                                     const Stage& stage) const {
  if (!sharded_at_the_step(d, stage)) return c.fixed_memory;
  double elements = 0;
  for (const ParameterShard& p : c.program.parameters) elements += p.elements;
  return c.fixed_memory - elements * problem_.training.optimizer_bytes() * (1 - 1 / state_group(d));
}

std::vector<LayoutEstimator::StageDevices> LayoutEstimator::stage_devices(const Degrees& d,
                                                                          const Stage& priced) {
  std::vector<StageDevices> devices(static_cast<std::size_t>(d.pp));
  if (problem_.cluster.homogeneous()) {
    for (StageDevices& s : devices) s.usable = usable_memory(problem_, priced).value;
    return devices;
  }
  const auto rate = [&](const Mesh& mesh) {
    const DeviceKind& kind = pricer_.slowest_kind(mesh);
    const Efficiency& e = pricer_.efficiency(mesh);
    const double peak = problem_.training.dtype == DType::kF32
                            ? std::max(kind.tf32.value, kind.fp32.value)
                            : std::max(kind.bf16.value, kind.fp16.value);
    return peak * e.matmul_16bit.fraction / e.compute_scale;
  };
  const double reference = rate(priced.mesh);
  for (int s = 0; s < d.pp; ++s) {
    const Stage stage = make_stage(d, facts_.all_kv_heads, s);
    devices[static_cast<std::size_t>(s)] = {reference / rate(stage.mesh),
                                            usable_memory(problem_, stage).value};
  }
  return devices;
}

// What no cut can beat: compute and memory spread perfectly over the stages, one micro-batch in
// flight.
Estimate LayoutEstimator::bound(const Degrees& d) {
  const LayoutCosts& costs = costs_.costs(d);
  const int replicas = schedule_ != nullptr ? schedule_->replicas : 1;
  double memory = 0;
  double transient = 0, gathered = 0;
  Seconds serial[2], traffic[2];
  for (std::size_t k = 0; k < costs.classes.size(); ++k) {
    const ClassCost& c = costs.classes[k];
    for (const int pass : {0, 1}) {
      serial[pass] += c.serial[pass] * class_count_[k];
      traffic[pass] += c.traffic[pass] * class_count_[k];
    }
    memory += class_count_[k] * (replicas * fixed_memory(c, d, costs.stage) + c.saved);
    transient = std::max(transient, c.transient);
    gathered = std::max(gathered, c.gathered);
  }
  // A tied embedding may be held once.
  if (d.pp == 1) memory -= costs.classes.back().fixed_memory;
  const std::int64_t micro_batches = problem_.global_batch / (d.dp * d.micro_batch);
  const double m = static_cast<double>(micro_batches);
  const Efficiency& e = pricer_.efficiency(costs.stage.mesh);
  // Traffic of all segments together hides behind all their compute at best.
  double time = 0;
  for (const int pass : {0, 1}) {
    time +=
        (serial[pass] + traffic[pass] - std::min(serial[pass], traffic[pass] * e.gather_overlap))
            .value;
  }
  double speed = 0;
  double usable = 0;
  for (const StageDevices& s : stage_devices(d, costs.stage)) {
    speed += 1 / s.slowness;
    usable += s.usable / d.pp;
  }
  Estimate result;
  result.degrees = d;
  result.seconds = m * time / speed;
  result.overflow = memory / d.pp + transient + gathered + e.context.value - usable;
  return result;
}

Estimate LayoutEstimator::estimate(const Degrees& d, bool balance) {
  const LayoutCosts& costs = costs_.costs(d);
  const std::vector<Segment>& segments = problem_.segments;
  const std::size_t n = segments.size();
  const std::int64_t m = problem_.global_batch / (d.dp * d.micro_batch);
  Estimate result;
  result.degrees = d;

  const Stage& stage = costs.stage;
  const Efficiency& e = pricer_.efficiency(stage.mesh);
  const std::vector<StageDevices> devices = stage_devices(d, stage);

  const bool dp_free = sharded_at_the_step(d, stage);
  const double dp_group = state_group(d);
  const int chunks = d.pp * d.vpp;
  const Schedule& schedule =
      schedule_ != nullptr ? *schedule_ : find_schedule(default_schedule(d.vpp));
  const ScheduleShape shape{d.pp, d.vpp, static_cast<int>(m), {}, {}};
  const std::vector<double>& flight = flight_of(schedule, shape);
  std::vector<int> on_stage;  // Per chunk, of both replicas.
  for (int c = 0; c < chunks * schedule.replicas; ++c) {
    on_stage.push_back(schedule.stage_of(shape, c));
  }
  double transient = 0, gathered = 0;
  for (const ClassCost& c : costs.classes) {
    transient = std::max(transient, c.transient);
    gathered = std::max(gathered, c.gathered);
  }
  CutInstance cut;
  cut.time.reserve(n);
  std::vector<double> class_fixed;
  for (const ClassCost& c : costs.classes) class_fixed.push_back(fixed_memory(c, d, stage));
  for (std::size_t i = 0; i < n; ++i) {
    const auto k = static_cast<std::size_t>(segments[i].shape_class);
    cut.time.push_back(costs.classes[k].time.value);
    cut.fixed_memory.push_back(class_fixed[k] * schedule.replicas);
    cut.saved.push_back(costs.classes[k].saved);
  }
  const double reserve = e.context.value + transient + gathered;
  if (chunks == 1) {
    double tied = 0;
    std::map<std::int32_t, int> shared;
    for (const ClassCost& c : costs.classes) {
      for (const ParameterShard& p : c.program.parameters) {
        if (p.shared && shared[p.value.value]++ > 0) {
          tied += p.elements *
                  (problem_.training.parameter_bytes() + problem_.training.gradient_bytes() +
                   problem_.training.optimizer_bytes() / dp_group);
        }
      }
    }
    double memory = reserve - (stage.state == StateSharding::kZero3 ? 0 : tied);
    for (std::size_t i = 0; i < n; ++i) {
      memory += cut.fixed_memory[i] + cut.saved[i];
      if (filter_ && !filter_->may_run(static_cast<int>(i), 0, d)) {
        memory = std::numeric_limits<double>::infinity();
      }
    }
    result.overflow = memory - devices[0].usable;
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      // Chunks end after layers; what stands before the first layer or after the last stays with
      // it.
      cut.may_end.push_back(static_cast<char>(segments[i].is_layer && i + 1 < n));
    }
    cut.flight = flight;
    for (int c = 0; c < chunks; ++c) {
      const StageDevices& s =
          devices[static_cast<std::size_t>(on_stage[static_cast<std::size_t>(c)])];
      cut.slowness.push_back(s.slowness);
      cut.capacity.push_back((s.usable - reserve) / d.vpp);
    }
    if (filter_ && filter_->pins_segments()) {
      for (int c = 0; c < chunks; ++c) {
        cut.banned.emplace_back();
        for (std::size_t i = 0; i < n; ++i) {
          const auto banned = [&](int s) { return !filter_->may_run(static_cast<int>(i), s, d); };
          bool any = banned(on_stage[static_cast<std::size_t>(c)]);
          for (int r = 1; r < schedule.replicas; ++r) {
            any |= banned(schedule.stage_of(shape, r * chunks + c));
          }
          cut.banned.back().push_back(any);
        }
      }
    }
    Cut found = cut_chain(cut);
    if (!found.feasible) {
      // The best cut in time shows by how much memory is missing.
      cut.capacity.assign(static_cast<std::size_t>(chunks),
                          std::numeric_limits<double>::infinity());
      found = cut_chain(cut);
      if (!found.feasible) {
        result.overflow = std::numeric_limits<double>::infinity();
        return result;
      }
      std::vector<double> held(static_cast<std::size_t>(d.pp), reserve);
      int begin = 0;
      for (int c = 0; c < chunks; ++c) {
        const int end =
            c + 1 < chunks ? found.first[static_cast<std::size_t>(c)] : static_cast<int>(n);
        for (int i = begin; i < end; ++i) {
          const auto s = static_cast<std::size_t>(i);
          held[static_cast<std::size_t>(on_stage[static_cast<std::size_t>(c)])] +=
              cut.fixed_memory[s] + cut.saved[s] * flight[static_cast<std::size_t>(c)];
        }
        begin = end;
      }
      // With virtual stages the split of memory between a stage's chunks was only a guess.
      for (std::size_t s = 0; s < held.size(); ++s) held[s] -= devices[s].usable;
      result.overflow = *std::max_element(held.begin(), held.end());
    } else {
      result.overflow = -1;
    }
    if (balance && d.vpp > 1) {
      cut.stage = on_stage;
      balance_stages(cut, d.pp, static_cast<double>(m), found);
    }
    result.cuts = std::move(found.first);
  }

  // Step time. Stage times from the cut:
  std::vector<double> stage_time(static_cast<std::size_t>(d.pp), 0);
  std::vector<std::map<int, int>> held(static_cast<std::size_t>(d.pp));
  double slowest_chunk = 0;
  Bytes message;
  int begin = 0;
  const int offset = d.pp_inside_dp ? d.tp * d.cp : d.tp * d.cp * d.dp;
  for (int c = 0; c < chunks; ++c) {
    const int end = c + 1 < chunks ? result.cuts[static_cast<std::size_t>(c)] : static_cast<int>(n);
    const auto on = static_cast<std::size_t>(on_stage[static_cast<std::size_t>(c)]);
    // The same chunk of the other replica; each takes half of the micro-batches.
    const auto other = static_cast<std::size_t>(
        on_stage[static_cast<std::size_t>(schedule.replicas > 1 ? chunks + c : c)]);
    Seconds serial[2], traffic[2];
    for (int i = begin; i < end; ++i) {
      const int k = segments[static_cast<std::size_t>(i)].shape_class;
      const ClassCost& cost = costs.classes[static_cast<std::size_t>(k)];
      for (const int pass : {0, 1}) {
        serial[pass] += cost.serial[pass];
        traffic[pass] += cost.traffic[pass];
      }
      ++held[on][k];
      if (schedule.replicas > 1) ++held[other][k];
    }
    double time = 2 * e.micro_batch_fixed.value;
    for (const int pass : {0, 1}) {
      time += devices[on].slowness * (serial[pass] + traffic[pass] -
                                      std::min(serial[pass], traffic[pass] * e.gather_overlap))
                                         .value;
    }
    if (schedule.replicas == 1) {
      stage_time[on] += time;
    } else {
      stage_time[on] += time / 2;
      stage_time[other] += time / 2;
    }
    slowest_chunk = std::max(slowest_chunk, time);
    if (c + 1 < chunks && d.pp > 1) {
      const int boundary = costs_.lowering().boundary_class(end - 1);
      message = std::max(message, costs.boundary[static_cast<std::size_t>(boundary)]);
    }
    begin = end;
  }
  const Stage full =
      dp_free || d.zero == StateSharding::kNone ? make_stage(d, facts_.all_kv_heads, 0) : stage;
  // The slowest way between neighbouring stages, all of a stage's devices sending at once; virtual
  // stages also go from the last stage back to the first.
  double transfer = 0;
  double on_the_way = 0;  // All messages of a micro-batch to the last chunk.
  for (int s = 0; s + 1 < d.pp + (&schedule == &kInterleaved ? 1 : 0); ++s) {
    Mesh from = full.mesh;
    from.first_device = s * offset;
    const int hop = s + 1 < d.pp ? offset : -s * offset;
    const double time = pricer_.peer(message, from, hop).value;
    transfer = std::max(transfer, time);
    on_the_way += time * (s + 1 < d.pp ? d.vpp : d.vpp - 1);
  }
  const double slowest = *std::max_element(stage_time.begin(), stage_time.end());
  const double md = static_cast<double>(m);
  // In steady state a chunk pass takes its compute, or the link's time, or what the way of a
  // micro-batch to the last chunk and back leaves to each of the passes in flight, whichever is
  // longest.
  const double per_chunk = slowest / d.vpp;
  const double passes = d.vpp == 1
                            ? std::min<double>(d.pp, md)
                            : std::min<double>(2 * (d.pp - 1) + (d.vpp - 1) * d.pp + 1, md * d.vpp);
  const double round_trip = chunks * per_chunk + 2 * on_the_way;
  const double period =
      d.pp == 1 ? per_chunk : std::max({per_chunk, transfer, round_trip / passes});
  const bool one_forward =
      &schedule == &kOneForwardOneBackward || &schedule == &kInterleaved || &schedule == &kGpipe;
  const double seconds =
      one_forward ? md * d.vpp * period + (d.pp - 1) * slowest_chunk + 2 * on_the_way / d.vpp
                  : md * d.vpp * std::max(per_chunk, transfer) + schedule.bubble(shape) * slowest +
                        2 * on_the_way / d.vpp;

  // The first and the last stage sum the gradients of a parameter that both hold.
  double tie = 0;
  std::set<std::int32_t> held_first;
  for (const auto& [k, count] : held[0]) {
    for (const ParameterShard& p : costs.classes[static_cast<std::size_t>(k)].program.parameters) {
      if (p.shared) held_first.insert(p.value.value);
      if (schedule.replicas == 1 || p.shared) continue;
      // Both replicas sum their gradients.
      const Bytes bytes(count * p.elements * problem_.training.gradient_bytes());
      tie += pricer_.peer(bytes, full.mesh, offset * (d.pp - 1)).value;
    }
  }
  for (const auto& [k, count] : held[static_cast<std::size_t>(d.pp) - 1]) {
    if (d.pp == 1) break;
    for (const ParameterShard& p : costs.classes[static_cast<std::size_t>(k)].program.parameters) {
      if (!p.shared || held_first.erase(p.value.value) == 0) continue;
      const Bytes bytes(p.elements * problem_.training.gradient_bytes());
      tie += pricer_.peer(bytes, full.mesh, offset * (d.pp - 1)).value;
    }
  }
  double step = 0;
  for (const std::size_t s : {std::size_t{0}, static_cast<std::size_t>(d.pp) - 1}) {
    std::vector<HeldSegment> list;
    for (const auto& [k, count] : held[s]) {
      list.push_back({&costs.classes[static_cast<std::size_t>(k)].program, count,
                      static_cast<int>(list.size())});
    }
    const StepTime t =
        step_time(lower_step(full, problem_.training, list).step, full.mesh, pricer_);
    const double backward = stage_time[s] * 2 / 3;
    const double forward = stage_time[s] / 3;
    step =
        std::max(step, t.optimizer.value + t.reduce.value -
                           std::min(t.reduce.value * e.gradient_overlap, backward) +
                           t.gather.value - std::min(t.gather.value * e.update_overlap, forward));
    if (d.pp == 1) break;
  }
  result.seconds = seconds + step + tie + e.step_fixed.value;
  return result;
}

}  // namespace meshwright
