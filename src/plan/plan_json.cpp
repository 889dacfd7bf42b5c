#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/spelling.h"
#include "plan/plan.h"

namespace meshwright {
namespace {

constexpr int kFormatVersion = 1;
constexpr std::int64_t kMaxStages = 100000;
constexpr std::int64_t kMaxOrderRules = 10000;

Json axis_names(const AxisList& list, const Mesh& mesh) {
  Json names = Json::array();
  for (int axis : list) names.push_back(mesh.axes[static_cast<std::size_t>(axis)].name);
  return names;
}

// Typed reading whose errors carry the JSON pointer.
class Node {
 public:
  Node(const Json& json, std::string place) : json_(json), place_(std::move(place)) {}

  Node at(const std::string& key) const {
    if (!json_.is_object()) throw Error("must be an object", place_);
    const auto it = json_.find(key);
    if (it == json_.end()) throw Error(fmt::format("key '{}' is missing", key), place_);
    return {*it, place_ + "/" + key};
  }
  /// Throws when there are other keys than these.
  void only(const std::vector<std::string>& keys) const {
    if (!json_.is_object()) throw Error("must be an object", place_);
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::vector<std::string> near = nearest_names(key, keys, 1);
      throw Error(fmt::format("unknown key {}", in_quotes(key)), place_,
                  near.empty() ? "" : fmt::format("did you mean '{}'?", near[0]));
    }
  }
  bool has(const std::string& key) const { return json_.is_object() && json_.contains(key); }
  std::int64_t integer(std::int64_t low, std::int64_t high) const {
    if (!json_.is_number_integer()) throw Error("must be an integer", place_);
    if (json_.is_number_unsigned() && json_.get<std::uint64_t>() > std::uint64_t{1} << 62) {
      throw Error("is too large", place_);
    }
    const auto value = json_.get<std::int64_t>();
    if (value < low || value > high) {
      throw Error(fmt::format("must be between {} and {}: {}", low, high, value), place_);
    }
    return value;
  }
  int small(std::int64_t low, std::int64_t high) const {
    return static_cast<int>(integer(low, high));
  }
  std::string text() const {
    if (!json_.is_string()) throw Error("must be a string", place_);
    return json_.get<std::string>();
  }
  bool is_text() const { return json_.is_string(); }
  bool flag() const {
    if (!json_.is_boolean()) throw Error("must be true or false", place_);
    return json_.get<bool>();
  }
  std::vector<Node> list(std::size_t max) const {
    if (!json_.is_array()) throw Error("must be a list", place_);
    if (json_.size() > max) throw Error(fmt::format("has more than {} entries", max), place_);
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < json_.size(); ++i) {
      nodes.emplace_back(json_[i], fmt::format("{}/{}", place_, i));
    }
    return nodes;
  }
  template <class Parse>
  auto parsed(Parse&& parse) const {
    try {
      return parse(text());
    } catch (const Error& e) {
      throw e.within(place_);
    }
  }
  const std::string& place() const { return place_; }

 private:
  const Json& json_;
  std::string place_;
};

AxisList read_axes(const Node& node, const Mesh& mesh) {
  AxisList list;
  for (const Node& name : node.list(AxisList::kCapacity)) {
    const int axis = mesh.axis(name.text());
    if (axis < 0) throw Error(fmt::format("no axis is named '{}'", name.text()), name.place());
    if (list.contains(axis)) throw Error(fmt::format("axis '{}' twice", name.text()), name.place());
    list.push_back(axis);
  }
  return list;
}

struct DegreeField {
  const char* key;
  int Degrees::* field;
};
constexpr DegreeField kDegreeFields[] = {
    {"pp", &Degrees::pp},   {"vpp", &Degrees::vpp},
    {"dp", &Degrees::dp},   {"cp", &Degrees::cp},
    {"tp", &Degrees::tp},   {"ep", &Degrees::ep},
    {"etp", &Degrees::etp}, {"zero_group", &Degrees::zero_group},
};

Json stage_to_json(const Stage& stage) {
  Json axes = Json::array();
  for (const MeshAxis& axis : stage.mesh.axes) {
    axes.push_back({{"name", axis.name}, {"size", axis.size}, {"stride", axis.stride}});
  }
  Json roles = Json::object();
  for (const NamedRole& f : named_roles()) {
    if (!(stage.roles.*f.field).empty())
      roles[f.name] = axis_names(stage.roles.*f.field, stage.mesh);
  }
  roles["sequence_parallel"] = stage.roles.sequence_parallel;
  return {{"first_device", stage.mesh.first_device},
          {"axes", axes},
          {"roles", roles},
          {"recompute", recompute_name(stage.recompute)},
          {"state_sharding", state_sharding_name(stage.state)},
          {"state_axes", axis_names(stage.state_axes, stage.mesh)},
          {"expert_state_axes", axis_names(stage.expert_state_axes, stage.mesh)}};
}

Stage stage_from_json(const Node& node) {
  node.only({"first_device", "axes", "roles", "recompute", "state_sharding", "state_axes",
             "expert_state_axes"});
  Stage stage;
  stage.mesh.first_device = node.at("first_device").small(0, 1 << 30);
  for (const Node& axis : node.at("axes").list(AxisList::kCapacity)) {
    axis.only({"name", "size", "stride"});
    MeshAxis a{axis.at("name").text(), axis.at("size").small(1, 1 << 24),
               axis.at("stride").small(1, 1 << 24)};
    if (stage.mesh.axis(a.name) >= 0)
      throw Error(fmt::format("axis '{}' twice", a.name), axis.place());
    stage.mesh.axes.push_back(std::move(a));
  }
  double devices = 1;
  for (const MeshAxis& a : stage.mesh.axes) devices *= a.size;
  if (devices > 1 << 24) throw Error("mesh has more than 2^24 devices", node.place());
  const Node roles = node.at("roles");
  std::vector<std::string> known = {"sequence_parallel"};
  for (const NamedRole& f : named_roles()) known.emplace_back(f.name);
  roles.only(known);
  for (const NamedRole& f : named_roles()) {
    if (roles.has(std::string(f.name)))
      stage.roles.*f.field = read_axes(roles.at(std::string(f.name)), stage.mesh);
  }
  stage.roles.sequence_parallel =
      roles.has("sequence_parallel") && roles.at("sequence_parallel").flag();
  stage.recompute = node.at("recompute").parsed(parse_recompute);
  stage.state = node.at("state_sharding").parsed(parse_state_sharding);
  stage.state_axes = read_axes(node.at("state_axes"), stage.mesh);
  stage.expert_state_axes = read_axes(node.at("expert_state_axes"), stage.mesh);
  return stage;
}

Json passes_to_json(const PassSet& passes) {
  Json json = {{"phase", phase_name(passes.phase)}, {"chunk", passes.chunk}};
  if (passes.micro_batch == PassSet::kAll)
    json["micro_batch"] = "all";
  else if (passes.micro_batch == PassSet::kEach)
    json["micro_batch"] = "each";
  else
    json["micro_batch"] = passes.micro_batch;
  return json;
}

PassSet passes_from_json(const Node& node) {
  PassSet passes;
  passes.phase = node.at("phase").parsed([](std::string_view name) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kWeight}) {
      if (phase_name(phase) == name) return phase;
    }
    throw Error(fmt::format("unknown pass '{}'", name), {}, "legal: forward, backward, weight");
  });
  passes.chunk = node.at("chunk").small(0, kMaxStages);
  const Node micro_batch = node.at("micro_batch");
  if (!micro_batch.is_text()) {
    passes.micro_batch = micro_batch.small(0, 1 << 24);
    return passes;
  }
  passes.micro_batch = micro_batch.parsed([](std::string_view name) {
    if (name == "all") return PassSet::kAll;
    if (name == "each") return PassSet::kEach;
    throw Error(fmt::format("unknown micro-batch '{}'", name), {}, "a number, \"all\" or \"each\"");
  });
  return passes;
}

}  // namespace

Json plan_to_json(const Plan& plan, const std::vector<Segment>& segments) {
  Json degrees = Json::object();
  for (const DegreeField& f : kDegreeFields) degrees[f.key] = plan.degrees.*f.field;
  degrees["sp"] = plan.degrees.sp;
  degrees["micro_batch"] = plan.degrees.micro_batch;
  degrees["zero"] = state_sharding_name(plan.degrees.zero);
  degrees["recompute"] = recompute_name(plan.degrees.recompute);
  degrees["pp_inside_dp"] = plan.degrees.pp_inside_dp;
  Json stages = Json::array();
  for (const Stage& stage : plan.stages) stages.push_back(stage_to_json(stage));
  Json chunks = Json::array();
  for (const Chunk& c : plan.chunks) {
    chunks.push_back({{"stage", c.stage},
                      {"first", segments[static_cast<std::size_t>(c.first_segment)].name},
                      {"last", segments[static_cast<std::size_t>(c.last_segment) - 1].name}});
    if (c.replica != 0) chunks.back()["replica"] = c.replica;
  }
  Json json = {{"format", "meshwright-plan"},
               {"version", kFormatVersion},
               {"training",
                {{"dtype", dtype_name(plan.training.dtype)},
                 {"optimizer", plan.training.optimizer},
                 {"gradient_dtype", dtype_name(plan.training.gradient_dtype)}}},
               {"global_batch", plan.global_batch},
               {"micro_batches", plan.micro_batches},
               {"schedule", plan.schedule},
               {"degrees", degrees},
               {"stages", stages},
               {"chunks", chunks}};
  for (const OrderRule& rule : plan.order) {
    json["order"].push_back(
        {{"before", passes_to_json(rule.before)}, {"after", passes_to_json(rule.after)}});
  }
  return json;
}

Plan plan_from_json(const Json& json, const std::vector<Segment>& segments,
                    std::string_view source) {
  const Node root(json, fmt::format("{}: ", source));
  if (root.at("format").text() != "meshwright-plan")
    throw Error("not a meshwright plan", std::string(source));
  if (const Node version = root.at("version");
      version.integer(0, std::int64_t{1} << 62) != kFormatVersion) {
    throw Error(fmt::format("version {} of the format is not known",
                            version.integer(0, std::int64_t{1} << 62)),
                version.place(), fmt::format("this program reads version {}", kFormatVersion));
  }
  // What belongs to the request around the plan is read elsewhere.
  root.only({"format",     "version",   "training", "global_batch", "micro_batches",
             "schedule",   "degrees",   "stages",   "chunks",       "order",
             "transforms", "overrides", "model",    "graph",        "cluster",
             "cost_model", "profile",   "engine",   "max_memory",   "predicted"});
  Plan plan;
  const Node training = root.at("training");
  training.only({"dtype", "optimizer", "gradient_dtype"});
  plan.training.dtype = training.at("dtype").parsed(parse_dtype);
  plan.training.optimizer = training.at("optimizer").text();
  plan.training.gradient_dtype = training.at("gradient_dtype").parsed(parse_dtype);
  const auto one_of = [](const Node& node, std::initializer_list<std::string_view> legal) {
    const std::string text = node.text();
    std::string list;
    for (std::string_view l : legal) {
      if (text == l) return;
      list += fmt::format("{}{}", list.empty() ? "" : ", ", l);
    }
    throw Error(fmt::format("cannot be {}", in_quotes(text)), node.place(), "legal: " + list);
  };
  one_of(training.at("dtype"), {"bf16", "f16", "f32", "f8"});
  one_of(training.at("optimizer"), {"adamw", "adam", "sgd"});
  one_of(training.at("gradient_dtype"), {"f32", "bf16"});
  plan.global_batch = root.at("global_batch").integer(1, kMaxDimSize);
  plan.micro_batches = root.at("micro_batches").integer(1, 1 << 24);
  if (plan.global_batch % plan.micro_batches != 0) {
    throw Error(fmt::format("{} micro-batches do not divide the global batch {}",
                            plan.micro_batches, plan.global_batch),
                root.at("micro_batches").place());
  }
  plan.schedule = root.at("schedule").text();
  const Node degrees = root.at("degrees");
  std::vector<std::string> known = {"sp", "micro_batch", "zero", "recompute", "pp_inside_dp"};
  for (const DegreeField& f : kDegreeFields) known.emplace_back(f.key);
  degrees.only(known);
  for (const DegreeField& f : kDegreeFields)
    plan.degrees.*f.field = degrees.at(f.key).small(0, 1 << 24);
  plan.degrees.sp = degrees.at("sp").flag();
  plan.degrees.micro_batch = degrees.at("micro_batch").integer(1, kMaxDimSize);
  plan.degrees.zero = degrees.at("zero").parsed(parse_state_sharding);
  plan.degrees.recompute = degrees.at("recompute").parsed(parse_recompute);
  plan.degrees.pp_inside_dp = degrees.at("pp_inside_dp").flag();
  for (const Node& stage : root.at("stages").list(kMaxStages))
    plan.stages.push_back(stage_from_json(stage));
  const auto segment_named = [&](const Node& node) {
    const std::string name = node.text();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].name == name) return static_cast<int>(i);
    }
    throw Error(fmt::format("the model has no segment '{}'", name), node.place());
  };
  for (const Node& chunk : root.at("chunks").list(kMaxStages)) {
    chunk.only({"stage", "first", "last", "replica"});
    plan.chunks.push_back({chunk.at("stage").small(0, kMaxStages), segment_named(chunk.at("first")),
                           segment_named(chunk.at("last")) + 1,
                           chunk.has("replica") ? chunk.at("replica").small(0, 1) : 0});
  }
  if (root.has("order")) {
    for (const Node& rule : root.at("order").list(kMaxOrderRules)) {
      rule.only({"before", "after"});
      plan.order.push_back(
          {passes_from_json(rule.at("before")), passes_from_json(rule.at("after"))});
    }
  }
  return plan;
}

}  // namespace meshwright
