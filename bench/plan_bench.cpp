#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "cluster/cluster.h"
#include "import/import.h"
#include "ops/builder.h"
#include "plan/lower.h"
#include "plan/plan.h"
#include "verify/verify.h"

namespace meshwright {
namespace {

// Layers of ten operators, no two alike.
Graph long_graph(int ops) {
  GraphBuilder b("long");
  ValueId x = b.input("ids", {DType::kI64, {{"batch", 64}, {"seq", 128}}});
  x = b.op("embedding", "embed",
           {x, b.parameter("embed.weight", {{"vocab", 1024}, {"hidden", 64}})});
  for (int layer = 0; layer < ops / 10; ++layer) {
    const auto scope = b.scope(fmt::format("layers.{}", layer));
    ValueId h = b.rms_norm("norm", x);
    // Widths tell layers apart.
    ValueId up = b.linear("up", h, {"ffn", 64 + 8 * layer, 1}, false);
    ValueId gate = b.linear("gate", h, {"ffn", 64 + 8 * layer, 1}, false);
    ValueId g = b.op("gated", "act", {gate, up}, {{"act", std::string("silu")}});
    ValueId down = b.linear("down", g, {"hidden", 64, 1}, false);
    x = b.op("add", "add", {x, down});
    h = b.rms_norm("norm2", x);
    h = b.op("gelu", "gelu", {h});
    h = b.linear("mix", h, {"hidden", 64, 1}, false);
    x = b.op("add", "add2", {x, h});
  }
  const ValueId labels = b.input("labels", {DType::kI64, {{"batch", 64}, {"seq", 128}}});
  x = b.linear("head", x, {"vocab", 1024, 1}, false);
  b.op("cross_entropy", "loss", {x, labels});
  return b.finish();
}

Plan staged(const Graph& graph, const std::vector<Segment>& segments, Degrees degrees) {
  std::vector<int> cuts;
  const int count = static_cast<int>(segments.size());
  for (int s = 1; s < degrees.pp; ++s)
    cuts.push_back(static_cast<int>(std::int64_t{count} * s / degrees.pp));
  const Cluster cluster = read_cluster(fmt::format("dgx-h100:{}", (degrees.devices() + 7) / 8));
  return make_plan(graph, segments, cluster, {}, graph.values[0].type.dims[0].size, degrees, cuts);
}

// 64 stages of 8 devices.
void BM_LowerLongGraph(benchmark::State& state) {
  const Graph graph = long_graph(static_cast<int>(state.range(0)));
  const auto segments = find_segments(graph);
  const Plan plan = staged(
      graph, segments,
      {.pp = 64, .dp = 2, .tp = 4, .sp = true, .micro_batch = 1, .zero = StateSharding::kZero1});
  for (auto _ : state) benchmark::DoNotOptimize(lower(plan, graph, segments));
  state.counters["ops"] = static_cast<double>(graph.ops.size());
}
BENCHMARK(BM_LowerLongGraph)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_LowerLlama405B(benchmark::State& state) {
  ImportOptions options;
  options.global_batch = 2048;
  const Model model = import_model("llama-3.1-405b", options);
  const auto segments = find_segments(model.graph);
  const Plan plan = staged(
      model.graph, segments,
      {.pp = 16, .dp = 128, .tp = 8, .sp = true, .micro_batch = 1, .zero = StateSharding::kZero1});
  for (auto _ : state) benchmark::DoNotOptimize(lower(plan, model.graph, segments));
}
BENCHMARK(BM_LowerLlama405B)->Unit(benchmark::kMillisecond);

// The proof that a plan computes what the graph says.
void BM_VerifyLongGraph(benchmark::State& state) {
  const Graph graph = long_graph(static_cast<int>(state.range(0)));
  const auto segments = find_segments(graph);
  const Plan plan = staged(
      graph, segments,
      {.pp = 64, .dp = 2, .tp = 4, .sp = true, .micro_batch = 1, .zero = StateSharding::kZero1});
  const Program program = lower(plan, graph, segments);
  for (auto _ : state) {
    const VerifyReport report = verify(program, plan, graph, segments);
    if (!report.proved()) state.SkipWithError(to_string(report).c_str());
  }
}
BENCHMARK(BM_VerifyLongGraph)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_VerifyLlama405B(benchmark::State& state) {
  ImportOptions options;
  options.global_batch = 2048;
  const Model model = import_model("llama-3.1-405b", options);
  const auto segments = find_segments(model.graph);
  const Plan plan = staged(
      model.graph, segments,
      {.pp = 16, .dp = 128, .tp = 8, .sp = true, .micro_batch = 1, .zero = StateSharding::kZero1});
  const Program program = lower(plan, model.graph, segments);
  for (auto _ : state) {
    const VerifyReport report = verify(program, plan, model.graph, segments);
    if (!report.proved()) state.SkipWithError(to_string(report).c_str());
  }
}
BENCHMARK(BM_VerifyLlama405B)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace meshwright
