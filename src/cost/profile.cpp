#include "cost/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/spelling.h"
#include "cost/cost_model.h"

namespace meshwright {
namespace {

constexpr const char* kFormat = "meshwright-profile";
constexpr int kVersion = 1;
constexpr std::size_t kMaxEntries = 100'000;
constexpr std::size_t kMaxSignature = 65'536;
constexpr double kMost = 1e24;
constexpr const char* kClasses[] = {"view", "memory", "matmul", "attention"};

// One object of the file, read key by key; `end` refuses the keys that nobody asked for.
class Reader {
 public:
  Reader(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) throw Error("must be an object", place_);
  }
  const Json& need(const char* key) {
    seen_.emplace_back(key);
    const auto it = json_.find(key);
    if (it == json_.end()) throw Error(fmt::format("key '{}' is missing", key), place_);
    return *it;
  }
  const Json* find(const char* key) {
    seen_.emplace_back(key);
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  std::string at(const char* key) const { return fmt::format("{}/{}", place_, key); }
  std::string text(const char* key, std::size_t longest, bool may_be_empty) {
    const Json& value = need(key);
    if (!value.is_string()) throw Error("must be a string", at(key));
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() > longest || (text.empty() && !may_be_empty)) {
      throw Error(fmt::format("must have {} to {} bytes: it has {}", may_be_empty ? 0 : 1, longest,
                              text.size()),
                  at(key));
    }
    return text;
  }
  double number(const Json& value, const char* key, double low, double high) const {
    if (!value.is_number()) throw Error("must be a number", at(key));
    const double given = value.get<double>();
    if (!(given >= low && given <= high)) {
      throw Error(fmt::format("must be {:g} to {:g}: {:g}", low, high, given), at(key));
    }
    return given;
  }
  double number(const char* key, double low, double high) {
    return number(need(key), key, low, high);
  }
  double number_or(const char* key, double low, double high, double fallback) {
    const Json* value = find(key);
    return value == nullptr ? fallback : number(*value, key, low, high);
  }
  int integer(const char* key, int low, int high) {
    const double given = number(key, low, high);
    if (given != std::floor(given)) throw Error("must be an integer", at(key));
    return static_cast<int>(given);
  }
  const Json& list(const char* key) {
    const Json& value = need(key);
    if (!value.is_array()) throw Error("must be a list", at(key));
    if (value.size() > kMaxEntries) {
      throw Error(fmt::format("has {} entries, more than {}", value.size(), kMaxEntries), at(key));
    }
    return value;
  }
  void end() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) continue;
      const auto near = nearest_names(key, seen_, 1);
      throw Error(fmt::format("unknown key {}", in_quotes(key)), place_,
                  near.empty() ? "" : fmt::format("did you mean '{}'?", near[0]));
    }
  }

 private:
  const Json& json_;
  std::string place_;
  std::vector<std::string> seen_;
};

Measurement read_time(Reader& r) {
  Measurement m;
  m.seconds = Seconds(r.number("seconds", 0, 1e9));
  m.spread = Seconds(r.number("spread", 0, 1e9));
  m.repeats = r.integer("repeats", 1, 1'000'000'000);
  return m;
}

void write_time(Json& json, const Measurement& m) {
  json["seconds"] = m.seconds.value;
  json["spread"] = m.spread.value;
  json["repeats"] = m.repeats;
}

MeasuredKernel read_kernel(Reader& r) {
  MeasuredKernel k;
  k.time = read_time(r);
  const std::string name = r.text("class", 32, false);
  const auto* known = std::find(std::begin(kClasses), std::end(kClasses), name);
  if (known == std::end(kClasses)) {
    throw Error(fmt::format("unknown class {}", in_quotes(name)), r.at("class"),
                "known: view, memory, matmul, attention");
  }
  k.kernel = static_cast<KernelClass>(known - std::begin(kClasses));
  try {
    k.dtype = parse_dtype(r.text("dtype", 32, false));
  } catch (const Error& e) {
    throw e.within(r.at("dtype"));
  }
  const Json& backward = r.need("backward");
  if (!backward.is_boolean()) throw Error("must be true or false", r.at("backward"));
  k.backward = backward.get<bool>();
  k.flops = Flops(r.number("flops", 0, kMost));
  k.traffic = Bytes(r.number("traffic", 0, kMost));
  k.pointwise = Bytes(r.number_or("pointwise", 0, kMost, 0));
  k.kernels = r.integer("kernels", 0, 1'000'000);
  k.matmul.batch = r.number_or("batch", 0, kMost, 1);
  k.matmul.m = r.number_or("m", 0, kMost, 0);
  k.matmul.n = r.number_or("n", 0, kMost, 0);
  k.matmul.k = r.number_or("k", 0, kMost, 0);
  return k;
}

Json kernel_to_json(const std::string& signature, const MeasuredKernel& k) {
  Json json = {{"signature", signature}};
  write_time(json, k.time);
  json["class"] = kClasses[static_cast<std::size_t>(k.kernel)];
  json["dtype"] = dtype_name(k.dtype);
  json["backward"] = k.backward;
  json["flops"] = k.flops.value;
  json["traffic"] = k.traffic.value;
  if (k.pointwise.value != 0) json["pointwise"] = k.pointwise.value;
  json["kernels"] = k.kernels;
  if (k.kernel == KernelClass::kMatmul) {
    json["batch"] = k.matmul.batch;
    json["m"] = k.matmul.m;
    json["n"] = k.matmul.n;
    json["k"] = k.matmul.k;
  }
  return json;
}

MeasuredCurve read_points(Reader& r, std::size_t& points_so_far) {
  MeasuredCurve curve;
  const Json& points = r.list("points");
  points_so_far += points.size();
  if (points.empty()) throw Error("has no point", r.at("points"));
  if (points_so_far > kMaxEntries) {
    throw Error(fmt::format("more than {} points", kMaxEntries), r.at("points"));
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    Reader p(points[i], fmt::format("{}/{}", r.at("points"), i));
    const double bytes = p.number("bytes", 1, kMost);
    if (!curve.emplace(bytes, read_time(p)).second) {
      throw Error(fmt::format("a second point of {} bytes", bytes), p.at("bytes"));
    }
    p.end();
  }
  return curve;
}

}  // namespace

Instr MeasuredKernel::instr() const {
  Instr i;
  i.purpose = backward ? Purpose::kBackward : Purpose::kForward;
  i.kernel = kernel;
  i.dtype = dtype;
  i.flops = flops;
  i.traffic = traffic;
  i.pointwise = pointwise;
  i.kernels = kernels;
  i.matmul = matmul;
  return i;
}

MeasuredKernel measured_kernel(const Instr& instr, const Measurement& time) {
  MeasuredKernel k;
  k.time = time;
  // What an engine does beside operators is free of charge for the analytic model.
  k.kernel = instr.kind == InstrKind::kSlice || instr.kind == InstrKind::kAdd ? KernelClass::kView
                                                                              : instr.kernel;
  k.dtype = instr.dtype;
  k.backward = instr.purpose == Purpose::kBackward;
  k.flops = instr.flops;
  k.traffic = instr.traffic;
  k.pointwise = instr.pointwise;
  k.kernels = instr.kernels;
  if (k.kernel == KernelClass::kMatmul) k.matmul = instr.matmul;
  return k;
}

Json profile_to_json(const ProfileTable& t) {
  Json json = {{"format", kFormat}, {"version", kVersion},  {"device", t.device},
               {"dtype", t.dtype},  {"threads", t.threads}, {"host", t.host},
               {"date", t.date}};
  Json kernels = Json::array();
  for (const auto& [signature, k] : t.kernels) kernels.push_back(kernel_to_json(signature, k));
  json["kernels"] = std::move(kernels);
  Json curves = Json::array();
  for (const auto& [signature, points] : t.curves) {
    Json list = Json::array();
    for (const auto& [bytes, time] : points) {
      Json point = {{"bytes", bytes}};
      write_time(point, time);
      list.push_back(std::move(point));
    }
    curves.push_back({{"signature", signature}, {"points", std::move(list)}});
  }
  json["curves"] = std::move(curves);
  return json;
}

ProfileTable profile_from_json(const Json& json, std::string_view source) {
  Reader r(json, std::string(source));
  if (r.text("format", 64, true) != kFormat) {
    throw Error("not a profile of meshwright", std::string(source),
                "write one with `meshwright profile PLAN -o table.json`");
  }
  if (const int version = r.integer("version", 0, 1'000'000); version != kVersion) {
    throw Error(fmt::format("version {} of the format is not known", version), r.at("version"),
                fmt::format("this program reads version {}", kVersion));
  }
  ProfileTable t;
  t.device = r.text("device", 1024, false);
  t.dtype = r.text("dtype", 64, false);
  t.threads = r.integer("threads", 1, 65536);
  t.host = r.text("host", 1024, true);
  t.date = r.text("date", 64, true);
  const Json& kernels = r.list("kernels");
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    Reader k(kernels[i], fmt::format("{}/{}", r.at("kernels"), i));
    std::string signature = k.text("signature", kMaxSignature, false);
    if (!t.kernels.emplace(std::move(signature), read_kernel(k)).second) {
      throw Error("a second entry of this signature", k.at("signature"));
    }
    k.end();
  }
  const Json& curves = r.list("curves");
  std::size_t points = 0;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    Reader c(curves[i], fmt::format("{}/{}", r.at("curves"), i));
    std::string signature = c.text("signature", kMaxSignature, false);
    if (!t.curves.emplace(std::move(signature), read_points(c, points)).second) {
      throw Error("a second entry of this signature", c.at("signature"));
    }
    c.end();
  }
  r.end();
  return t;
}

ProfileTable read_profile(const std::filesystem::path& path) {
  return profile_from_json(read_json(path), path.string());
}

std::optional<Seconds> interpolate(const MeasuredCurve& curve, Bytes bytes) {
  if (curve.empty()) return std::nullopt;
  const auto above = curve.lower_bound(bytes.value);
  const auto near = above == curve.end() ? std::prev(above) : above;
  if (above == curve.end() || (above == curve.begin() && bytes.value < above->first)) {
    const double factor = bytes.value / near->first;
    if (!(factor >= 0.5 && factor <= 2)) return std::nullopt;
    return near->second.seconds * factor;
  }
  if (above->first == bytes.value) return above->second.seconds;
  const auto below = std::prev(above);
  const double share = (bytes.value - below->first) / (above->first - below->first);
  return below->second.seconds * (1 - share) + above->second.seconds * share;
}

double ProfileUse::ratio(KernelClass kernel, const DeviceKind& kind, const Efficiency& e) {
  const auto [it, fresh] = ratios_.try_emplace({&kind, kernel}, 1);
  if (!fresh) return it->second;
  // Of the class, of all.
  double measured[2] = {}, analytic[2] = {};
  for (const auto& [signature, k] : table_.kernels) {
    if (k.kernel == KernelClass::kView) continue;
    const double says = kAnalytic.compute(k.instr(), kind, e, nullptr).value;
    for (const std::size_t all : {std::size_t{0}, std::size_t{1}}) {
      if (all == 0 && k.kernel != kernel) continue;
      measured[all] += k.time.seconds.value;
      analytic[all] += says;
    }
  }
  for (const std::size_t all : {std::size_t{0}, std::size_t{1}}) {
    if (!(measured[all] > 0 && analytic[all] > 0)) continue;
    it->second = measured[all] / analytic[all];
    break;
  }
  return it->second;
}

std::string to_string(const ProfileCoverage& c) {
  return fmt::format("profiled: {} of {} instructions measured", c.measured, c.all);
}

}  // namespace meshwright
