#include "plan/check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/lanes.h"
#include "plan/order.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

// A schedule lists every pass of every chunk; more of them than this is no training run.
constexpr std::int64_t kMaxScheduledPasses = std::int64_t{1} << 22;

template <class Report>
void each_violation(const ModelFacts& f, int device_count, std::int64_t global_batch,
                    const Degrees& d, std::string_view schedule, Report&& report) {
  const auto say = [&](std::string_view rule, auto&& message, auto&& hint) {
    return report(rule, message, hint);
  };
  const auto legal_divisors = [](std::int64_t n) { return "legal: " + join(divisors(n)); };

  for (const auto& [name, value] : {std::pair{"pp", d.pp},
                                    {"vpp", d.vpp},
                                    {"dp", d.dp},
                                    {"cp", d.cp},
                                    {"tp", d.tp},
                                    {"ep", d.ep},
                                    {"etp", d.etp}}) {
    if (value < 1) {
      say(
          "P1", [&, n = name, v = value] { return fmt::format("{} must be at least 1: {}", n, v); },
          [] { return std::string(); });
      return;
    }
  }
  const double product = double(d.pp) * d.dp * d.cp * d.tp;
  if (product > device_count) {
    if (say(
            "P2",
            [&] {
              return fmt::format("pp*dp*cp*tp = {:.0f} is more than the {} devices of the cluster",
                                 product, device_count);
            },
            [] { return std::string("lower one of them"); }))
      return;
  }
  if (f.heads > 0 && f.heads % d.tp != 0) {
    if (say(
            "P3", [&] { return fmt::format("tp = {} does not divide heads = {}", d.tp, f.heads); },
            [&] {
              return fmt::format("heads = {}: legal tp are {}", f.heads, join(divisors(f.heads)));
            }))
      return;
  }
  if (f.kv_heads > 0 && f.kv_heads % d.tp != 0 && d.tp % f.kv_heads != 0) {
    if (say(
            "P4",
            [&] {
              return fmt::format("tp = {} neither divides kv_heads = {} nor is a multiple of it",
                                 d.tp, f.kv_heads);
            },
            [&] {
              std::vector<std::int64_t> legal;
              for (std::int64_t t : divisors(std::max(f.heads, f.kv_heads))) {
                if (f.kv_heads % t == 0 || t % f.kv_heads == 0) legal.push_back(t);
              }
              return "legal tp are " + join(legal);
            }))
      return;
  }
  if (f.ffn > 0 && f.ffn % d.tp != 0) {
    if (say(
            "P5",
            [&] { return fmt::format("tp = {} does not divide the MLP width {}", d.tp, f.ffn); },
            [&] { return legal_divisors(f.ffn); }))
      return;
  }
  if (d.cp > 1 || (d.sp && d.tp > 1)) {
    for (std::int64_t seq : f.sequence_sizes) {
      const std::int64_t parts = std::int64_t{d.cp} * (d.cp > 1 ? 2 : 1);
      const std::int64_t sp = d.sp ? d.tp : 1;
      if (d.cp > 1 && seq % parts != 0) {
        if (say(
                "P6",
                [&] {
                  return fmt::format("2*cp = {} does not divide the sequence length {}", parts,
                                     seq);
                },
                [] {
                  return std::string("causal ring attention gives every device two equal pieces");
                }))
          return;
      } else if (seq % (d.cp * sp) != 0 && seq == f.seq) {
        if (say(
                "P7",
                [&] {
                  return fmt::format(
                      "cp*tp = {} does not divide the sequence length {} under sequence "
                      "parallelism",
                      d.cp * sp, seq);
                },
                [] { return std::string("lower tp or cp, or turn sequence parallelism off"); }))
          return;
      }
    }
  }
  if (f.experts == 0 && (d.ep > 1 || d.etp > 1)) {
    if (say(
            "P8", [&] { return std::string("ep and etp need a model with experts"); },
            [] { return std::string("use ep = 1, etp = 1"); }))
      return;
  }
  if (f.experts > 0) {
    if (f.experts % d.ep != 0) {
      if (say(
              "P9",
              [&] { return fmt::format("ep = {} does not divide experts = {}", d.ep, f.experts); },
              [&] { return legal_divisors(f.experts); }))
        return;
    }
    if (f.expert_ffn % d.etp != 0) {
      if (say(
              "P10",
              [&] {
                return fmt::format("etp = {} does not divide the expert width {}", d.etp,
                                   f.expert_ffn);
              },
              [&] { return legal_divisors(f.expert_ffn); }))
        return;
    }
    const std::int64_t stage = std::int64_t{d.tp} * d.cp * d.dp;
    if (stage % (std::int64_t{d.ep} * d.etp) != 0) {
      if (say(
              "P11",
              [&] {
                return fmt::format(
                    "ep*etp = {} does not divide the {} devices of a stage (tp*cp*dp)",
                    d.ep * d.etp, stage);
              },
              [&] { return legal_divisors(stage); }))
        return;
    } else if (!experts_refine(d)) {
      if (say(
              "P11",
              [&] {
                return fmt::format(
                    "the groups of etp = {}, ep = {} cut across those of tp = {}, cp = {}", d.etp,
                    d.ep, d.tp, d.cp);
              },
              [&] { return std::string("make one of etp*ep and tp (or tp*cp) divide the other"); }))
        return;
    }
  }
  const std::int64_t replicas = std::int64_t{d.dp};
  if (d.micro_batch < 1 ||
      global_batch % (replicas * std::max<std::int64_t>(d.micro_batch, 1)) != 0) {
    if (say(
            "P12",
            [&] {
              return fmt::format("global batch {} is not a multiple of dp * micro-batch = {} * {}",
                                 global_batch, d.dp, d.micro_batch);
            },
            [&] {
              if (global_batch % replicas != 0) {
                return fmt::format("dp must divide it: legal dp are {}",
                                   join(divisors(global_batch)));
              }
              return fmt::format("legal micro-batches are {}",
                                 join(divisors(global_batch / replicas)));
            }))
      return;
  }
  if (d.pp * std::int64_t{d.vpp} > std::max(f.layers, 1)) {
    if (say(
            "P13",
            [&] {
              return fmt::format("pp*vpp = {} chunks for {} layers leaves chunks empty",
                                 d.pp * d.vpp, f.layers);
            },
            [&] { return fmt::format("pp*vpp may be at most {}", std::max(f.layers, 1)); }))
      return;
  }
  if (d.vpp > 1 && d.pp == 1) {
    if (say(
            "P14", [&] { return std::string("virtual stages need pp > 1"); },
            [] { return std::string("use vpp = 1"); }))
      return;
  }
  if (d.micro_batch >= 1) {
    const std::int64_t m = global_batch / std::max<std::int64_t>(replicas * d.micro_batch, 1);
    if (m > kMaxScheduledPasses / (d.pp * std::int64_t{d.vpp})) {
      if (say(
              "P17",
              [&] {
                return fmt::format("{} micro-batches of {} chunks are more than {} passes", m,
                                   d.pp * std::int64_t{d.vpp}, kMaxScheduledPasses);
              },
              [] { return std::string("use a larger micro-batch or a larger dp"); }))
        return;
    }
    const bool interleaved = schedule.empty() ? d.vpp > 1 : schedule == kInterleaved.name;
    if (interleaved && m % d.pp != 0) {
      if (say(
              "P15",
              [&] {
                return fmt::format(
                    "interleaved schedules need micro-batches ({}) in multiples of pp = {}", m,
                    d.pp);
              },
              [] { return std::string("use vpp = 1, another dp or another micro-batch"); }))
        return;
    } else if (!schedule.empty()) {
      const Schedule& s = find_schedule(schedule);
      const std::string reason = refusal(s, {d.pp, d.vpp, static_cast<int>(m), {}, {}});
      const bool searchable = s.vpp_max > 0 && d.vpp >= s.vpp_min && d.vpp <= s.vpp_max;
      if ((!reason.empty() || !searchable) &&
          say(
              "P30",
              [&] {
                if (!reason.empty()) return reason;
                if (s.vpp_max == 0)
                  return fmt::format("{} needs more of a plan than degrees say", s.name);
                return fmt::format("{} has {} chunks per stage, not {}", s.name,
                                   s.vpp_min == s.vpp_max ? fmt::format("{}", s.vpp_min)
                                                          : fmt::format("{} or more", s.vpp_min),
                                   d.vpp);
              },
              [&] {
                return s.vpp_max == 0 ? "degrees suit " + searchable_schedules() : std::string();
              }))
        return;
    }
  }
  if (d.zero_group != 0) {
    const std::int64_t shard = std::int64_t{d.dp} * d.cp;
    if (d.zero_group < 1 || shard % d.zero_group != 0) {
      if (say(
              "P16",
              [&] {
                return fmt::format("zero group {} does not divide dp*cp = {}", d.zero_group, shard);
              },
              [&] { return legal_divisors(shard); }))
        return;
    }
  }
}

}  // namespace

std::vector<Violation> check_degrees(const ModelFacts& facts, int device_count,
                                     std::int64_t global_batch, const Degrees& degrees,
                                     std::string_view schedule) {
  std::vector<Violation> violations;
  each_violation(facts, device_count, global_batch, degrees, schedule,
                 [&](std::string_view rule, auto& message, auto& hint) {
                   violations.push_back({std::string(rule), message(), hint()});
                   return false;
                 });
  return violations;
}

bool degrees_legal(const ModelFacts& facts, int device_count, std::int64_t global_batch,
                   const Degrees& degrees, std::string_view schedule) {
  bool legal = true;
  each_violation(facts, device_count, global_batch, degrees, schedule,
                 [&](std::string_view, auto&, auto&) {
                   legal = false;
                   return true;
                 });
  return legal;
}

namespace {

// An axis splits one dimension of a tensor at most.
template <class Say>
void check_roles(const Stage& stage, std::size_t s, Say&& say) {
  const Roles& r = stage.roles;
  for (int a = 0; a < static_cast<int>(stage.mesh.axes.size()); ++a) {
    const int dense = r.data.contains(a) + r.context.contains(a) + r.tensor.contains(a);
    const int expert = r.expert.contains(a) + r.expert_tensor.contains(a) +
                       r.expert_data.contains(a) + r.expert_context.contains(a);
    if (dense <= 1 && expert <= 1) continue;
    say("P31", fmt::format("stage {}: axis '{}' has several roles at once", s,
                           stage.mesh.axes[static_cast<std::size_t>(a)].name));
  }
}

// What the schedule needs of the lanes and chunks: it places them, and accepts their number.
template <class Say>
void check_order(const Plan& plan, Say&& say) {
  if (plan.stages.empty() || plan.micro_batches < 1) return;
  const auto chunks = static_cast<std::int64_t>(plan.chunks.size());
  if (plan.micro_batches > kMaxScheduledPasses / std::max<std::int64_t>(chunks, 1)) {
    say("P17",
        fmt::format("{} micro-batches of {} chunks are more than {} passes", plan.micro_batches,
                    chunks, kMaxScheduledPasses),
        "use a larger micro-batch or a larger dp");
    return;
  }
  std::string rule = "P25";
  try {
    const std::vector<Lane> lanes = lanes_of(plan);
    rule = "P30";
    const Schedule& schedule = find_schedule(plan.schedule);
    rule = "P29";
    const ScheduleShape shape = schedule_shape(plan, lanes);
    if (const std::string reason = refusal(schedule, shape); !reason.empty()) {
      say("P30", reason, "");
      return;
    }
    const std::vector<std::vector<int>> covered = lanes_of_stages(lanes);
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const int wanted = schedule.stage_of(shape, static_cast<int>(c));
      const auto& on = covered[static_cast<std::size_t>(plan.chunks[c].stage)];
      if (wanted == kEverywhere ? on.size() == lanes.size() : on[0] == wanted) continue;
      say("P29",
          fmt::format("chunk {} runs on stage {}, where {} does not put it", c,
                      plan.chunks[c].stage, schedule.name),
          wanted == kEverywhere ? "all devices run it together"
                                : fmt::format("it runs on stage {}", wanted));
    }
    rule = "P32";
    check_rules(plan.order, plan, shape);
  } catch (const Error& e) {
    say(rule, rule == "P32" ? fmt::format("{}: {}", e.where(), e.message()) : e.message(),
        e.hint());
  }
}

}  // namespace

std::vector<Violation> check_plan(const Plan& plan, const Graph& graph,
                                  const std::vector<Segment>& segments, const Cluster& cluster) {
  std::vector<Violation> violations;
  const auto say = [&](std::string rule, std::string message, std::string hint = {}) {
    violations.push_back({std::move(rule), std::move(message), std::move(hint)});
  };
  if (plan.stages.empty()) say("P20", "a plan has at least one stage");
  if (plan.micro_batches < 1)
    say("P21", fmt::format("micro_batches must be at least 1: {}", plan.micro_batches));
  std::int64_t batch = 0;
  for (const Value& v : graph.values) {
    for (const Dim& dim : v.type.dims) {
      if (dim.name == "batch") batch = std::max(batch, dim.size / dim.unit);
    }
  }
  if (batch != 0 && batch != plan.global_batch) {
    say("P22", fmt::format("the plan is for a global batch of {}, the model has {}",
                           plan.global_batch, batch));
  }
  std::vector<int> used(static_cast<std::size_t>(cluster.device_count()), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Mesh& mesh = plan.stages[s].mesh;
    std::int64_t last = mesh.first_device;
    for (const MeshAxis& axis : mesh.axes) {
      if (axis.size < 1 || axis.stride < 1) {
        say("P23", fmt::format("stage {}: axis '{}' has size {} and stride {}", s, axis.name,
                               axis.size, axis.stride));
        return violations;
      }
      last += std::int64_t{axis.size - 1} * axis.stride;
    }
    if (mesh.first_device < 0 || last >= cluster.device_count()) {
      say("P24", fmt::format("stage {} uses device {} of {}", s, last, cluster.device_count()));
      return violations;
    }
    AxisList all;
    for (int a = 0; a < static_cast<int>(mesh.axes.size()) && a < AxisList::kCapacity; ++a)
      all.push_back(a);
    for (DeviceId device : mesh.group(all)) {
      if (used[device.index()] == static_cast<int>(s)) {
        say("P25", fmt::format("device {} belongs twice to stage {}", device.value, s));
        return violations;
      }
      used[device.index()] = static_cast<int>(s);
    }
    check_roles(plan.stages[s], s, say);
  }
  // Every replica covers the model once.
  int next = 0;
  int replica = 0;
  bool placed = true;
  const auto covered = [&] {
    if (next != static_cast<int>(segments.size())) {
      say("P28", fmt::format("chunks{} cover {} of {} segments",
                             replica > 0 ? fmt::format(" of replica {}", replica) : "", next,
                             segments.size()));
    }
    next = 0;
  };
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.replica == replica + 1) {
      covered();
      ++replica;
    }
    if (chunk.stage < 0 || chunk.stage >= static_cast<int>(plan.stages.size())) {
      say("P26", fmt::format("chunk names stage {} of {}", chunk.stage, plan.stages.size()));
      placed = false;
    }
    if (chunk.first_segment != next || chunk.last_segment <= chunk.first_segment) {
      say("P27",
          fmt::format("chunks must follow one another without gaps or empty ones: segments {}..{}",
                      chunk.first_segment, chunk.last_segment));
    }
    next = chunk.last_segment;
  }
  covered();
  if (!placed) return violations;
  check_order(plan, say);
  return violations;
}

}  // namespace meshwright
