#include "search/round_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/check.h"

namespace meshwright {
namespace {

double forward_flops(const Graph& graph, const Segment& segment) {
  double sum = 0;
  for (int i = segment.first_op; i < segment.last_op; ++i) {
    const Op& op = graph.ops[static_cast<std::size_t>(i)];
    std::vector<TensorType> inputs, outputs;
    for (ValueId id : op.inputs) inputs.push_back(graph.value(id).type);
    for (ValueId id : op.outputs) outputs.push_back(graph.value(id).type);
    sum += work_of(find_op(op.kind), {op.attrs, inputs, outputs}).forward_flops.value;
  }
  return sum;
}

struct Cut {
  std::vector<int> begin;  // First unit of each part after the first.
  double most = 0;
};

// Cuts a chain into parts with the least largest sum, no part empty. O(parts * n^2).
Cut cut_chain(const std::vector<double>& weight, int parts) {
  const int n = static_cast<int>(weight.size());
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto at = [n](int k, int i) { return static_cast<std::size_t>(k * (n + 1) + i); };
  std::vector<double> best(static_cast<std::size_t>((parts + 1) * (n + 1)), kNever);
  std::vector<int> from(best.size(), 0);
  best[at(0, 0)] = 0;
  for (int k = 1; k <= parts; ++k) {
    for (int end = k; end <= n; ++end) {
      double sum = 0;
      for (int begin = end; begin-- > k - 1;) {
        sum += weight[static_cast<std::size_t>(begin)];
        const double most = std::max(best[at(k - 1, begin)], sum);
        if (most < best[at(k, end)]) best[at(k, end)] = most, from[at(k, end)] = begin;
        if (sum > best[at(k, end)]) break;
      }
    }
  }
  Cut cut;
  cut.most = best[at(parts, n)];
  for (int k = parts, end = n; k > 1; --k) {
    end = from[at(k, end)];
    cut.begin.push_back(end);
  }
  std::reverse(cut.begin.begin(), cut.begin.end());
  return cut;
}

bool has_vocabulary(const Graph& graph, const Segment& segment) {
  for (int i = segment.first_op; i < segment.last_op; ++i) {
    for (ValueId id : graph.ops[static_cast<std::size_t>(i)].inputs) {
      const Value& value = graph.value(id);
      if (value.kind != ValueKind::kParameter) continue;
      for (const Dim& dim : value.type.dims) {
        if (dim.name == "vocab") return true;
      }
    }
  }
  return false;
}

class RoundPlanner {
 public:
  RoundPlanner(const Graph& graph, const std::vector<Segment>& segments, const Schedule& schedule,
               const Degrees& degrees, Plan& plan)
      : graph_(graph), segments_(segments), schedule_(schedule), d_(degrees), plan_(plan) {}

  void add_rounds();
  void add_everywhere();

 private:
  std::vector<double> weights(int first, int last) const;
  const Segment& segment(int i) const { return segments_[static_cast<std::size_t>(i)]; }

  const Graph& graph_;
  const std::vector<Segment>& segments_;
  const Schedule& schedule_;
  const Degrees& d_;
  Plan& plan_;
  mutable std::map<int, double> work_;  // By class.
};

std::vector<double> RoundPlanner::weights(int first, int last) const {
  std::vector<double> list;
  for (int i = first; i < last; ++i) {
    const auto [it, fresh] = work_.try_emplace(segment(i).shape_class, 0);
    if (fresh) it->second = forward_flops(graph_, segment(i));
    list.push_back(it->second);
  }
  return list;
}

void RoundPlanner::add_rounds() {
  // Where each round begins; what stands before the first belongs to it.
  std::vector<int> begin;
  std::string_view current;
  for (int i = 0; i < static_cast<int>(segments_.size()); ++i) {
    const std::string_view round =
        round_path(graph_.ops[static_cast<std::size_t>(segment(i).first_op)].name);
    if (round.empty() || round == current) continue;
    begin.push_back(begin.empty() ? 0 : i);
    current = round;
  }
  if (begin.size() < 2) {
    throw Error(
        fmt::format("{} needs a model that goes over the stages several times", schedule_.name),
        "schedule",
        schedule_.slices ? "cut the sequence into slices first (plan --space terapipe)"
                         : "a model with recycling, such as evoformer-48; others train with 1f1b");
  }
  begin.push_back(static_cast<int>(segments_.size()));
  const auto layers_of = [&](std::size_t r) {
    std::vector<int> layers;
    for (int i = begin[r]; i < begin[r + 1]; ++i) {
      if (segment(i).is_layer) layers.push_back(i);
    }
    return layers;
  };
  const std::vector<int> last = layers_of(begin.size() - 2);
  if (static_cast<int>(last.size()) < d_.pp) {
    throw Error(fmt::format("pp = {} is more than the {} layers of a round", d_.pp, last.size()),
                "P13");
  }
  std::vector<double> weight;
  for (int i : last) weight.push_back(weights(i, i + 1)[0]);
  const Cut cut = cut_chain(weight, d_.pp);
  for (std::size_t r = 0; r + 1 < begin.size(); ++r) {
    // Rounds have equal layers, but the first may have more in front (an encoder).
    const std::vector<int> layers = layers_of(r);
    const int more = static_cast<int>(layers.size()) - static_cast<int>(last.size());
    if (more < 0) throw Error("a round has fewer layers than the last one");
    int first = begin[r];
    for (int s = 0; s < d_.pp; ++s) {
      const auto next = static_cast<std::size_t>(s);
      const int end =
          s + 1 == d_.pp ? begin[r + 1] : layers[static_cast<std::size_t>(cut.begin[next] + more)];
      plan_.chunks.push_back({s, first, end, 0});
      first = end;
    }
  }
}

void RoundPlanner::add_everywhere() {
  std::vector<int> shared;
  for (int i = 0; i < static_cast<int>(segments_.size()); ++i) {
    if (!segment(i).is_layer && has_vocabulary(graph_, segment(i))) shared.push_back(i);
  }
  if (shared.empty()) {
    throw Error(fmt::format("{} needs segments with a vocabulary", schedule_.name), "schedule");
  }
  // Runs of layers between them; the stages are dealt out so that the largest part is smallest.
  std::vector<std::pair<int, int>> runs;
  int begin = 0;
  for (int s : shared) {
    if (s > begin) runs.emplace_back(begin, s);
    begin = s + 1;
  }
  if (begin < static_cast<int>(segments_.size())) {
    runs.emplace_back(begin, static_cast<int>(segments_.size()));
  }
  const int count = static_cast<int>(runs.size());
  if (count > d_.pp || count == 0) {
    throw Error(
        fmt::format("pp = {} is less than the {} runs of layers between embeddings", d_.pp, count),
        "P13");
  }
  std::vector<int> parts(runs.size(), 1);
  std::vector<Cut> cuts;
  for (const auto& [a, b] : runs) cuts.push_back(cut_chain(weights(a, b), 1));
  for (int dealt = count; dealt < d_.pp; ++dealt) {
    std::size_t heaviest = runs.size();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (parts[i] >= runs[i].second - runs[i].first) continue;
      if (heaviest == runs.size() || cuts[i].most > cuts[heaviest].most) heaviest = i;
    }
    if (heaviest == runs.size()) {
      throw Error(fmt::format("pp = {} is more than the segments between embeddings", d_.pp),
                  "P13");
    }
    ++parts[heaviest];
    cuts[heaviest] =
        cut_chain(weights(runs[heaviest].first, runs[heaviest].second), parts[heaviest]);
  }
  // One stage over all: the axes of a stage, and the stages as one more tensor axis, outermost.
  Stage all = plan_.stages[0];
  const int stage_size = all.mesh.device_count();
  int tensor_axes = 0;
  for (MeshAxis& axis : all.mesh.axes) {
    if (axis.name == "tp") axis.name = "tp0";
    tensor_axes += axis.name.starts_with("tp");
  }
  all.mesh.axes.push_back({fmt::format("tp{}", std::max(tensor_axes, 1)), d_.pp, stage_size});
  AxisList tensor = {static_cast<int>(all.mesh.axes.size()) - 1};
  tensor.append(all.roles.tensor);
  all.roles.tensor = tensor;
  const int everywhere = static_cast<int>(plan_.stages.size());
  plan_.stages.push_back(all);

  int stage = 0;
  std::size_t run = 0;
  for (int i = 0; i < static_cast<int>(segments_.size());) {
    if (std::binary_search(shared.begin(), shared.end(), i)) {
      int end = i + 1;
      while (std::binary_search(shared.begin(), shared.end(), end)) ++end;
      plan_.chunks.push_back({everywhere, i, end, 0});
      i = end;
      continue;
    }
    const auto [a, b] = runs[run];
    for (int p = 0; p < parts[run]; ++p) {
      const auto k = static_cast<std::size_t>(p);
      plan_.chunks.push_back({stage++, p == 0 ? a : a + cuts[run].begin[k - 1],
                              p + 1 == parts[run] ? b : a + cuts[run].begin[k], 0});
    }
    i = b;
    ++run;
  }
}

}  // namespace

bool made_of_rounds(const Schedule& schedule) {
  return schedule.slices || schedule.recycles || schedule.takes_everywhere;
}

Plan make_round_plan(const Graph& graph, const std::vector<Segment>& segments,
                     const Cluster& cluster, const Training& training, std::int64_t global_batch,
                     const Degrees& degrees, std::string_view schedule_name) {
  const Schedule& schedule = find_schedule(schedule_name);
  MW_CHECK(made_of_rounds(schedule), "a schedule of rounds");
  Degrees d = degrees;
  d.vpp = 1;
  d.pp_inside_dp = false;
  const ModelFacts facts = model_facts(graph, segments);
  const std::vector<Violation> violations =
      check_degrees(facts, cluster.device_count(), global_batch, d, "1f1b");
  if (!violations.empty())
    throw Error(violations[0].message, violations[0].rule, violations[0].hint);
  Plan plan;
  plan.training = training;
  plan.degrees = d;
  plan.global_batch = global_batch;
  plan.micro_batches = global_batch / (d.dp * d.micro_batch);
  plan.schedule = schedule_name;
  for (int s = 0; s < d.pp; ++s) plan.stages.push_back(make_stage(d, facts.all_kv_heads, s));
  RoundPlanner planner(graph, segments, schedule, d, plan);
  if (schedule.takes_everywhere)
    planner.add_everywhere();
  else
    planner.add_rounds();
  return plan;
}

}  // namespace meshwright
