#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace meshwright {
namespace {

// An array of as many small objects as the argument says.
void BM_ParseJson(benchmark::State& state) {
  Json array = Json::array();
  for (int i = 0; i < state.range(0); ++i) array.push_back({{"name", "layers.17"}, {"bytes", i}});
  const std::string text = array.dump();
  for (auto _ : state) benchmark::DoNotOptimize(parse_json(text, "bench"));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(BM_ParseJson)->Arg(10)->Arg(10000);

}  // namespace
}  // namespace meshwright
