#include "api/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/spelling.h"
#include "cluster/cluster.h"
#include "plan/lanes.h"
#include "plan/override_json.h"
#include "plan/refine_classes.h"

namespace meshwright {
namespace {

std::int64_t parse_integer(std::string_view text, std::string_view what) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(fmt::format("'{}' is not an integer", text), std::string(what));
  }
  return value;
}

// Files by their absolute path, so that the plan can be read from anywhere; names as they are.
std::string place_of(const std::string& text) {
  std::error_code error;
  if (!std::filesystem::exists(text, error)) return text;
  const std::filesystem::path absolute = std::filesystem::absolute(text, error);
  return error ? text : absolute.string();
}

struct SizeField {
  const char* key;
  std::int64_t GptSizes::* field;
};
constexpr SizeField kSizeFields[] = {
    {"layers", &GptSizes::layers}, {"hidden", &GptSizes::hidden},
    {"heads", &GptSizes::heads},   {"kv_heads", &GptSizes::kv_heads},
    {"ffn", &GptSizes::ffn},       {"head_dim", &GptSizes::head_dim},
    {"vocab", &GptSizes::vocab},   {"experts", &GptSizes::experts},
    {"top_k", &GptSizes::top_k},   {"expert_ffn", &GptSizes::expert_ffn},
};

}  // namespace

Problem Loaded::problem() const {
  Problem problem{model.graph,      segments,           cluster,
                  request.training, model.global_batch, request.cost_model,
                  request.engine,   request.objective,  request.restrictions};
  problem.profile = profile;
  if (space != nullptr) {
    std::string clash;
    problem.restrictions = both(request.restrictions, space->restrictions, clash);
    if (!clash.empty()) throw Error(clash, space->space.source);
    problem.space = space;
  }
  return problem;
}

Loaded load(Request request) {
  Loaded loaded;
  loaded.request = std::move(request);
  const Request& r = loaded.request;
  if (r.model.empty()) {
    loaded.model = gpt_model(r.sizes, r.import);
    loaded.model_name = fmt::format("gpt {}x{}", r.sizes.layers, r.sizes.hidden);
  } else {
    loaded.model = import_model(r.model, r.import);
    loaded.model_name = r.model;
  }
  if (loaded.model.graph.ops.empty()) {
    throw Error("the model has no operators: there is nothing to plan", loaded.model_name);
  }
  loaded.cluster = read_cluster(r.cluster);
  const bool profiled = r.cost_model == kProfiled.name;
  if (profiled && r.profile.empty()) {
    throw Error("the cost model profiled goes by a table of measurements", "--cost",
                "give --profile TABLE: `meshwright profile PLAN -o TABLE` measures one");
  }
  if (!profiled && !r.profile.empty()) {
    throw Error(fmt::format("the cost model {} goes by no table", r.cost_model), "--profile",
                "give --cost profiled too");
  }
  if (profiled) loaded.profile = std::make_shared<ProfileTable>(read_profile(r.profile));
  const auto apply = [&](const TransformRequest& t) {
    loaded.model.graph = apply_transform(loaded.model.graph, t);
    loaded.transforms.push_back(t);
  };
  for (const TransformRequest& t : r.transforms) apply(t);
  if (!r.space.empty()) {
    const PlanSpace space = read_space(r.space);
    for (const SpaceTransform& t : space.transforms) {
      try {
        apply({t.transform, t.match, t.factor, t.parts});
      } catch (const Error& e) {
        throw Error(fmt::format("transform {}: {}", t.name, e.message()), t.place, e.hint());
      }
    }
    loaded.segments = find_segments(loaded.model.graph);
    loaded.space =
        std::make_shared<CompiledSpace>(compile_space(space, loaded.model.graph, loaded.segments));
    if (loaded.space->overrides) refine_classes(loaded.segments, *loaded.space->overrides);
  } else {
    loaded.segments = find_segments(loaded.model.graph);
  }
  const auto& modes = r.restrictions.recompute;
  if (std::find(modes.begin(), modes.end(), Recompute::kParts) != modes.end() &&
      !has_co_shards(loaded.model.graph)) {
    throw Error("parts: no operator of the model comes in parts", "--recompute",
                "a plan space with the transform co_shard makes them: --space co-shard");
  }
  if (r.restrictions.devices > loaded.cluster.device_count()) {
    throw Error(fmt::format("{} devices are wanted, but {} has {}", r.restrictions.devices,
                            loaded.cluster.name, loaded.cluster.device_count()),
                "--devices");
  }
  for (const DeviceKind& kind : loaded.cluster.kinds) {
    const auto lacks = [&](DType dtype, FlopsPerSecond rate, std::string_view name) {
      if (r.training.dtype != dtype || rate.value > 0) return;
      throw Error(fmt::format("{} has no {} matrix units", kind.name, name), "--precision",
                  kind.bf16.value > 0   ? "use bf16"
                  : kind.fp16.value > 0 ? "use f16"
                                        : "use f32");
    };
    lacks(DType::kBf16, kind.bf16, "bf16");
    lacks(DType::kF16, kind.fp16, "fp16");
    lacks(DType::kF8, kind.fp8, "fp8");
  }
  return loaded;
}

Json plan_file_to_json(const Loaded& loaded, const Judged& judged) {
  const Request& r = loaded.request;
  Json model = Json::object();
  if (!r.model.empty()) {
    model["name"] = place_of(r.model);
  } else {
    for (const SizeField& f : kSizeFields) {
      if (r.sizes.*f.field != 0) model["sizes"][f.key] = r.sizes.*f.field;
    }
    model["sizes"]["gated"] = r.sizes.gated;
    model["sizes"]["tied"] = r.sizes.tied;
  }
  model["seq"] = loaded.model.seq;
  model["attention"] = r.import.attention;
  model["dropout"] = r.import.dropout;
  model["mtp"] = r.import.mtp;
  Json json = plan_to_json(judged.plan, loaded.segments);
  if (!loaded.transforms.empty()) {
    Json list = Json::array();
    for (const TransformRequest& t : loaded.transforms) {
      list.push_back({{"op_trans", t.transform},
                      {"match", t.match},
                      {"factor", t.factor},
                      {"parts", t.parts}});
    }
    json["transforms"] = std::move(list);
  }
  if (judged.plan.overrides != nullptr) {
    json["overrides"] =
        overrides_to_json(*judged.plan.overrides, loaded.model.graph, loaded.segments);
  }
  json["model"] = std::move(model);
  json["graph"] = {{"operators", loaded.model.graph.ops.size()},
                   {"fingerprint", graph_fingerprint(loaded.model.graph)}};
  json["cluster"] = place_of(r.cluster);
  json["cost_model"] = r.cost_model;
  if (!r.profile.empty()) json["profile"] = place_of(r.profile);
  json["engine"] = r.engine;
  json["max_memory"] = r.restrictions.max_memory;
  Json memory = Json::array();
  for (const MemoryBreakdown& m : judged.timeline.memory) memory.push_back(m.total().value);
  json["predicted"] = {{"step_seconds", judged.step().value},
                       {"memory_bytes_per_stage", std::move(memory)}};
  return json;
}

namespace {

// What counts is what stages and chunks say, also for people.
void take_degrees_from_stages(Plan& plan) {
  if (plan.stages.empty() || plan.chunks.empty()) return;
  try {
    Degrees d = degrees_of(plan, plan.stages[0], lanes_of(plan).size());
    if (d.micro_batch == 0) d.micro_batch = plan.degrees.micro_batch;
    if (d.zero_group == d.dp * d.cp) d.zero_group = 0;
    const Schedule& schedule = find_schedule(plan.schedule);
    if (schedule.vpp_max == 0) d.vpp = 1;
    plan.degrees = d;
  } catch (const Error&) {
    // A rule that checks report.
  }
}

// A plan names operators and segments of one graph. Throws Error when it was made for another.
void check_graph_of(const Json& json, const Graph& graph, const std::string& path) {
  if (!json.contains("graph")) return;  // Written by hand.
  const Json& stated = json.at("graph");
  const Json* fingerprint =
      stated.is_object() && stated.contains("fingerprint") ? &stated.at("fingerprint") : nullptr;
  if (fingerprint == nullptr || !fingerprint->is_string()) {
    throw Error("must be an object with a 'fingerprint'", path + ": /graph",
                "without the key 'graph' a plan is taken for any model");
  }
  if (fingerprint->get<std::string>() == graph_fingerprint(graph)) return;
  const auto count = stated.find("operators");
  throw Error(
      fmt::format("the plan was made for another graph{}; the model is now '{}' with {} operators",
                  count != stated.end() && count->is_number_unsigned()
                      ? fmt::format(" of {} operators", count->get<std::uint64_t>())
                      : "",
                  graph.name, graph.ops.size()),
      path + ": /graph", "plan again, or drop the key 'graph' if the plan is meant for this model");
}

}  // namespace

PlanFile open_plan_file(const std::string& path) {
  const Json json = read_json(path);
  Request r;
  try {
    const Json& model = json.at("model");
    if (model.contains("name")) {
      r.model = model.at("name").get<std::string>();
    } else {
      const Json& sizes = model.at("sizes");
      for (const SizeField& f : kSizeFields) {
        if (sizes.contains(f.key)) r.sizes.*f.field = sizes.at(f.key).get<std::int64_t>();
      }
      r.sizes.gated = sizes.value("gated", false);
      r.sizes.tied = sizes.value("tied", true);
    }
    r.import.seq = model.at("seq").get<std::int64_t>();
    r.import.attention = model.at("attention").get<std::string>();
    r.import.dropout = model.at("dropout").get<bool>();
    r.import.mtp = model.at("mtp").get<bool>();
    if (json.contains("transforms")) {
      for (const Json& t : json.at("transforms")) {
        r.transforms.push_back({t.at("op_trans").get<std::string>(),
                                t.at("match").get<std::string>(), t.at("factor").get<std::string>(),
                                t.at("parts").get<int>()});
        if (r.transforms.size() > 64) throw Error("more than 64 transforms", path);
      }
    }
    r.import.global_batch = json.at("global_batch").get<std::int64_t>();
    r.cluster = json.at("cluster").get<std::string>();
    r.cost_model = json.at("cost_model").get<std::string>();
    if (json.contains("profile")) r.profile = json.at("profile").get<std::string>();
    r.engine = json.at("engine").get<std::string>();
    r.restrictions.max_memory = json.at("max_memory").get<double>();
    if (!(r.restrictions.max_memory > 0 && r.restrictions.max_memory <= 1)) {
      throw Error(fmt::format("must be above 0 and at most 1: {}", r.restrictions.max_memory),
                  path + ": /max_memory");
    }
    r.training.dtype = parse_dtype(json.at("training").at("dtype").get<std::string>());
    r.import.dtype = r.training.dtype == DType::kF8 ? DType::kBf16 : r.training.dtype;
  } catch (const Json::exception&) {
    throw Error("not a plan file of meshwright: a key is missing or has the wrong type", path,
                "write one with `meshwright plan MODEL CLUSTER -o plan.json`");
  }
  PlanFile file;
  file.loaded = load(std::move(r));
  check_graph_of(json, file.loaded.model.graph, path);
  std::shared_ptr<const Overrides> overrides;
  if (json.contains("overrides")) {
    overrides = overrides_from_json(json.at("overrides"), file.loaded.model.graph,
                                    file.loaded.segments, path);
    refine_classes(file.loaded.segments, *overrides);
  }
  file.plan = plan_from_json(json, file.loaded.segments, path);
  file.plan.overrides = std::move(overrides);
  take_degrees_from_stages(file.plan);
  file.loaded.request.training = file.plan.training;
  return file;
}

PlanFile read_plan_file(const std::string& path) {
  PlanFile file = open_plan_file(path);
  const auto violations =
      check_plan(file.plan, file.loaded.model.graph, file.loaded.segments, file.loaded.cluster);
  if (!violations.empty()) {
    throw Error(violations[0].message, fmt::format("{}: rule {}", path, violations[0].rule),
                violations[0].hint);
  }
  return file;
}

Allowed parse_allowed(std::string_view text, std::string_view option) {
  Allowed allowed;
  const auto dots = text.find("..");
  if (dots == std::string_view::npos) {
    allowed.min = allowed.max = parse_integer(text, option);
  } else {
    if (dots > 0) allowed.min = parse_integer(text.substr(0, dots), option);
    if (dots + 2 < text.size()) allowed.max = parse_integer(text.substr(dots + 2), option);
  }
  if (allowed.min < 1 || allowed.max < allowed.min) {
    throw Error(fmt::format("'{}' allows nothing: degrees start at 1", text), std::string(option),
                "write 8, 2..8, ..8 or 2..");
  }
  return allowed;
}

Restrictions parse_wish(std::string_view text, const Restrictions& base) {
  struct Field {
    std::string_view key;
    Allowed Restrictions::* field;
  };
  constexpr Field kFields[] = {
      {"pp", &Restrictions::pp},   {"vpp", &Restrictions::vpp},         {"tp", &Restrictions::tp},
      {"cp", &Restrictions::cp},   {"dp", &Restrictions::dp},           {"ep", &Restrictions::ep},
      {"etp", &Restrictions::etp}, {"mbs", &Restrictions::micro_batch},
  };
  Restrictions wish;
  wish.max_memory = base.max_memory;
  std::vector<std::string> seen;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw Error(fmt::format("{} is not KEY=VALUE", in_quotes(part)), "--why-not",
                  "such as tp=4,pp=4");
    }
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = part.substr(equals + 1);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      throw Error(fmt::format("{} is given twice", key), "--why-not");
    }
    seen.emplace_back(key);
    const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const Field& f) { return f.key == key; });
    if (field != std::end(kFields)) {
      wish.*field->field = parse_allowed(value, fmt::format("--why-not: {}", key));
    } else if (key == "zero") {
      wish.state = {parse_state_sharding(value)};
    } else if (key == "recompute") {
      wish.recompute = {parse_recompute(value)};
    } else if (key == "schedule") {
      wish.schedule = find_schedule(value).name;
    } else if (key == "sp" && (value == "true" || value == "false")) {
      wish.sp = value == "true";
    } else {
      throw Error(fmt::format("{} is no known degree", in_quotes(part)), "--why-not",
                  "known: pp vpp tp cp dp ep etp mbs zero recompute schedule sp=true|false");
    }
  }
  return wish;
}

}  // namespace meshwright
