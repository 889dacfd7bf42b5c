#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Splits and merges dimensions without moving data. The pattern is an annotation of one operand,
// "b s (h d) -> b s h d"; an id that is not first in its group cannot be split.

constexpr std::size_t kMaxPattern = 512;

bool is_id(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Ids that stand behind another one in a group, on either side.
std::set<std::string, std::less<>> inner_ids(std::string_view pattern) {
  std::set<std::string, std::less<>> inner;
  bool in_group = false;
  bool leading = false;
  for (std::size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c == '(') in_group = leading = true;
    if (c == ')') in_group = false;
    if (!is_id(c)) {
      if (std::string_view(" ()*->").find(c) == std::string_view::npos) {
        throw Error(fmt::format("pattern '{}': unexpected character '{}'", pattern, c));
      }
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < pattern.size() && is_id(pattern[end])) ++end;
    const std::string_view word = pattern.substr(i, end - i);
    i = end;
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
      if (word != "1") {
        throw Error(fmt::format("pattern '{}': size {} must be an id", pattern, word), "",
                    "name it by a letter and give its size in 'sizes'");
      }
      continue;
    }
    if (in_group && !leading) inner.emplace(word);
    leading = false;
  }
  return inner;
}

std::string pattern_of(const OpContext& c) {
  std::string pattern = attr_string(c.attrs, "pattern", "");
  if (pattern.size() > kMaxPattern)
    throw Error("attribute 'pattern' is longer than 512 characters");
  return pattern;
}

std::string annotation(const OpContext& c) {
  const std::string pattern = pattern_of(c);
  const auto inner = inner_ids(pattern);
  std::string marked;
  for (std::size_t i = 0; i < pattern.size();) {
    if (!is_id(pattern[i])) {
      marked += pattern[i++];
      continue;
    }
    std::size_t end = i;
    while (end < pattern.size() && is_id(pattern[end])) ++end;
    const std::string_view word = std::string_view(pattern).substr(i, end - i);
    marked += word;
    if (inner.contains(word)) marked += '^';
    i = end;
  }
  return marked;
}

// "d=128, w=7" as pairs.
std::vector<std::pair<std::string, std::string>> pairs(const OpContext& c, std::string_view name) {
  const std::string text = attr_string(c.attrs, name, "");
  std::vector<std::pair<std::string, std::string>> result;
  if (text.size() > kMaxPattern) throw Error(fmt::format("attribute '{}' is too long", name));
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string item = text.substr(begin, end - begin);
    std::erase(item, ' ');
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw Error(fmt::format("attribute '{}' must read 'id={}': '{}'", name,
                              name == "sizes" ? "size" : "name", item));
    }
    result.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    begin = end + 1;
  }
  return result;
}

std::vector<FactorSize> factor_sizes(const OpContext& c) {
  const std::string pattern = pattern_of(c);
  const auto inner = inner_ids(pattern);
  std::vector<FactorSize> sizes;
  for (const auto& [id, text] : pairs(c, "sizes")) {
    if (!inner.contains(id)) {
      throw Error(
          fmt::format("attribute 'sizes': '{}' may be split, so its size cannot be fixed", id), "",
          "leave it out; it follows from the operand");
    }
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw Error(fmt::format("attribute 'sizes': '{}' is no size", text));
    }
    sizes.push_back({id, size});
  }
  return sizes;
}

void relabel(const OpContext& c, Rule& rule) {
  for (const auto& [id, name] : pairs(c, "names")) {
    const auto factor = std::ranges::find(rule.factors, id, &Factor::id);
    if (factor == rule.factors.end()) {
      throw Error(fmt::format("attribute 'names': '{}' is not in the pattern", id));
    }
    factor->label = name;
  }
}

// The factors of all dims in row-major order: a view keeps it.
std::vector<int> order(const RuleTensor& tensor) {
  std::vector<int> factors;
  for (const RuleDim& dim : tensor.dims) {
    factors.insert(factors.end(), dim.factors.begin(), dim.factors.end());
  }
  return factors;
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  if (rule.outputs.size() != 1 || order(rule.inputs[0]) != order(rule.outputs[0])) {
    throw Error(fmt::format("pattern '{}' reorders or drops dimensions", pattern_of(c)), "",
                "reshape only splits and merges neighbours; use transpose to permute");
  }
  return infer_from_rule(rule, c.inputs);
}

Work work(const OpContext&) {
  Work work;
  work.kernel = KernelClass::kView;
  work.forward_kernels = work.backward_kernels = 0;
  return work;
}

Saved saved(const OpContext&) { return {}; }

constexpr AttrSpec kAttrs[] = {
    {.name = "pattern", .type = AttrType::kString, .required = true},
    {.name = "sizes", .type = AttrType::kString},  // "d=128": sizes of inner ids.
    {.name = "names", .type = AttrType::kString},  // "d=head_dim": names of dims led by an id.
};

std::vector<OpDef::Example> examples() {
  const TensorType flat{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 32, 8}}};
  const TensorType heads{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"heads", 4}, {"head_dim", 8}}};
  const TensorType grid{DType::kBf16, {{"batch", 4}, {"height", 8}, {"width", 12}, {"hidden", 16}}};
  const auto text = [](const char* t) { return Attr(std::string(t)); };
  return {
      {{{"pattern", text("* (h d) -> * h d")},
        {"sizes", text("d=8")},
        {"names", text("d=head_dim")}},
       {flat}},
      {{{"pattern", text("b s h d -> b s (h d)")}}, {heads}},
      {{{"pattern", text("b (y p) (x q) c -> b y p x q c")}, {"sizes", text("p=4, q=4")}}, {grid}},
      {{{"pattern", text("b y x c -> b (y x) 1 c")}, {"names", text("y=patches")}}, {grid}}};
}

Kernel kernel(const KernelContext& c) {
  return one_call(c, "aten::reshape", {sizes_of(c.output_boxes[0])});
}

}  // namespace

const OpDef kReshape = {
    .kind = "reshape",
    .summary = "Splits and merges neighbouring dims by a pattern, without a copy",
    .aten = "",
    .element_types = "a",
    .attrs = kAttrs,
    .view = true,
    .annotation = annotation,
    .factor_sizes = factor_sizes,
    .relabel = relabel,
    .infer = infer,
    .work = work,
    .saved = saved,
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
