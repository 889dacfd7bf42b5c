#include "plan/override_json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/test_models.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

struct OverrideJson : testing::Test {
  Graph graph = test_model({});
  std::vector<Segment> segments = find_segments(graph);

  std::string message(const std::string& text) {
    try {
      overrides_from_json(Json::parse(text), graph, segments, "plan.json");
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST_F(OverrideJson, ReadsWhatItWrites) {
  Overrides o;
  o.rules = {{true, {}}, {false, {{"ffn", {"tensor", "dp0"}}, {"hidden", {}}}}};
  o.rule_of_op.assign(graph.ops.size(), -1);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const std::string& name = graph.ops[i].name;
    if (name.ends_with(".mlp.up") && name != "layers.2.mlp.up") o.rule_of_op[i] = 1;
    if (name == "embed") o.rule_of_op[i] = 0;
  }
  o.recompute.assign(segments.size(), -1);
  o.recompute[1] = 2;
  const Json json = overrides_to_json(o, graph, segments);
  EXPECT_EQ(json["operators"][1]["match"].dump(), R"(["layers.[0-1].mlp.up","layers.3.mlp.up"])");
  const auto read = overrides_from_json(json, graph, segments, "plan.json");
  EXPECT_EQ(read->rules, o.rules);
  EXPECT_EQ(read->rule_of_op, o.rule_of_op);
  EXPECT_EQ(read->recompute, o.recompute);
}

TEST_F(OverrideJson, RefusesWhatDoesNotFit) {
  EXPECT_THAT(message(R"({"operator": []})"),
              HasSubstr("unknown key \"operator\" (did you mean operators?)"));
  EXPECT_THAT(message(R"({"operators": [{"match": ["layers.*.nothing"]}]})"),
              HasSubstr("plan.json: /overrides/operators/0/match: \"layers.*.nothing\" matches no "
                        "operator of the model (was the plan made for another model?)"));
  EXPECT_THAT(message(R"({"operators": [{"match": ["embed"]}, {"match": ["**"]}]})"),
              HasSubstr("operator \"embed\" is overridden twice"));
  EXPECT_THAT(message(R"({"operators": [{"match": ["embed"], "split": {"vocab": "tensor"}}]})"),
              HasSubstr("must be a list of axes"));
  EXPECT_THAT(message(R"({"recompute": {"layers.9": "full"}})"),
              HasSubstr("the model has no segment \"layers.9\""));
  EXPECT_THAT(message(R"({"recompute": {"layers.1": "half"}})"), HasSubstr("unknown recompute"));
}

}  // namespace
}  // namespace meshwright
