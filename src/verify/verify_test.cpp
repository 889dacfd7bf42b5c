// What verify says: a program written by hand, and one fault at a time in lowered ones.
#include "verify/verify.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "models/test_models.h"
#include "ops/builder.h"
#include "verify/test_plans.h"

namespace meshwright {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Two linears of a loss-less graph on two devices, the middle dimension split (Megatron's MLP).
struct HandMade {
  Graph graph;
  std::vector<Segment> segments;
  Plan plan;
  Program program;
  SegmentProgram* segment = nullptr;

  HandMade() {
    GraphBuilder b("mlp", DType::kF32);
    ValueId x = b.input("x", {DType::kF32, {{"batch", 4}, {"hidden", 6}}});
    x = b.linear("layers.0.up", x, {"ffn", 8}, false);
    b.linear("layers.0.down", x, {"hidden", 6}, false);
    graph = b.finish();
    segments = find_segments(graph);
    plan.global_batch = 4;
    plan.stages.resize(1);
    plan.stages[0].mesh.axes = {{"tp", 2, 1}};
    plan.chunks.push_back({0, 0, 1, 0});
    program.segments.resize(1);
    segment = &program.segments[0];
    const ValueId w1 = graph.ops[0].inputs[1], h = graph.ops[0].outputs[0];
    const ValueId w2 = graph.ops[1].inputs[1], y = graph.ops[1].outputs[0];
    const Sharding whole = form({}, {}), rows = form({0}, {}), columns = form({}, {0});
    Sharding due = whole;
    due.partial = 1;
    enum { kX, kW1, kH, kW2, kPart, kY, kGy, kGh, kG2, kG1, kA2, kA1 };
    segment->buffers = {{graph.ops[0].inputs[0], BufferKind::kValue, whole, {}},
                        {w1, BufferKind::kValue, rows, {}},
                        {h, BufferKind::kValue, columns, {}},
                        {w2, BufferKind::kValue, columns, {}},
                        {y, BufferKind::kValue, due, {}},
                        {y, BufferKind::kValue, whole, {}},
                        {y, BufferKind::kGradient, whole, {}},
                        {h, BufferKind::kGradient, columns, {}},
                        {w2, BufferKind::kGradient, columns, {}},
                        {w1, BufferKind::kGradient, rows, {}},
                        {w2, BufferKind::kAccumulated, columns, {}},
                        {w1, BufferKind::kAccumulated, rows, {}}};
    segment->arguments = {kW1, kW2};
    segment->gradient_arguments = {kGy};
    auto& f = segment->forward;
    auto& r = segment->backward;
    compute(f, 0, Purpose::kForward, {kX, kW1}, {kH});
    compute(f, 1, Purpose::kForward, {kH, kW2}, {kPart});
    instr(f, InstrKind::kCollective, {kPart}, {kY}).group = {0};
    instr(f, InstrKind::kFree, {kPart, kY}, {});
    compute(r, 1, Purpose::kBackward, {kGy, kH, kW2, -1}, {kGh, kG2});
    instr(r, InstrKind::kFree, {kH}, {});
    compute(r, 0, Purpose::kBackward, {kGh, kX, kW1, -1}, {-1, kG1});
    instr(r, InstrKind::kAccumulate, {kG2, kG1}, {kA2, kA1});
    instr(r, InstrKind::kFree, {kGh, kG2, kG1}, {});
    segment->parameters = {{w1, 24, 0, false, false, kW1, kA1},
                           {w2, 24, 0, false, false, kW2, kA2}};
    program.chunks.push_back({0, 0, {0}, true});
    StageProgram stage;
    Instr optimizer;
    optimizer.kind = InstrKind::kOptimizer;
    optimizer.in_count = optimizer.out_count = 2;
    stage.operands = {{0, kA1}, {0, kA2}, {0, kW1}, {0, kW2}};
    stage.step = {optimizer};
    stage.copies[0] = {1, 1};
    program.stages.push_back(stage);
    program.lanes.push_back(
        {{0}, plan.stages[0].mesh, {{Phase::kForward, 0, 0}, {Phase::kBackward, 0, 0}}});
  }
  static Sharding form(AxisList first, AxisList second) {
    Sharding s;
    s.rank = 2;
    s.dims[0] = first;
    s.dims[1] = second;
    return s;
  }
  Instr& instr(std::vector<Instr>& list, InstrKind kind, std::vector<std::int32_t> in,
               std::vector<std::int32_t> out) {
    Instr i;
    i.kind = kind;
    i.operands = static_cast<std::uint32_t>(segment->operands.size());
    i.in_count = static_cast<std::uint32_t>(in.size());
    i.out_count = static_cast<std::uint32_t>(out.size());
    segment->operands.insert(segment->operands.end(), in.begin(), in.end());
    segment->operands.insert(segment->operands.end(), out.begin(), out.end());
    list.push_back(i);
    return list.back();
  }
  void compute(std::vector<Instr>& list, int op, Purpose purpose, std::vector<std::int32_t> in,
               std::vector<std::int32_t> out) {
    Instr& i = instr(list, InstrKind::kCompute, std::move(in), std::move(out));
    i.op = OpId(op);
    i.purpose = purpose;
  }
  VerifyReport report() const { return verify(program, plan, graph, segments); }
  std::string message() const {
    const VerifyReport r = report();
    return r.failure ? r.failure->message : "";
  }
};

TEST(Verify, AProgramWrittenByHand) {
  const HandMade made;
  const VerifyReport report = made.report();
  EXPECT_TRUE(report.proved()) << to_string(report);
  EXPECT_EQ(report.counts.devices, 2);
  EXPECT_EQ(report.counts.instructions, 4 + 5 + 1);
  EXPECT_EQ(report.counts.parameters, 2);
  EXPECT_THAT(to_string(report), HasSubstr("proved on 2 devices"));
}

TEST(Verify, SaysWhatIsWrong) {
  {
    HandMade m;  // The sum is left out.
    m.segment->forward.erase(m.segment->forward.begin() + 2);
    const VerifyReport report = m.report();
    ASSERT_FALSE(report.proved());
    EXPECT_EQ(report.failure->message, "used before anything fills it");
    EXPECT_EQ(report.failure->tensor, "value layers.0.down");
    EXPECT_EQ(report.failure->region, "[batch 0:4, hidden 0:6]");
    EXPECT_THAT(report.failure->instruction, HasSubstr("forward[2] of segment layers.0: free"));
    // Only what filled the buffers of the failing instruction.
    EXPECT_THAT(report.failure->history,
                ElementsAre("forward[1] of segment layers.0: compute layers.0.down",
                            HasSubstr("forward[2]")));
  }
  {
    HandMade m;  // The wrong half.
    m.segment->buffers[3].form = HandMade::form({0}, {});
    EXPECT_THAT(m.message(), HasSubstr("an operand holds another part of ffn"));
    EXPECT_EQ(m.report().failure->rank, 0);
  }
  {
    HandMade m;
    m.segment->forward[2].collective = CollectiveKind::kAllGather;
    EXPECT_EQ(m.message(), "parts of a sum that is due along tp are joined as if they were equal");
  }
  {
    HandMade m;
    m.segment->buffers[4].form.partial = 0;
    EXPECT_EQ(m.message(),
              "its form says that a sum is due along no axis, but one is due along tp");
  }
  {
    HandMade m;  // What both devices have alike must not be added.
    m.instr(m.segment->forward, InstrKind::kCollective, {1}, {1}).group = {0};
    EXPECT_EQ(m.message(), "every device along tp adds the same term: it would count 2 times");
  }
  {
    HandMade m;  // h is freed before the backward pass.
    m.instr(m.segment->forward, InstrKind::kFree, {2}, {});
    EXPECT_EQ(m.message(), "used after forward[4] freed it");
  }
  {
    HandMade m;
    m.instr(m.segment->forward, InstrKind::kFree, {3}, {});
    EXPECT_EQ(m.message(), "frees what other segments have or need");
  }
  {
    HandMade m;
    m.program.lanes[0].mesh.first_device = 1;
    EXPECT_EQ(m.message(), "its lanes run 2 devices, which are not the 2 of stage 0");
  }
  {
    HandMade m;
    m.segment->backward.pop_back();
    EXPECT_EQ(m.message(), "never freed: neither a result nor needed any more");
  }
  {
    HandMade m;
    m.segment->operands[m.segment->backward[0].operands + 1] = -1;
    EXPECT_EQ(m.message(), "operand 0 (layers.0.up) is needed for the gradient of operand 1");
  }
  {
    HandMade m;  // Half of the accumulation.
    Instr& i = m.segment->backward[3];
    m.segment->operands[i.operands + 1] = m.segment->operands[i.operands + 2];
    i.in_count = i.out_count = 1;
    EXPECT_EQ(m.message(), "lacks the gradient of layers.0.up (operand 1)");
  }
  {
    HandMade m;
    m.program.stages[0].step.clear();
    EXPECT_EQ(m.message(),
              "layers.0.up.weight is not updated, or its new value does not come to rest");
  }
  {
    HandMade m;
    std::swap(m.program.lanes[0].order[0], m.program.lanes[0].order[1]);
    EXPECT_THAT(m.message(), HasSubstr("comes before what it needs: forward of chunk 0"));
  }
  {
    HandMade m;
    m.program.lanes[0].order.pop_back();
    EXPECT_EQ(m.message(), "is missing from the order");
  }
}

TEST(Verify, RefersToWhatIsThere) {
  HandMade m;
  m.segment->operands[0] = 99;
  EXPECT_THAT([&] { m.report(); },
              testing::ThrowsMessage<Error>(HasSubstr("an operand that does not exist")));
  m = HandMade();
  m.segment = &m.program.segments[0];
  m.segment->buffers[0].form.dims[0] = {5};
  EXPECT_THAT([&] { m.report(); },
              testing::ThrowsMessage<Error>(HasSubstr("an axis that the mesh lacks")));
}

struct Lowered {
  Graph graph;
  std::vector<Segment> segments;
  Plan plan;
  Program program;

  Lowered(const TestModelSizes& sizes, const Degrees& degrees) {
    graph = test_model(sizes);
    segments = find_segments(graph);
    plan = test_plan(graph, segments, degrees, sizes.batch).value();
    program = lower(plan, graph, segments);
  }
  CounterExample failure() const {
    const VerifyReport r = verify(program, plan, graph, segments);
    return r.failure.value_or(CounterExample{});
  }
};

TEST(Verify, GradientsAreReducedAsOftenAsDue) {
  Lowered l({}, {.dp = 4, .micro_batch = 2});
  std::erase_if(l.program.stages[0].step,
                [](const Instr& i) { return i.kind == InstrKind::kCollective; });
  EXPECT_THAT(l.failure().message, HasSubstr("used before anything fills it"));
  Lowered twice({}, {.dp = 4, .micro_batch = 2});
  auto& step = twice.program.stages[0].step;
  Instr& first = step[0];
  ASSERT_EQ(first.collective, CollectiveKind::kAllReduce);
  twice.program.stages[0].operands[first.operands + first.in_count] =
      twice.program.stages[0].operands[first.operands];
  EXPECT_EQ(twice.failure().check, "step");
}

TEST(Verify, TiedParametersAreSummed) {
  Lowered l({.tied = true}, {.pp = 2, .dp = 2, .micro_batch = 2});
  for (StageProgram& s : l.program.stages) {
    std::erase_if(s.step, [](const Instr& i) { return i.tie >= 0; });
  }
  EXPECT_THAT(l.failure().message, HasSubstr("whose gradient is summed over them 0 times"));
  Lowered one({.tied = true}, {.pp = 2, .dp = 2, .micro_batch = 2});
  std::erase_if(one.program.stages[1].step, [](const Instr& i) { return i.tie >= 0; });
  EXPECT_EQ(one.failure().check, "step");
}

TEST(Verify, LinksAndTransfers) {
  Lowered l({}, {.pp = 2, .dp = 2, .micro_batch = 2});
  l.program.transfers[0].items.clear();
  EXPECT_THAT(l.failure().message, HasSubstr("no transfer brings it"));
  Lowered form({}, {.pp = 2, .dp = 2, .micro_batch = 2});
  form.program.transfers[0].items[0].to.dims[0] = {};
  EXPECT_THAT(form.failure().message, HasSubstr("said to be aligned, but devices"));
  form.program.transfers[0].aligned = false;
  EXPECT_EQ(form.failure().message, "this argument is there in another form");
  Lowered back({}, {.pp = 2, .dp = 2, .micro_batch = 2});
  for (Transfer& t : back.program.transfers) {
    if (t.gradient) t.items.clear();
  }
  EXPECT_THAT(back.failure().message, HasSubstr("its gradient goes back from chunk 1 0 times"));
}

TEST(Verify, OrdersDoNotDeadlock) {
  Lowered l({}, {.pp = 2, .micro_batch = 4});
  EXPECT_EQ(l.failure().message, "");
  // Each lane waits for the other's receive before it issues its own.
  l.program.lanes[0].order.clear();
  l.program.lanes[1].order.clear();
  for (int m = 0; m < l.program.micro_batches; ++m) {
    auto& a = l.program.lanes[0].order;
    auto& b = l.program.lanes[1].order;
    for (Phase p : {Phase::kReceive, Phase::kReceiveWait}) b.push_back({p, 0, m});
    b.push_back({Phase::kForward, 1, m});
    b.push_back({Phase::kBackward, 1, m});
    for (Phase p : {Phase::kSend, Phase::kSendWait}) b.push_back({p, 1, m});
    a.push_back({Phase::kForward, 0, m});
    a.push_back({Phase::kSend, 0, m});
  }
  auto& a = l.program.lanes[0].order;
  for (int m = 0; m < l.program.micro_batches; ++m) {
    a.push_back({Phase::kSendWait, 0, m});
  }
  for (int m = 0; m < l.program.micro_batches; ++m) {
    for (Phase p : {Phase::kReceive, Phase::kReceiveWait}) a.push_back({p, 1, m});
    a.push_back({Phase::kBackward, 0, m});
  }
  const CounterExample f = l.failure();
  EXPECT_EQ(f.check, "order");
  EXPECT_EQ(f.message, "deadlock of 2 lanes");
  EXPECT_THAT(f.history, AllOf(SizeIs(2), Contains(HasSubstr("lane 0 waits for lane 1: send wait")),
                               Contains(HasSubstr("lane 1 waits for lane 0: send wait"))));
}

TEST(Verify, MessagesComeInOrder) {
  Lowered l({}, {.pp = 2, .micro_batch = 2});
  auto& order = l.program.lanes[1].order;
  std::vector<std::size_t> receives;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i].phase == Phase::kReceive) receives.push_back(i);
  }
  ASSERT_GE(receives.size(), 2u);
  std::swap(order[receives[0]].micro_batch, order[receives[1]].micro_batch);
  const CounterExample f = l.failure();
  EXPECT_EQ(f.check, "order");
}

}  // namespace
}  // namespace meshwright
