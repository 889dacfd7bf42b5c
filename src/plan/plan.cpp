#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "plan/check.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

constexpr std::array<std::string_view, 4> kStateNames = {"none", "zero1", "zero2", "zero3"};
constexpr std::array<std::string_view, 4> kRecomputeNames = {"none", "selective", "full", "parts"};

template <class Enum, std::size_t N>
Enum parse_name(std::string_view name, const std::array<std::string_view, N>& names,
                std::string_view what) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  std::string legal;
  for (std::string_view n : names) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", n);
  throw Error(fmt::format("unknown {} '{}'", what, name), {}, "legal: " + legal);
}

// Where axes must be cut, as products of inner sizes, for groups of this many devices to exist.
std::vector<std::int64_t> boundaries(const Degrees& d, const std::vector<std::int64_t>& kv_heads) {
  const std::int64_t dense = std::int64_t{d.tp} * d.cp;
  const std::int64_t all = dense * d.dp;
  std::vector<std::int64_t> cuts = {1, d.tp, dense, all};
  if (d.ep * d.etp > 1) {
    cuts.push_back(d.etp);
    cuts.push_back(std::int64_t{d.etp} * d.ep);
  }
  for (std::int64_t kv : kv_heads) {
    if (kv < d.tp && d.tp % kv == 0) cuts.push_back(d.tp / kv);
  }
  if (d.zero != StateSharding::kNone && d.zero_group > 1) {
    cuts.push_back(std::int64_t{d.tp} * d.zero_group);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

bool divide_one_another(const std::vector<std::int64_t>& cuts) {
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i + 1] % cuts[i] != 0) return false;
  }
  return true;
}

}  // namespace

std::string_view state_sharding_name(StateSharding s) {
  return kStateNames[static_cast<std::size_t>(s)];
}
std::string_view recompute_name(Recompute r) {
  return kRecomputeNames[static_cast<std::size_t>(r)];
}
StateSharding parse_state_sharding(std::string_view name) {
  return parse_name<StateSharding>(name, kStateNames, "state sharding");
}
Recompute parse_recompute(std::string_view name) {
  return parse_name<Recompute>(name, kRecomputeNames, "recompute mode");
}

int Training::optimizer_bytes() const {
  const int master = parameter_bytes() < 4 ? 4 : 0;
  if (optimizer == "sgd") return master + 4;
  return master + 8;
}

bool experts_refine(const Degrees& d) { return divide_one_another(boundaries(d, {})); }

std::string to_string(const Degrees& d) {
  std::string text;
  const auto add = [&](std::string_view name, std::int64_t value) {
    if (value != 1) text += fmt::format("{}{} ", name, value);
  };
  add("pp", d.pp);
  add("vpp", d.vpp);
  if (d.tp != 1) text += fmt::format("tp{}{} ", d.tp, d.sp ? "+sp" : "");
  add("cp", d.cp);
  add("dp", d.dp);
  add("ep", d.ep);
  add("etp", d.etp);
  text += fmt::format("mbs{}", d.micro_batch);
  if (d.zero != StateSharding::kNone) {
    text += fmt::format(" {}", state_sharding_name(d.zero));
    if (d.zero_group != 0) text += fmt::format("/{}", d.zero_group);
  }
  if (d.recompute != Recompute::kNone)
    text += fmt::format(" recompute={}", recompute_name(d.recompute));
  if (d.pp_inside_dp) text += " order=tp-cp-pp-dp";
  return text;
}

Stage make_stage(const Degrees& d, const std::vector<std::int64_t>& kv_heads, int stage) {
  const std::vector<std::int64_t> cuts = boundaries(d, kv_heads);
  if (!divide_one_another(cuts)) {
    throw Error(fmt::format("the groups of etp = {}, ep = {}, zero group = {} cut across those of "
                            "tp = {}, cp = {}, dp = {}",
                            d.etp, d.ep, d.zero_group, d.tp, d.cp, d.dp),
                {}, "make one of the products divide the other");
  }
  const std::int64_t dense = std::int64_t{d.tp} * d.cp;
  const std::int64_t stage_size = dense * d.dp;
  Stage result;
  result.recompute = d.recompute;
  result.state = d.zero;
  Mesh& mesh = result.mesh;
  // Axes from the innermost outward; role of an axis = the range its boundaries fall into.
  std::array<int, 3> numbered{};
  struct Range {
    std::int64_t begin, end;
  };
  std::vector<Range> ranges;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::int64_t begin = cuts[i];
    const int role = begin < d.tp ? 0 : begin < dense ? 1 : 2;
    constexpr std::array<std::string_view, 3> kNames = {"tp", "cp", "dp"};
    // With the order tp-cp-pp-dp a whole pipeline lies between two data-parallel neighbours.
    const std::int64_t spread = d.pp_inside_dp && role == 2 ? d.pp : 1;
    mesh.axes.push_back({fmt::format("{}{}", kNames[static_cast<std::size_t>(role)],
                                     numbered[static_cast<std::size_t>(role)]++),
                         static_cast<int>(cuts[i + 1] / begin), static_cast<int>(begin * spread)});
    ranges.push_back({begin, cuts[i + 1]});
  }
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const std::string_view kind = std::string_view(mesh.axes[i].name).substr(0, 2);
    const int role = kind == "tp" ? 0 : kind == "cp" ? 1 : 2;
    if (numbered[static_cast<std::size_t>(role)] == 1) mesh.axes[i].name = std::string(kind);
  }
  mesh.first_device = static_cast<int>(d.pp_inside_dp ? stage * dense : stage * stage_size);

  const auto axes_between = [&](std::int64_t begin, std::int64_t end) {
    AxisList list;
    for (std::size_t i = ranges.size(); i-- > 0;) {
      if (ranges[i].begin >= begin && ranges[i].end <= end) list.push_back(static_cast<int>(i));
    }
    return list;
  };
  Roles& roles = result.roles;
  roles.tensor = axes_between(1, d.tp);
  roles.context = axes_between(d.tp, dense);
  roles.data = axes_between(dense, stage_size);
  roles.sequence_parallel = d.sp && d.tp > 1;
  const std::int64_t expert_inner = std::int64_t{d.ep} * d.etp;
  roles.expert_tensor = axes_between(1, d.etp);
  roles.expert = axes_between(d.etp, expert_inner);
  roles.expert_data = axes_between(std::max(dense, expert_inner), stage_size);
  roles.expert_context = axes_between(std::max(std::int64_t{d.tp}, expert_inner), dense);
  // Tokens of tensor ranks that are not expert ranks of their own: split as under sequence
  // parallelism.
  if (expert_inner < d.tp) roles.expert_context.append(axes_between(expert_inner, d.tp));

  if (d.zero != StateSharding::kNone) {
    const std::int64_t group = d.zero_group == 0 ? std::int64_t{d.dp} * d.cp : d.zero_group;
    result.state_axes = axes_between(d.tp, d.tp * group);
    result.expert_state_axes = axes_between(expert_inner, std::max(expert_inner, d.tp * group));
  }
  return result;
}

Plan make_plan(const Graph& graph, const std::vector<Segment>& segments, const Cluster& cluster,
               const Training& training, std::int64_t global_batch, const Degrees& degrees,
               const std::vector<int>& cuts, std::string_view schedule_name) {
  if (schedule_name.empty()) schedule_name = default_schedule(degrees.vpp);
  const Schedule& schedule = find_schedule(schedule_name);
  const ModelFacts facts = model_facts(graph, segments);
  const std::vector<Violation> violations =
      check_degrees(facts, cluster.device_count(), global_batch, degrees, schedule_name);
  if (!violations.empty())
    throw Error(violations[0].message, violations[0].rule, violations[0].hint);
  const int chunk_count = degrees.pp * degrees.vpp;
  MW_CHECK(static_cast<int>(cuts.size()) == chunk_count - 1, "one cut between neighbouring chunks");

  Plan plan;
  plan.training = training;
  plan.degrees = degrees;
  plan.global_batch = global_batch;
  plan.micro_batches = global_batch / (degrees.dp * degrees.micro_batch);
  plan.schedule = schedule_name;
  for (int s = 0; s < degrees.pp; ++s)
    plan.stages.push_back(make_stage(degrees, facts.all_kv_heads, s));
  const ScheduleShape shape{degrees.pp, degrees.vpp, static_cast<int>(plan.micro_batches), {}, {}};
  for (int c = 0; c < chunk_count * schedule.replicas; ++c) {
    const auto i = static_cast<std::size_t>(c % chunk_count);
    const bool last = c % chunk_count + 1 == chunk_count;
    plan.chunks.push_back({schedule.stage_of(shape, c), i == 0 ? 0 : cuts[i - 1],
                           last ? static_cast<int>(segments.size()) : cuts[i], c / chunk_count});
  }
  return plan;
}

int rank_count(const Plan& plan) {
  int ranks = 0;
  for (const Stage& stage : plan.stages) {
    int last = stage.mesh.first_device;
    for (const MeshAxis& axis : stage.mesh.axes) last += (axis.size - 1) * axis.stride;
    ranks = std::max(ranks, last + 1);
  }
  return ranks;
}

}  // namespace meshwright
