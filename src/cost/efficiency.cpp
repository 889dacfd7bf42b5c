#include "cost/efficiency.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/embedded.h"
#include "base/error.h"

namespace meshwright {
namespace {

class Reader {
 public:
  Reader(const Json& json, std::string source) : json_(json), source_(std::move(source)) {
    if (!json.is_object()) throw Error("must be an object", source_);
  }
  void number(const char* key, double& target, double low, double high) {
    seen_.push_back(key);
    const auto it = json_.find(key);
    if (it == json_.end()) return;
    if (!it->is_number()) throw Error("must be a number", source_ + "/" + key);
    const double value = it->get<double>();
    if (!(value >= low && value <= high)) {
      throw Error(fmt::format("must be between {} and {}: {}", low, high, value),
                  source_ + "/" + key);
    }
    target = value;
  }
  void seconds(const char* key, Seconds& target, double scale) {
    double value = target.value / scale;
    number(key, value, 0, 1e9);
    target = Seconds(value * scale);
  }
  void kernel(const char* key, Efficiency::Kernel& target) {
    seen_.push_back(key);
    const auto it = json_.find(key);
    if (it == json_.end()) return;
    Reader inner(*it, source_ + "/" + key);
    inner.number("fraction", target.fraction, 0.001, 2);
    inner.seconds("fixed_us", target.fixed, 1e-6);
    inner.finish();
  }
  void link(const char* key, Efficiency::Link& target) {
    Reader inner(json_.at(key), source_ + "/" + key);
    inner.number("fraction", target.fraction, 0.001, 2);
    inner.number("all_reduce_fraction", target.all_reduce_fraction, 0.001, 2);
    inner.number("all_to_all_fraction", target.all_to_all_fraction, 0.001, 2);
    inner.number("steps", target.steps, 0, 1000);
    inner.number("all_reduce_steps", target.all_reduce_steps, 0, 1000);
    inner.seconds("base_us", target.base, 1e-6);
    inner.finish();
  }
  const Json* object(const char* key) {
    seen_.push_back(key);
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      bool known = key == "source" || key == "notes" || key == "extends";
      for (const std::string& s : seen_) known |= s == key;
      if (!known) throw Error(fmt::format("unknown key '{}'", key), source_);
    }
  }
  const std::string& source() const { return source_; }

 private:
  const Json& json_;
  std::string source_;
  std::vector<std::string> seen_;
};

}  // namespace

const Efficiency::Link& Efficiency::link(std::string_view made_of) const {
  auto it = links.find(made_of);
  if (it == links.end()) it = links.find("default");
  MW_CHECK(it != links.end(), "efficiency has no default link");
  return it->second;
}

Efficiency parse_efficiency(const Json& json, const Efficiency& base, std::string_view source) {
  Efficiency e = base;
  Reader r(json, std::string(source));
  r.kernel("matmul_16bit", e.matmul_16bit);
  r.kernel("matmul_fp8", e.matmul_fp8);
  r.kernel("matmul_fp32", e.matmul_fp32);
  r.number("matmul_tile", e.matmul_tile, 1, 4096);
  r.kernel("attention", e.attention);
  r.number("attention_backward", e.attention_backward, 0.01, 10);
  r.kernel("memory", e.memory);
  r.number("memory_passes", e.memory_passes, 0.5, 20);
  r.number("optimizer_passes", e.optimizer_passes, 0.5, 20);
  r.number("attention_passes", e.attention_passes, 0.5, 20);
  r.seconds("launch_us", e.launch, 1e-6);
  r.seconds("collective_launch_us", e.collective_launch, 1e-6);
  if (const Json* links = r.object("links")) {
    Reader inner(*links, r.source() + "/links");
    for (const auto& [level, value] : links->items()) {
      Efficiency::Link link;
      if (const auto it = e.links.find(level); it != e.links.end())
        link = it->second;
      else if (const auto other = e.links.find("default"); other != e.links.end())
        link = other->second;
      inner.link(level.c_str(), link);
      e.links[level] = link;
    }
  }
  double mib = e.bucket.value / (1 << 20);
  r.number("bucket_mib", mib, 0, 1e6);
  e.bucket = Bytes(mib * (1 << 20));
  r.number("gradient_overlap", e.gradient_overlap, 0, 1);
  r.number("update_overlap", e.update_overlap, 0, 1);
  r.number("gather_overlap", e.gather_overlap, 0, 1);
  r.number("context_overlap", e.context_overlap, 0, 1);
  r.seconds("step_fixed_ms", e.step_fixed, 1e-3);
  r.seconds("micro_batch_fixed_us", e.micro_batch_fixed, 1e-6);
  r.seconds("peer_fixed_us", e.peer_fixed, 1e-6);
  r.number("compute_scale", e.compute_scale, 0.1, 10);
  double gib = e.context.value / (1 << 30);
  r.number("context_gib", gib, 0, 100);
  e.context = Bytes(gib * (1 << 30));
  r.number("fragmentation", e.fragmentation, 0, 2);
  r.number("loss_copies", e.loss_copies, 0, 20);
  r.number("keeps_gathered", e.keeps_gathered, 0, 1);
  r.number("ring_sums", e.ring_sums, 0, 1);
  r.number("activation_scale", e.activation_scale, 0.5, 3);
  r.number("working_gradients", e.working_gradients, 0, 1);
  r.number("communication_buffers", e.communication_buffers, 0, 10);
  r.finish();
  return e;
}

const Json& shipped_efficiency() {
  static const Json kJson =
      parse_json(embedded_file("efficiency/efficiency.json"), "efficiency.json");
  return kJson;
}

Efficiency efficiency_for(const DeviceKind& kind, std::string_view engine) {
  return efficiency_for(shipped_efficiency(), kind, engine);
}

namespace {

const Json& part(const Json& file, const char* key) {
  const auto it = file.find(key);
  if (!file.is_object() || it == file.end() || !it->is_object()) {
    throw Error(fmt::format("must have an object '{}'", key), "efficiency file",
                "keys: default, architectures, engines");
  }
  return *it;
}

// An engine's numbers over those of the engine that it extends.
Efficiency with_engine(const Json& engines, const std::string& name, const Efficiency& base,
                       int depth) {
  const auto it = engines.find(name);
  if (depth > 8) throw Error(fmt::format("engine '{}' extends itself", name));
  if (it == engines.end()) {
    std::string known;
    for (const auto& [key, value] : engines.items()) known += (known.empty() ? "" : ", ") + key;
    throw Error(fmt::format("unknown engine '{}'", name), {}, "known: " + known);
  }
  const std::string where = "efficiency: /engines/" + name;
  Efficiency e = base;
  if (const auto extends = it->find("extends"); extends != it->end()) {
    if (!extends->is_string()) throw Error("must be an engine's name", where + "/extends");
    e = with_engine(engines, extends->get<std::string>(), base, depth + 1);
  }
  return parse_efficiency(*it, e, where);
}

}  // namespace

Efficiency efficiency_for(const Json& file, const DeviceKind& kind, std::string_view engine) {
  Efficiency e = parse_efficiency(part(file, "default"), {}, "efficiency: /default");
  const Json& architectures = part(file, "architectures");
  for (const std::string& key : {kind.vendor, kind.architecture, kind.name}) {
    if (const auto it = architectures.find(key); it != architectures.end()) {
      e = parse_efficiency(*it, e, "efficiency: /architectures/" + key);
    }
  }
  return with_engine(part(file, "engines"), std::string(engine), e, 0);
}

std::string known_engines() {
  std::string text;
  for (const auto& [name, value] : shipped_efficiency().at("engines").items()) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace meshwright
