#include "api/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cluster/cluster.h"

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
  return {model.graph,      segments,           cluster,
          request.training, model.global_batch, request.cost_model,
          request.engine,   request.objective,  request.restrictions};
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
  loaded.segments = find_segments(loaded.model.graph);
  loaded.cluster = read_cluster(r.cluster);
  if (r.restrictions.devices > loaded.cluster.device_count()) {
    throw Error(fmt::format("{} devices are wanted, but {} has {}", r.restrictions.devices,
                            loaded.cluster.name, loaded.cluster.device_count()),
                "--devices");
  }
  return loaded;
}

Json plan_file_to_json(const Loaded& loaded, const Judged& judged) {
  const Request& r = loaded.request;
  Json model = Json::object();
  if (!r.model.empty()) {
    model["name"] = r.model;
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
  json["model"] = std::move(model);
  json["cluster"] = r.cluster;
  json["cost_model"] = r.cost_model;
  json["engine"] = r.engine;
  json["max_memory"] = r.restrictions.max_memory;
  Json memory = Json::array();
  for (const MemoryBreakdown& m : judged.timeline.memory) memory.push_back(m.total().value);
  json["predicted"] = {{"step_seconds", judged.step().value},
                       {"memory_bytes_per_stage", std::move(memory)}};
  return json;
}

PlanFile read_plan_file(const std::string& path) {
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
    r.import.global_batch = json.at("global_batch").get<std::int64_t>();
    r.cluster = json.at("cluster").get<std::string>();
    r.cost_model = json.at("cost_model").get<std::string>();
    r.engine = json.at("engine").get<std::string>();
    r.restrictions.max_memory = json.at("max_memory").get<double>();
    r.training.dtype = parse_dtype(json.at("training").at("dtype").get<std::string>());
    r.import.dtype = r.training.dtype == DType::kF8 ? DType::kBf16 : r.training.dtype;
  } catch (const Json::exception& e) {
    throw Error(fmt::format("not a plan file of meshwright: {}", e.what()), path,
                "write one with `meshwright plan MODEL CLUSTER -o plan.json`");
  }
  PlanFile file;
  file.loaded = load(std::move(r));
  file.plan = plan_from_json(json, file.loaded.segments, path);
  file.loaded.request.training = file.plan.training;
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

Degrees parse_degrees(std::string_view text, const Degrees& base, int devices, int experts) {
  Degrees d = base;
  bool dp_given = false;
  bool state_given = false;
  bool sp_given = false;
  bool ep_given = false;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty()) continue;
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw Error(fmt::format("'{}' is not KEY=VALUE", part), "degrees", "such as tp=4,pp=4");
    }
    const std::string_view key = part.substr(0, equals);
    const std::string value(part.substr(equals + 1));
    const auto number = [&] {
      const std::int64_t n = parse_integer(value, key);
      if (n < 1 || n > 1 << 24)
        throw Error(fmt::format("must be between 1 and 2^24: {}", n), std::string(key));
      return static_cast<int>(n);
    };
    if (key == "pp")
      d.pp = number();
    else if (key == "vpp")
      d.vpp = number();
    else if (key == "tp")
      d.tp = number();
    else if (key == "cp")
      d.cp = number();
    else if (key == "ep")
      d.ep = number(), ep_given = true;
    else if (key == "etp")
      d.etp = number();
    else if (key == "dp")
      d.dp = number(), dp_given = true;
    else if (key == "mbs" || key == "micro_batch")
      d.micro_batch = number();
    else if (key == "zero")
      d.zero = parse_state_sharding(value), state_given = true;
    else if (key == "recompute")
      d.recompute = parse_recompute(value);
    else if (key == "sp")
      d.sp = value == "true" || value == "1", sp_given = true;
    else {
      throw Error(fmt::format("unknown degree '{}'", key), "degrees",
                  "known: pp vpp tp sp cp dp ep etp mbs zero recompute");
    }
  }
  const std::int64_t rest = std::int64_t{d.pp} * d.tp * d.cp;
  // When the rest does not divide the devices, dp is what fits; the rules then say what is wrong.
  if (!dp_given) d.dp = static_cast<int>(std::max<std::int64_t>(devices / rest, 1));
  if (d.pp == 1) d.vpp = 1;
  if (!sp_given) d.sp = d.tp > 1;
  if (experts == 0) d.ep = d.etp = 1;
  if (!ep_given && experts > 0 &&
      (std::int64_t{d.tp} * d.cp * d.dp) % (std::int64_t{d.ep} * d.etp) != 0) {
    d.ep = d.etp = 1;
  }
  if (!state_given && d.zero == StateSharding::kNone && d.dp * d.cp > 1)
    d.zero = StateSharding::kZero1;
  if (d.zero_group != 0 && d.dp * d.cp % d.zero_group != 0) d.zero_group = 0;
  return d;
}

}  // namespace meshwright
