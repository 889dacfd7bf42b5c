// Checkpoints go from any plan of a model to any other: what is written under one and read under
// another is, when that writes again, the same bytes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "api/request.h"
#include "base/error.h"
#include "engine/thread_comm.h"
#include "plan/lower.h"
#include "rank/state_io.h"
#include "run/checkpoint.h"
#include "search/layout_search.h"

namespace meshwright {
namespace {

namespace fs = std::filesystem;

struct PlanCase {
  const char* wish;  ///< As for parse_wish.
  int devices;
};

// Tensor, pipeline, data and expert parallel, ZeRO 1 to 3, interleaved: on 1 to 8 ranks.
constexpr PlanCase kMoePlans[] = {
    {"pp=1,tp=1,dp=1", 1},
    {"tp=2,dp=1,pp=1", 2},
    {"dp=2,tp=1,pp=1,zero=zero3", 2},
    {"pp=4,dp=1,tp=1", 4},
    {"dp=4,ep=4,tp=1,pp=1,zero=zero1", 4},
    {"dp=2,ep=2,tp=2,pp=1,zero=zero2", 4},
    {"pp=2,vpp=2,dp=1,tp=2", 4},
    {"dp=8,tp=1,pp=1,zero=zero3", 8},
    {"pp=2,dp=2,tp=2,zero=zero1", 8},
    {"dp=3,tp=1,pp=1,zero=zero2", 3},
};

struct Ready {
  std::string name;
  std::shared_ptr<Loaded> loaded;
  Plan plan;
  Program program;
  int ranks = 1;
};

Ready prepare(const std::string& model, const PlanCase& c, const std::string& optimizer,
              std::int64_t batch) {
  Request r;
  r.model = model;
  r.import.seq = 16;
  r.import.global_batch = batch;
  r.cluster = c.devices < 4 || c.devices % 2 != 0 ? fmt::format("a100-80:1x{}", c.devices)
                                                  : fmt::format("a100-80:2x{}", c.devices / 2);
  r.training.optimizer = optimizer;
  r.restrictions = parse_wish(c.wish, {});
  Ready ready;
  ready.name = fmt::format("{} on {}", c.wish, c.devices);
  ready.loaded = std::make_shared<Loaded>(load(r));
  SearchControl control;
  control.top = 1;
  const SearchResult found = search_layouts(ready.loaded->problem(), control);
  if (found.ranking.empty()) throw Error("no plan", ready.name);
  ready.plan = found.ranking[0].plan;
  ready.program = lower(ready.plan, ready.loaded->model.graph, ready.loaded->segments);
  ready.ranks = c.devices;
  return ready;
}

/// Runs `steps` steps from a checkpoint (or the start) and writes one. Returns the losses.
std::vector<double> train(const Ready& r, const fs::path& from, std::int64_t first,
                          std::int64_t steps, const fs::path& to) {
  const Graph& graph = r.loaded->model.graph;
  ExecutorSettings settings;
  settings.seed = 7;
  const Feeds feeds(graph, settings.seed, r.plan.global_batch);
  const CheckpointInfo info{first + steps, "0123456789abcdef", graph_fingerprint(graph), "p", "{}"};
  std::vector<double> losses(static_cast<std::size_t>(steps));
  run_rank_threads(r.ranks, [&](Comm& comm) {
    Executor executor(r.program, r.plan, graph, r.loaded->segments, comm, feeds, settings);
    if (!from.empty()) {
      CheckpointReader reader(from);
      read_state(reader, executor, graph);
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      const double loss = executor.step(first + i).loss;
      if (comm.rank() == 0) losses[static_cast<std::size_t>(i)] = loss;
    }
    CheckpointWriter writer(to, info, comm.rank(), comm.size());
    write_state(writer, executor, graph);
    writer.close();
  });
  complete_checkpoint(to, first + steps, r.ranks);
  return losses;
}

/// Everything in a checkpoint, whole.
std::map<std::pair<std::string, std::string>, std::vector<std::byte>> content(const fs::path& at) {
  CheckpointReader reader(at);
  std::map<std::pair<std::string, std::string>, std::vector<std::byte>> all;
  for (const CheckpointName& n : reader.names()) {
    Box box;
    std::int64_t count = 1;
    for (const std::int64_t size : n.shape) {
      box.push_back({0, size});
      count *= size;
    }
    auto& bytes = all[{n.tensor, n.part}];
    bytes.resize(static_cast<std::size_t>(count * dtype_bytes(n.dtype)));
    reader.read(n.tensor, n.part, box, 0, count, n.dtype, bytes);
  }
  return all;
}

class CheckpointMatrix : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / fmt::format("matrix-{}", test->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Every plan's checkpoint is read under the next one, and written again; under every one with
  // MESHWRIGHT_SLOW set.
  void pairs(const std::vector<Ready>& plans) {
    const std::size_t n = plans.size();
    const bool all = std::getenv("MESHWRIGHT_SLOW") != nullptr;
    const std::vector<double> undisturbed = train(plans[0], {}, 0, 4, folder_ / "undisturbed");
    for (std::size_t a = 0; a < n; ++a) {
      const fs::path saved = folder_ / fmt::format("a{}", a);
      const std::vector<double> before = train(plans[a], {}, 0, 2, saved);
      const auto want = content(saved);
      ASSERT_FALSE(want.empty());
      for (std::size_t b = 0; b < n; ++b) {
        const std::size_t apart = (b + n - a) % n;
        if (!all && apart != 1) continue;
        const std::string pair = plans[a].name + " -> " + plans[b].name;
        const fs::path again = folder_ / fmt::format("a{}b{}", a, b);
        train(plans[b], saved, 2, 0, again);
        EXPECT_TRUE(content(again) == want) << pair;
        if (apart != 1) continue;
        // It goes on as if nothing had happened.
        const std::vector<double> after = train(plans[b], saved, 2, 2, folder_ / "on");
        fs::remove_all(folder_ / "on");
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_NEAR(before[i], undisturbed[i], 1e-9) << pair;
          EXPECT_NEAR(after[i], undisturbed[2 + i], 1e-9) << pair;
        }
      }
    }
  }

  fs::path folder_;
};

TEST_F(CheckpointMatrix, MixtureOfExpertsUnderAdam) {
  std::vector<Ready> plans;
  for (const PlanCase& c : kMoePlans) plans.push_back(prepare("moe-tiny", c, "adamw", 24));
  pairs(plans);
}

TEST_F(CheckpointMatrix, TiedParametersUnderSgd) {
  std::vector<Ready> plans;
  for (const PlanCase& c : {PlanCase{"pp=2,dp=1,tp=1", 2}, PlanCase{"dp=2,zero=zero3,pp=1,tp=1", 2},
                            PlanCase{"pp=2,vpp=2,dp=2,tp=1,zero=zero2", 4}}) {
    plans.push_back(prepare("gpt-tiny", c, "sgd", 8));
  }
  pairs(plans);
}

TEST_F(CheckpointMatrix, AnotherOptimizersStateIsMissed) {
  const PlanCase one{"pp=1,tp=1,dp=1", 1};
  train(prepare("gpt-tiny", one, "sgd", 8), {}, 0, 1, folder_ / "sgd");
  try {
    train(prepare("gpt-tiny", one, "adamw", 8), folder_ / "sgd", 1, 1, folder_ / "adam");
    ADD_FAILURE() << "read what is not there";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("moment2"));
  }
}

}  // namespace
}  // namespace meshwright
