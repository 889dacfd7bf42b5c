#include "emit/megatron_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "base/error.h"

namespace meshwright {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string parse_error(std::string_view text) {
  try {
    parse_megatron_layout(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MegatronLayout, UnrollsGroupsAndUnits) {
  EXPECT_THAT(parse_megatron_layout("Et|tt|tL").stages, ElementsAre("Et", "tt", "tL"));
  EXPECT_THAT(parse_megatron_layout("Et*2|(t*3|)*2,t*2|L").stages,
              ElementsAre("Ett", "ttt", "ttt", "tt", "L"));
  EXPECT_THAT(parse_megatron_layout("E|(t|)*3,m|m||L").stages,
              ElementsAre("E", "t", "t", "t", "m", "m", "", "L"));
  EXPECT_THAT(parse_megatron_layout("(t|t)*2").stages, ElementsAre("t", "tt", "t"));
  EXPECT_THAT(parse_megatron_layout("|*3").stages, ElementsAre("", "", "", ""));
  EXPECT_THAT(parse_megatron_layout("Et*0L").stages, ElementsAre("EL"));
  EXPECT_THAT(parse_megatron_layout("").stages, ElementsAre(""));
}

// NVIDIA-NeMo/Megatron-Bridge#5391: 80 layers on 8 x 5 stages.
TEST(MegatronLayout, ReadsALayoutFromPractice) {
  const auto layout = parse_megatron_layout("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL");
  ASSERT_EQ(layout.stages.size(), 40u);
  const auto layers = layers_of(layout, 8);
  ASSERT_EQ(layers.size(), 8u);
  EXPECT_THAT(layers[0], ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(layers[3], ElementsAre(2, 2, 2, 2, 3));
  EXPECT_THAT(layers[7], ElementsAre(2, 2, 2, 2, 1));
  EXPECT_EQ(layout_fault(layout, 8, 80, 0), "");
}

TEST(MegatronLayout, RefusesBadText) {
  EXPECT_THAT(parse_error("Et|x|L"), HasSubstr("\"x\" is no pipeline layout unit (stage 1)"));
  EXPECT_THAT(parse_error("E(t|)L"), HasSubstr("a group as (t*2|)*3: it needs a count"));
  EXPECT_THAT(parse_error("E((t|)*2)*3L"), HasSubstr("cannot nest"));
  EXPECT_THAT(parse_error("Et*L"), HasSubstr("a count follows one letter or one group"));
  EXPECT_THAT(parse_error("Et*2*3L"), HasSubstr("\"*\" is no pipeline layout unit"));
  EXPECT_THAT(parse_error("Et\x01L"), HasSubstr("\\x01"));
  EXPECT_THAT(parse_error("Et*99999999999999999999L"), HasSubstr("unrolls to more than"));
  EXPECT_EQ(parse_error("(t*100|)*1000"), "no error");
  EXPECT_THAT(parse_error("(t*10000|)*10000"), HasSubstr("unrolls to more than"));
  EXPECT_THAT(parse_error(std::string(2'000'000, 't')), HasSubstr("at most"));
}

TEST(MegatronLayout, PrintsTheShortForm) {
  const auto printed = [](std::string_view text) {
    return print_megatron_layout(parse_megatron_layout(text));
  };
  EXPECT_EQ(printed("Ett|tt|tt|tt|ttL"), "Ett|(tt|)*3,ttL");
  EXPECT_EQ(printed("Etttt|tttttt|tttttL"), "Et*4|t*6|t*5L");
  EXPECT_EQ(printed("EttL"), "EttL");
  EXPECT_EQ(printed("E|t||||||tL"), "E|t||*5,tL");
  EXPECT_EQ(printed("||||"), "|*4");
  EXPECT_EQ(printed("tttt|tttt|tttt"), "(t*4|)*2,t*4");
  EXPECT_EQ(printed(""), "");
}

TEST(MegatronLayout, NamesTheFault) {
  const auto fault = [](std::string_view text, std::int64_t pp, std::int64_t layers,
                        std::int64_t mtp = 0) {
    return layout_fault(parse_megatron_layout(text), pp, layers, mtp);
  };
  EXPECT_EQ(fault("Et|tL", 2, 2), "");
  EXPECT_EQ(fault("E|t|t|L", 2, 2), "");
  EXPECT_EQ(fault("E|t|t|mL", 2, 2, 1), "");
  EXPECT_EQ(fault("E|t|tm|L", 2, 2, 1), "");  // prediction layers may have a stage of their own
  EXPECT_EQ(fault("t|tL", 2, 2), "the layout must start with the embedding E");
  EXPECT_EQ(fault("|", 2, 0), "the layout must start with the embedding E");
  EXPECT_EQ(fault("Et|t", 2, 2), "the layout must end with the loss L");
  EXPECT_EQ(fault("Et|EtL", 2, 2), "the embedding E appears 2 times");
  EXPECT_EQ(fault("EtL|tL", 2, 2), "the loss L appears 2 times");
  EXPECT_EQ(fault("Et|tL", 2, 3), "the layout holds 2 decoder layers, num-layers is 3");
  EXPECT_EQ(fault("Et|tL", 2, 2, 1), "the layout holds 0 prediction layers m, mtp-num-layers is 1");
  EXPECT_EQ(fault("Et|mtL", 2, 2, 1), "a decoder layer t stands behind a prediction layer m");
  EXPECT_EQ(fault("Ett|m||L", 2, 2, 1),
            "stage 1 holds a prediction layer m but is not its rank's last virtual stage");
  EXPECT_EQ(fault("Ett|m|mL", 3, 2, 2), "the prediction layers m are spread over several stages");
}

TEST(MegatronLayout, MadeFromLayerCounts) {
  const std::vector<std::int64_t> counts = {1, 2, 2, 1};
  EXPECT_EQ(print_megatron_layout(make_megatron_layout(counts)), "Et|(tt|)*2,tL");
  EXPECT_EQ(print_megatron_layout(make_megatron_layout(counts, 2)), "Et|(tt|)*2,tmmL");
}

TEST(MegatronLayout, BalancedSplits) {
  // ISEEKYAN/Megatron-LM#47: 6 layers on 4 stages.
  EXPECT_THAT(balanced_layers(6, 4), ElementsAre(1, 2, 2, 1));
  EXPECT_THAT(balanced_layers(32, 1), ElementsAre(32));
  EXPECT_THAT(balanced_layers(61, 8), ElementsAre(7, 8, 8, 8, 8, 8, 8, 6));
  EXPECT_THAT(balanced_layers(1, 4), ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(balanced_layers(0, 3), ElementsAre(0, 0, 0));
}

TEST(MegatronLayout, BalancedSplitsHoldEveryLayer) {
  EXPECT_TRUE(rc::check("layers are kept, stages differ by one unit", [] {
    const auto layers = *rc::gen::inRange<std::int64_t>(0, 200);
    const auto stages = *rc::gen::inRange<std::int64_t>(1, 40);
    const auto split = balanced_layers(layers, stages);
    RC_ASSERT(static_cast<std::int64_t>(split.size()) == stages);
    RC_ASSERT(std::accumulate(split.begin(), split.end(), std::int64_t{0}) == layers);
    auto weights = split;
    ++weights.front();
    ++weights.back();
    const auto [least, most] = std::ranges::minmax(weights);
    if (layers + 2 >= stages) RC_ASSERT(most - least <= 1);
    RC_ASSERT(std::ranges::min(split) >= 0);
    RC_ASSERT(layout_fault(make_megatron_layout(split), stages, layers, 0).empty());
  }));
}

TEST(MegatronLayout, ParseOfPrintIsTheSame) {
  const auto stage =
      rc::gen::container<std::string>(rc::gen::element('E', 't', 't', 't', 'm', 'L'));
  EXPECT_TRUE(rc::check("random stages", [&] {
    MegatronLayout layout;
    // Runs of equal stages are what the printer folds, so make them likely.
    for (const auto& [text, repeats] :
         *rc::gen::nonEmpty(rc::gen::container<std::vector<std::pair<std::string, int>>>(
             rc::gen::pair(stage, rc::gen::inRange(1, 6)))))
      layout.stages.insert(layout.stages.end(), static_cast<std::size_t>(repeats), text);
    RC_ASSERT(parse_megatron_layout(print_megatron_layout(layout)) == layout);
  }));
}

TEST(MegatronLayout, AnyTextGivesALayoutOrAnError) {
  EXPECT_TRUE(rc::check("random text over the alphabet", [] {
    const auto text = *rc::gen::container<std::string>(
        rc::gen::element('E', 't', 'm', 'L', '|', '(', ')', '*', ',', '0', '1', '3', 'x'));
    try {
      const auto layout = parse_megatron_layout(text);
      RC_ASSERT(parse_megatron_layout(print_megatron_layout(layout)) == layout);
    } catch (const Error&) {
    }
  }));
}

}  // namespace
}  // namespace meshwright
