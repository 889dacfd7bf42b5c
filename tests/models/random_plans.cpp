#include "models/random_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "ops/builder.h"
#include "plan/lanes.h"
#include "plan/schedule.h"

namespace meshwright {
namespace {

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}
  RandomPlan make();

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) {  // Both included.
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool chance(int percent) { return pick(1, 100) <= percent; }

  Graph make_graph();
  ValueId block(GraphBuilder& b, ValueId x);
  Stage make_stage(int first_device);
  OpOverride strategy(const Graph& graph, int op, const std::vector<Stage>& stages,
                      std::int64_t samples);

  std::mt19937_64 random_;
  std::int64_t batch_ = 0;
  std::int64_t seq_ = 0;
  std::int64_t hidden_ = 0;
  std::vector<ValueId> earlier_;
  bool alike_ = false;  // All stages have the same mesh and roles.
  ValueId tied_;
};

ValueId Maker::block(GraphBuilder& b, ValueId x) {
  const auto width = [&](const char* name) { return Dim{name, 2 * pick(1, 7), 1}; };
  const Dim hidden{"hidden", hidden_, 1};
  switch (pick(0, 7)) {
    case 0: {
      const ValueId h =
          b.op(chance(50) ? "gelu" : "silu", "act", {b.linear("up", x, width("ffn"), chance(50))});
      return b.op("add", "sum", {x, b.linear("down", h, hidden, chance(50))});
    }
    case 1: {
      const Dim ffn = width("ffn");
      const ValueId n = b.rms_norm("norm", x);
      const ValueId g =
          b.op("gated", "act", {b.linear("gate", n, ffn, false), b.linear("up", n, ffn, false)});
      return b.op("add", "sum", {x, b.linear("down", g, hidden, false)});
    }
    case 2: {
      const std::int64_t groups = pick(1, 3), per_group = pick(1, 2), dim = pick(1, 3);
      const auto heads = [&](const char* name, const char* label, std::int64_t n) {
        const ValueId flat = b.linear(name, x, {label, n * dim, dim}, false);
        return b.op("reshape", fmt::format("{}.heads", name), {flat},
                    {{"pattern", std::string("b s (h head_dim) -> b s h head_dim")},
                     {"sizes", fmt::format("head_dim={}", dim)}});
      };
      const ValueId q = heads("q", "heads", groups * per_group);
      const ValueId k = heads("k", "kv_heads", groups);
      const ValueId v = heads("v", "kv_heads", groups);
      const ValueId y = b.op("attention", "core", {q, k, v}, {{"causal", chance(50)}});
      const ValueId flat = b.op("reshape", "merge", {y},
                                {{"pattern", std::string("b s h head_dim -> b s (h head_dim)")}});
      return b.op("add", "sum", {x, b.linear("o", flat, hidden, false)});
    }
    case 3:
      return b.layer_norm("norm", x, chance(50));
    case 4:
      return b.op("softmax", "softmax", {x});
    case 5:  // A skip connection.
      return b.op("mul", "mul",
                  {x, earlier_[static_cast<std::size_t>(
                          pick(0, static_cast<std::int64_t>(earlier_.size()) - 1))]});
    case 6: {  // A parameter that several blocks use, alike on all stages.
      if (!alike_) return b.op("relu", "relu", {x});
      if (!tied_.valid()) tied_ = b.parameter("tied.weight", {hidden, hidden});
      return b.op("linear", "tied", {x, tied_});
    }
    default: {
      const ValueId t =
          b.op("transpose", "turn", {x}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
      return b.op("matmul", "mix", {b.op("matmul", "scores", {x, t}), x});
    }
  }
}

Graph Maker::make_graph() {
  GraphBuilder b("random");
  const Dim batch{"batch", batch_, 1};
  const Dim seq{"seq", seq_, 1};
  const Dim hidden{"hidden", hidden_, 1};
  const std::int64_t vocab = pick(3, 17);
  const ValueId ids = b.input("ids", {DType::kI64, {batch, seq}});
  ValueId x =
      b.op("embedding", "embed", {ids, b.parameter("embed.weight", {{"vocab", vocab, 1}, hidden})});
  earlier_.push_back(x);
  const std::int64_t blocks = pick(1, 6);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto scope = b.scope(fmt::format("layers.{}", i));
    x = block(b, x);
    earlier_.push_back(x);
  }
  const ValueId labels = b.input("labels", {DType::kI64, {batch, seq}});
  b.op("cross_entropy", "loss", {b.linear("head", x, {"vocab", vocab, 1}, chance(50)), labels});
  return b.finish();
}

Stage Maker::make_stage(int first_device) {
  Stage stage;
  stage.mesh.first_device = first_device;
  int stride = 1;
  const std::int64_t axes = pick(0, 3);
  for (std::int64_t i = 0; i < axes; ++i) {
    const int size = static_cast<int>(pick(2, 3));
    stage.mesh.axes.push_back({fmt::format("a{}", i), size, stride});
    stride *= size;
  }
  // The last axis, if any, carries replicas: it splits nothing but samples.
  if (axes > 0 && chance(70)) {
    const int last = static_cast<int>(axes) - 1;
    stage.roles.data = {last};
    constexpr StateSharding kStates[] = {StateSharding::kNone, StateSharding::kZero1,
                                         StateSharding::kZero2, StateSharding::kZero3};
    stage.state = kStates[pick(0, 3)];
    if (stage.state != StateSharding::kNone) {
      stage.state_axes = {last};
      stage.expert_state_axes = {last};
    }
  }
  constexpr Recompute kModes[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  stage.recompute = kModes[pick(0, 2)];
  return stage;
}

// Every axis on at most one factor, never more parts than a factor has units on any stage.
OpOverride Maker::strategy(const Graph& graph, int index, const std::vector<Stage>& stages,
                           std::int64_t samples) {
  const Op& op = graph.ops[static_cast<std::size_t>(index)];
  std::vector<TensorType> types, results;
  for (const auto* ids : {&op.inputs, &op.outputs}) {
    auto& list = ids == &op.inputs ? types : results;
    for (ValueId id : *ids) {
      list.push_back(graph.value(id).type);
      for (Dim& dim : list.back().dims) {
        if (dim.name == "batch") dim.size = samples * dim.unit;
      }
    }
  }
  const Rule rule = rule_of(find_op(op.kind), {op.attrs, types, {}});
  std::vector<std::vector<std::string>> axes(rule.factors.size());
  for (int a = 0; a < 3; ++a) {
    const auto f =
        static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(rule.factors.size()) - 1));
    const Factor& factor = rule.factors[f];
    if (factor.kind == FactorKind::kFrozen || factor.kind == FactorKind::kHalo) continue;
    axes[f].push_back(fmt::format("a{}", a));
    for (const Stage& stage : stages) {
      bool legal = !stage.roles.data.contains(a) || factor.label == "batch";
      try {
        Strategy rest;
        rest.factors.resize(rule.factors.size());
        for (std::size_t g = 0; g < axes.size(); ++g) {
          for (const std::string& name : axes[g])
            if (g != f) rest.factors[g].push_back(stage.mesh.axis(name));
        }
        check_strategy(
            overridden(rest, rule, {false, {{factor.id, axes[f]}}}, stage.roles, stage.mesh), rule,
            types, results, stage.mesh);
      } catch (const Error&) {
        legal = false;
      }
      if (!legal) {
        axes[f].pop_back();
        break;
      }
    }
  }
  OpOverride result;
  result.replicate = chance(50);
  for (std::size_t f = 0; f < axes.size(); ++f) {
    // Letters tell factors apart, labels may repeat.
    if (!axes[f].empty()) result.splits.push_back({rule.factors[f].id, axes[f]});
  }
  return result;
}

RandomPlan Maker::make() {
  RandomPlan made;
  const std::int64_t micro_batches = pick(1, 4);
  const std::int64_t samples = pick(1, 6);
  batch_ = micro_batches * samples;
  seq_ = pick(1, 7);
  alike_ = chance(50);
  hidden_ = pick(2, 9);
  made.graph = make_graph();
  made.segments = find_segments(made.graph);
  Plan& plan = made.plan;
  plan.global_batch = batch_;
  plan.micro_batches = micro_batches;
  plan.training.dtype = DType::kF32;
  const auto segments = static_cast<std::int64_t>(made.segments.size());
  const int stages = static_cast<int>(pick(1, std::min<std::int64_t>(segments, 4)));
  // Any schedule that takes the shape; bidirectional ones hold every parameter twice.
  ScheduleShape shape{stages, 1, static_cast<int>(micro_batches), {}, {}};
  const Schedule* schedule = nullptr;
  while (schedule == nullptr) {
    const Schedule* s = all_schedules()[static_cast<std::size_t>(
        pick(0, static_cast<std::int64_t>(all_schedules().size()) - 1))];
    shape.chunks_per_stage = static_cast<int>(pick(1, 2));
    if (s->slices || s->recycles || s->takes_everywhere || shape.chunks() > segments) continue;
    if ((s->replicas == 1 || alike_) && refusal(*s, shape).empty()) schedule = s;
  }
  plan.schedule = schedule->name;
  int first_device = 0;
  for (int s = 0; s < stages; ++s) {
    Stage stage = s > 0 && alike_ ? plan.stages[0] : make_stage(first_device);
    stage.mesh.first_device = first_device;
    first_device += stage.mesh.device_count();
    plan.stages.push_back(std::move(stage));
  }
  std::vector<int> cuts;
  for (int i = 1; i < static_cast<int>(segments); ++i) cuts.push_back(i);
  std::shuffle(cuts.begin(), cuts.end(), random_);
  cuts.resize(static_cast<std::size_t>(shape.chunks() - 1));
  std::sort(cuts.begin(), cuts.end());
  for (int c = 0; c < schedule->replicas * shape.chunks(); ++c) {
    const auto i = static_cast<std::size_t>(c % shape.chunks());
    plan.chunks.push_back({schedule->stage_of(shape, c), i == 0 ? 0 : cuts[i - 1],
                           i < cuts.size() ? cuts[i] : static_cast<int>(segments),
                           c / shape.chunks()});
  }
  auto overrides = std::make_shared<Overrides>();
  int tied_rule = -1;
  for (std::size_t op = 0; op < made.graph.ops.size(); ++op) {
    overrides->rule_of_op.push_back(static_cast<std::int32_t>(op));
    // Operators that share a parameter split it alike.
    if (tied_rule >= 0 && made.graph.ops[op].name.ends_with("tied")) {
      overrides->rules.push_back(overrides->rules[static_cast<std::size_t>(tied_rule)]);
      continue;
    }
    if (made.graph.ops[op].name.ends_with("tied")) tied_rule = static_cast<int>(op);
    // Only the stage that runs the operator has to have the axes.
    std::vector<Stage> homes;
    for (const Chunk& chunk : plan.chunks) {
      const Segment& first = made.segments[static_cast<std::size_t>(chunk.first_segment)];
      const Segment& last = made.segments[static_cast<std::size_t>(chunk.last_segment) - 1];
      if (static_cast<int>(op) >= first.first_op && static_cast<int>(op) < last.last_op) {
        homes.push_back(plan.stages[static_cast<std::size_t>(chunk.stage)]);
      }
    }
    overrides->rules.push_back(strategy(made.graph, static_cast<int>(op), homes, samples));
  }
  plan.overrides = std::move(overrides);
  return made;
}

}  // namespace

RandomPlan random_plan(std::uint64_t seed) { return Maker(seed).make(); }

}  // namespace meshwright
