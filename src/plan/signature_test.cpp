#include "plan/signature.h"

#include <gmock/gmock.h>

#include <set>

#include "models/test_models.h"
#include "plan/facts.h"
#include "plan/lower.h"

namespace meshwright {
namespace {

using testing::Contains;
using testing::HasSubstr;

// The signatures of one layer of a model, forward and backward.
std::set<std::string> of_layer(const TestModelSizes& sizes, const Degrees& degrees, int layer) {
  const Graph graph = test_model(sizes);
  const auto segments = find_segments(graph);
  const ModelFacts facts = model_facts(graph, segments);
  const Stage stage = make_stage(degrees, facts.all_kv_heads, 0);
  SegmentLowering lowering(graph, segments);
  const std::int64_t samples = degrees.micro_batch * degrees.dp;
  const SegmentProgram program = lowering.lower(1 + layer, stage, {}, samples);
  Signer signer(graph);
  std::set<std::string> found;
  for (const auto* list : {&program.forward, &program.backward}) {
    for (const Instr& i : *list) {
      const std::string s = signer.of(i, program, stage.mesh, samples);
      if (i.kind == InstrKind::kFree || i.kind == InstrKind::kCollective) {
        EXPECT_EQ(s, "");
      } else {
        found.insert(s);
      }
    }
  }
  return found;
}

TEST(Signature, NamesTheWorkAndNotTheLayer) {
  EXPECT_EQ(of_layer({}, {.micro_batch = 2}, 0), of_layer({}, {.micro_batch = 2}, 3));
  // Nor the size of the rest of the model.
  EXPECT_EQ(of_layer({}, {.micro_batch = 2}, 1),
            of_layer({.batch = 8, .vocab = 500, .layers = 2}, {.micro_batch = 2}, 1));
  // Two replicas of two samples do each what one does with two.
  EXPECT_EQ(of_layer({}, {.micro_batch = 2}, 0), of_layer({}, {.dp = 2, .micro_batch = 2}, 0));
}

TEST(Signature, TellsShapesAndPassesApart) {
  const auto whole = of_layer({}, {.micro_batch = 2}, 0);
  EXPECT_THAT(whole, Contains("linear forward bf16[2,128,64] bf16[256,64] -> bf16[2,128,256]"));
  EXPECT_THAT(whole, Contains(HasSubstr("linear backward bf16[2,128,256] bf16[2,128,64]")));
  const auto half = of_layer({}, {.tp = 2, .micro_batch = 2}, 0);
  EXPECT_THAT(half, Contains("linear forward bf16[2,128,64] bf16[128,64] -> bf16[2,128,128]"));
  EXPECT_NE(whole, half);
  EXPECT_NE(whole, of_layer({}, {.micro_batch = 1}, 0));
  EXPECT_THAT(whole, Contains(HasSubstr("accumulate f32")));
}

TEST(Signature, CommunicationSaysWhatTheGroupSpans) {
  const Cluster cluster = read_cluster("a100-80:2x8");
  const Mesh mesh{{{"tp", 4, 1}, {"dp", 4, 4}}, 0};
  const auto text = [&](const AxisList& axes) {
    return communication_signature(CollectiveKind::kAllReduce, comm_mesh(cluster, mesh, axes));
  };
  EXPECT_THAT(text({0}), HasSubstr("all_reduce of 4: 1 x 4 device"));
  EXPECT_THAT(text({1}), HasSubstr("2 x 2 host"));
  EXPECT_NE(text({0}), text({1}));
  EXPECT_THAT(communication_signature(CollectiveKind::kBroadcast, peer_mesh(cluster, mesh, 8)),
              testing::StartsWith("send of 2:"));
}

}  // namespace
}  // namespace meshwright
