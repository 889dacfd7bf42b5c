#include "cluster/yaml_fields.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/format.h"
#include "base/parse_units.h"
#include "base/spelling.h"
#include "cluster/yaml_text.h"

namespace meshwright {
namespace {

constexpr int kMaxNodes = 200000;
constexpr int kMaxDepth = 64;

// Bandwidths and sizes beyond these are typing errors.
constexpr double kMaxBytes = 0x1p60, kMaxBandwidth = 1e15, kMaxFlops = 1e20;

std::string place_of(const YAML::Mark& mark, std::string_view source) {
  if (mark.is_null()) return std::string(source);
  return fmt::format("{}:{}:{}", source, mark.line + 1, mark.column + 1);
}

std::string kind_of(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a mapping";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return "the text " + in_quotes(node.Scalar());
    default:
      return "nothing";
  }
}

// Aliases are shared in memory, but every use of one is visited: this bounds what readers can meet,
// and a node that contains itself runs into the depth.
void bound(const YAML::Node& node, std::string_view source, int depth, int& nodes) {
  if (depth > kMaxDepth) {
    throw Error(fmt::format("nested more than {} levels deep, or an alias inside its own anchor",
                            kMaxDepth),
                yaml_place(node, source));
  }
  if (++nodes > kMaxNodes) {
    throw Error(fmt::format("more than {} values when aliases are expanded", kMaxNodes),
                yaml_place(node, source));
  }
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) bound(item, source, depth + 1, nodes);
  } else if (node.IsMap()) {
    std::set<std::string> keys;
    for (const auto& entry : node) {
      const std::string key = yaml_scalar(entry.first, source, "a key");
      if (!keys.insert(key).second) {
        throw Error(fmt::format("key {} appears twice", in_quotes(key)),
                    yaml_place(entry.first, source));
      }
      bound(entry.second, source, depth + 1, nodes);
    }
  }
}

// Walks the text without building anything: counts what would be built, and notices a second
// document. (YAML::Load reads the first and is silent about the rest; YAML::LoadAll never returns
// on a stray comma.)
class Survey : public YAML::EventHandler {
 public:
  explicit Survey(std::string_view source) : source_(source) {}

  void OnDocumentStart(const YAML::Mark& mark) override { document_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    count(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    count(mark);
  }
  void OnMapEnd() override {}

  const YAML::Mark& document() const { return document_; }

 private:
  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxNodes) {
      throw Error(fmt::format("more than {} values", kMaxNodes), place_of(mark, source_));
    }
  }

  std::string_view source_;
  YAML::Mark document_ = YAML::Mark::null_mark();
  int values_ = 0;
};

template <class Parse>
auto quantity(const YAML::Node& node, std::string_view source, std::string_view key,
              Parse&& parse) {
  const std::string text = yaml_scalar(node, source, key);
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", key, error.message()), yaml_place(node, source),
                error.hint());
  }
}

}  // namespace

std::string yaml_place(const YAML::Node& node, std::string_view source) {
  return place_of(node.Mark(), source);
}

std::string yaml_scalar(const YAML::Node& node, std::string_view source, std::string_view what) {
  if (!node.IsScalar()) {
    throw Error(fmt::format("{} must be a single value, not {}", what, kind_of(node)),
                yaml_place(node, source));
  }
  return node.Scalar();
}

YAML::Node load_yaml(std::string_view text, std::string_view source) {
  check_yaml_text(text, source);
  YAML::Node document;
  try {
    const std::string copy(text);
    std::istringstream stream(copy);
    YAML::Parser parser(stream);
    Survey survey(source);
    if (parser.HandleNextDocument(survey) && parser.HandleNextDocument(survey)) {
      throw Error("text after the end of the only document", place_of(survey.document(), source));
    }
    document = YAML::Load(copy);
  } catch (const YAML::Exception& e) {
    throw Error("not valid YAML: " + e.msg, place_of(e.mark, source));
  }
  if (!document.IsDefined() || document.IsNull()) throw Error("is empty", std::string(source));
  int nodes = 0;
  bound(document, source, 0, nodes);
  return document;
}

YamlFields::YamlFields(const YAML::Node& node, std::string_view source, std::string_view what,
                       std::vector<std::string_view> legal)
    : node_(node), source_(source), what_(what) {
  if (!node.IsMap()) {
    throw Error(fmt::format("{} must be a mapping, not {}", what, kind_of(node)),
                yaml_place(node, source), fmt::format("its keys are {}", fmt::join(legal, ", ")));
  }
  for (const auto& entry : node) {
    const std::string key = yaml_scalar(entry.first, source, "a key");
    if (std::find(legal.begin(), legal.end(), key) == legal.end()) {
      throw Error(fmt::format("unknown key {} in {}", in_quotes(key), what),
                  yaml_place(entry.first, source),
                  fmt::format("legal keys: {}", fmt::join(legal, ", ")));
    }
  }
}

void YamlFields::fail(std::string message, std::string hint) const {
  throw Error(std::move(message), yaml_place(node_, source_), std::move(hint));
}

void YamlFields::fail_at(std::string_view key, std::string message, std::string hint) const {
  const YAML::Node value = node_[std::string(key)];
  throw Error(std::move(message), yaml_place(value.IsDefined() ? value : node_, source_),
              std::move(hint));
}

bool YamlFields::has(std::string_view key) const { return node_[std::string(key)].IsDefined(); }

YAML::Node YamlFields::at(std::string_view key) const {
  YAML::Node value = node_[std::string(key)];
  if (!value.IsDefined()) fail(fmt::format("{} needs the key {}", what_, key));
  return value;
}

std::vector<YAML::Node> YamlFields::list(std::string_view key) const {
  std::vector<YAML::Node> items;
  if (!has(key)) return items;
  const YAML::Node value = at(key);
  if (!value.IsSequence())
    fail_at(key, fmt::format("{} must be a list, not {}", key, kind_of(value)));
  for (const YAML::Node& item : value) items.push_back(item);
  if (items.empty()) fail_at(key, fmt::format("{} is an empty list", key));
  return items;
}

std::string YamlFields::text(std::string_view key) const {
  return yaml_scalar(at(key), source_, key);
}

std::string YamlFields::text_or(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

std::string YamlFields::name(std::string_view key) const {
  const std::string value = text(key);
  constexpr std::string_view kLegal =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  if (value.empty() || value.size() > 64 || value.find_first_not_of(kLegal) != std::string::npos) {
    fail_at(key, fmt::format("{} {} is not a name", key, in_quotes(value)),
            "a name has 1 to 64 letters, digits, -, _ and .");
  }
  return value;
}

int YamlFields::count(std::string_view key, int least, int most) const {
  const std::string value = yaml_scalar(at(key), source_, key);
  int number = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = status == std::errc{} && end == value.data() + value.size();
  if (!whole || number < least || number > most) {
    fail_at(key, fmt::format("{} is {}, which must be a whole number from {} to {}", key,
                             in_quotes(value), format_integer(least), format_integer(most)));
  }
  return number;
}

int YamlFields::count_or(std::string_view key, int least, int most, int otherwise) const {
  return has(key) ? count(key, least, most) : otherwise;
}

double YamlFields::number(std::string_view key, double least, double most) const {
  const std::string value = yaml_scalar(at(key), source_, key);
  double number = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = status == std::errc{} && end == value.data() + value.size();
  if (!whole || !(number >= least && number <= most)) {
    fail_at(key, fmt::format("{} is {}, which must be a number from {:g} to {:g}", key,
                             in_quotes(value), least, most));
  }
  return number;
}

double YamlFields::number_or(std::string_view key, double least, double most,
                             double otherwise) const {
  return has(key) ? number(key, least, most) : otherwise;
}

namespace {

template <class Value>
Value in_range(const YamlFields& fields, std::string_view key, Value value, double most,
               std::string_view limit) {
  if (!(value.value > 0)) {
    fields.fail_at(key, fmt::format("{} is zero, which must be more", key));
  }
  if (value.value > most) {
    fields.fail_at(key, fmt::format("{} is more than {}: mistyped?", key, limit));
  }
  return value;
}

}  // namespace

Bytes YamlFields::bytes_or(std::string_view key, Bytes otherwise) const {
  if (!has(key)) return otherwise;
  return in_range(*this, key, quantity(at(key), source_, key, parse_bytes), kMaxBytes, "1 EiB");
}

BytesPerSecond YamlFields::bandwidth_or(std::string_view key, BytesPerSecond otherwise) const {
  if (!has(key)) return otherwise;
  return in_range(*this, key, quantity(at(key), source_, key, parse_bandwidth), kMaxBandwidth,
                  "1,000 TB/s");
}

FlopsPerSecond YamlFields::flop_rate_or(std::string_view key, FlopsPerSecond otherwise) const {
  if (!has(key)) return otherwise;
  const FlopsPerSecond value = quantity(at(key), source_, key, parse_flop_rate);
  if (value.value == 0) return value;
  return in_range(*this, key, value, kMaxFlops, "100,000 PFLOP/s");
}

Seconds YamlFields::latency_or(std::string_view key, Seconds otherwise) const {
  if (!has(key)) return otherwise;
  const Seconds value = quantity(at(key), source_, key, parse_seconds);
  if (value.value > 1) fail_at(key, fmt::format("{} is more than 1 s: mistyped?", key));
  return value;
}

}  // namespace meshwright
