#include "ir/rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxAnnotation = 4096;
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 40;

std::int64_t product(std::int64_t a, std::int64_t b, std::string_view what, std::string_view dim) {
  if (b < 1 || a > kMaxDimSize / b) {
    throw Error(fmt::format("{} dimension '{}' is too large", what, dim), {},
                "sizes are at most 2^40");
  }
  return a * b;
}

// The operand dimension that is the same group of factors, if any.
const Dim* same_group(const Rule& rule, std::span<const TensorType> inputs, const RuleDim& group) {
  for (std::size_t i = 0; i < rule.inputs.size(); ++i) {
    for (std::size_t d = 0; d < rule.inputs[i].dims.size(); ++d) {
      if (rule.inputs[i].dims[d] == group) return &inputs[i].dims[d];
    }
  }
  return nullptr;
}

class Parser {
 public:
  Parser(std::string_view text, std::span<const int> ranks) : text_(text), ranks_(ranks) {}

  Rule parse() {
    if (text_.size() > kMaxAnnotation) fail("annotation is longer than 4096 characters");
    star_rank_ = find_star_rank();
    parse_tensors(rule_.inputs, /*inputs=*/true);
    skip_space();
    if (text_.substr(at_, 2) != "->") fail("expected '->' or ','");
    at_ += 2;
    parse_tensors(rule_.outputs, /*inputs=*/false);
    skip_space();
    if (at_ != text_.size()) fail("unexpected text after the results");
    return std::move(rule_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(fmt::format("annotation '{}', column {}: {}", text_.substr(0, 80), at_ + 1, what));
  }

  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  // All "*" have the rank that makes the first starred operand fit.
  std::optional<int> find_star_rank() {
    const std::size_t arrow = text_.find("->");
    std::size_t begin = 0;
    std::size_t operand = 0;
    while (begin <= text_.size() && begin < arrow) {
      const std::size_t end = std::min({text_.find(',', begin), arrow, text_.size()});
      const std::string_view piece = text_.substr(begin, end - begin);
      if (piece.find('*') != std::string_view::npos && operand < ranks_.size()) {
        int others = 0;
        bool in_group = false;
        bool in_word = false;
        for (char c : piece) {
          if (c == '(') ++others, in_group = true;
          if (c == ')') in_group = false;
          const bool word = c != ' ' && c != '(' && c != ')';
          if (word && !in_word && !in_group && c != '*') ++others;
          in_word = word;
        }
        const int rank = ranks_[operand] - others;
        if (rank < 0 || rank > kMaxRank) {
          at_ = begin;
          fail(fmt::format("operand {} has rank {}, too small for this annotation", operand,
                           ranks_[operand]));
        }
        return rank;
      }
      ++operand;
      begin = end + 1;
    }
    return std::nullopt;
  }

  void parse_tensors(std::vector<RuleTensor>& tensors, bool inputs) {
    do {
      tensors.push_back(parse_tensor(inputs));
      skip_space();
    } while (at_ < text_.size() && text_[at_] == ',' && ++at_);
  }

  RuleTensor parse_tensor(bool inputs) {
    RuleTensor tensor;
    skip_space();
    if (at_ < text_.size() && text_[at_] == '?') {
      ++at_;
      tensor.opaque = true;
      return tensor;
    }
    for (skip_space(); at_ < text_.size() && text_[at_] != ',' && text_[at_] != '-'; skip_space()) {
      if (text_[at_] == '*') {
        ++at_;
        if (!star_rank_) fail("'*' must stand in an operand whose rank is known");
        for (int i = 0; i < *star_rank_; ++i) {
          tensor.dims.push_back({{factor(fmt::format("*{}", i), FactorKind::kSpatial, inputs)}, 1});
        }
      } else if (text_[at_] == '(') {
        ++at_;
        RuleDim dim;
        for (skip_space(); at_ < text_.size() && text_[at_] != ')'; skip_space()) {
          parse_entry(dim, inputs);
        }
        if (at_ == text_.size()) fail("missing ')'");
        ++at_;
        if (dim.factors.empty()) fail("empty group");
        tensor.dims.push_back(std::move(dim));
      } else {
        RuleDim dim;
        parse_entry(dim, inputs);
        if (at_ < text_.size() && text_[at_] == '\'' && !dim.factors.empty()) {
          dim.scaled = true;
          ++at_;
        }
        tensor.dims.push_back(std::move(dim));
      }
      if (tensor.dims.size() > static_cast<std::size_t>(kMaxRank)) fail("more than 8 dimensions");
    }
    return tensor;
  }

  void parse_entry(RuleDim& dim, bool inputs) {
    const std::size_t begin = at_;
    if (std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      std::int64_t value = 0;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
        value = value * 10 + (text_[at_++] - '0');
        if (value > kMaxConstant) fail("decimal is larger than 2^40");
      }
      if (value == 0) fail("a dimension cannot be 0");
      if (value > kMaxConstant / dim.constant) fail("decimal is larger than 2^40");
      dim.constant *= value;
      return;
    }
    const auto is_id = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    };
    while (at_ < text_.size() && is_id(text_[at_])) ++at_;
    if (at_ == begin) fail(fmt::format("unexpected character '{}'", text_[at_]));
    const std::string id(text_.substr(begin, at_ - begin));
    FactorKind kind = FactorKind::kSpatial;
    if (at_ < text_.size()) {
      if (text_[at_] == '+')
        kind = FactorKind::kSum, ++at_;
      else if (text_[at_] == '^')
        kind = FactorKind::kFrozen, ++at_;
      else if (text_[at_] == '~')
        kind = FactorKind::kHalo, ++at_;
    }
    dim.factors.push_back(factor(id, kind, inputs));
  }

  int factor(const std::string& id, FactorKind kind, bool inputs) {
    for (std::size_t i = 0; i < rule_.factors.size(); ++i) {
      Factor& f = rule_.factors[i];
      if (f.id != id) continue;
      // A result may leave the mark of its factor out.
      if (f.kind != kind && !(kind == FactorKind::kSpatial && !inputs)) {
        fail(fmt::format("factor '{}' has two different marks", id));
      }
      if (!inputs && f.kind == FactorKind::kSum)
        fail(fmt::format("summed factor '{}' in a result", id));
      return static_cast<int>(i);
    }
    if (!inputs) fail(fmt::format("result factor '{}' is in no operand", id));
    rule_.factors.push_back({id, kind, 0, "", 1});
    return static_cast<int>(rule_.factors.size()) - 1;
  }

  std::string_view text_;
  std::span<const int> ranks_;
  std::size_t at_ = 0;
  std::optional<int> star_rank_;
  Rule rule_;
};

}  // namespace

Rule parse_rule(std::string_view annotation, std::span<const int> input_ranks) {
  return Parser(annotation, input_ranks).parse();
}

void bind_rule(Rule& rule, std::span<const TensorType> inputs, std::span<const FactorSize> sizes) {
  if (rule.inputs.size() != inputs.size()) {
    throw Error(fmt::format("takes {} operands, not {}", rule.inputs.size(), inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_tensor_type(inputs[i], fmt::format("operand {}", i));
  }
  for (const FactorSize& given : sizes) {
    if (given.size < 1 || given.size > kMaxDimSize) {
      throw Error(fmt::format("size of '{}' must be between 1 and 2^40: {}", given.id, given.size));
    }
    for (Factor& f : rule.factors) {
      if (f.id == given.id) f.size = given.size;
    }
  }
  const auto set = [&](int index, std::int64_t size, const Dim& dim) {
    Factor& f = rule.factors[static_cast<std::size_t>(index)];
    if (f.size == 0) f.size = size;
    if (f.size != size) {
      throw Error(fmt::format("dimension '{}' has size {} in one operand and {} in another",
                              f.label.empty() ? dim.name : f.label, f.size, size));
    }
  };
  // Plain dimensions first: they fix the sizes that groups then lean on.
  for (const bool groups : {false, true}) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const RuleTensor& tensor = rule.inputs[i];
      if (tensor.opaque) continue;
      if (tensor.dims.size() != inputs[i].dims.size()) {
        throw Error(fmt::format("operand {} must have rank {}: {}", i, tensor.dims.size(),
                                to_string(inputs[i])));
      }
      for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
        const RuleDim& rd = tensor.dims[d];
        const Dim& dim = inputs[i].dims[d];
        if (rd.factors.empty()) {
          if (rd.constant != dim.size) {
            throw Error(fmt::format("operand {}, dimension '{}' must be {}: {}", i, dim.name,
                                    rd.constant, dim.size));
          }
          continue;
        }
        if (rd.scaled) continue;
        const bool group = rd.factors.size() > 1 || rd.constant != 1;
        if (group != groups) continue;
        if (!group) {
          set(rd.factors[0], dim.size, dim);
          Factor& f = rule.factors[static_cast<std::size_t>(rd.factors[0])];
          if (f.label.empty()) f.label = dim.name;
          f.unit = std::lcm(f.unit, dim.unit);
          continue;
        }
        std::int64_t known = rd.constant;
        int unknown = -1;
        for (int index : rd.factors) {
          const Factor& f = rule.factors[static_cast<std::size_t>(index)];
          if (f.size > 0) {
            known = product(known, f.size, "group of", dim.name);
          } else if (unknown >= 0) {
            throw Error(fmt::format("dimension '{}': more than one size in the group is unknown",
                                    dim.name));
          } else {
            unknown = index;
          }
        }
        if (dim.size % known != 0 || (unknown < 0 && known != dim.size)) {
          throw Error(fmt::format("dimension '{}' of size {} does not factor into a group of {}",
                                  dim.name, dim.size, known));
        }
        if (unknown >= 0) rule.factors[static_cast<std::size_t>(unknown)].size = dim.size / known;
        Factor& leading = rule.factors[static_cast<std::size_t>(rd.factors[0])];
        if (leading.label.empty()) leading.label = dim.name;
        // Splits of the whole fall on multiples of its unit and of the inner factors.
        const std::int64_t inner = dim.size / leading.size;
        leading.unit = std::lcm(leading.unit, std::lcm(dim.unit, inner) / inner);
      }
    }
  }
  for (Factor& f : rule.factors) {
    if (f.size == 0) throw Error(fmt::format("size of factor '{}' does not follow", f.id));
    if (f.label.empty()) f.label = f.id;
  }
}

std::vector<TensorType> infer_from_rule(const Rule& rule, std::span<const TensorType> inputs) {
  DType dtype = inputs.empty() ? DType::kF32 : inputs[0].dtype;
  for (const TensorType& input : inputs) {
    if (is_floating(input.dtype)) {
      dtype = input.dtype;
      break;
    }
  }
  std::vector<TensorType> results;
  for (const RuleTensor& tensor : rule.outputs) {
    TensorType type{dtype, {}};
    for (const RuleDim& rd : tensor.dims) {
      Dim dim{"fixed", rd.constant, 1};
      std::int64_t inner = rd.constant;
      for (std::size_t k = 0; k < rd.factors.size(); ++k) {
        const Factor& f = rule.factors[static_cast<std::size_t>(rd.factors[k])];
        if (k == 0) {
          dim.name = f.label;
          dim.unit = rd.scaled ? 1 : f.unit;
        } else {
          inner = product(inner, f.size, "result", dim.name);
        }
        dim.size = product(dim.size, f.size, "result", dim.name);
      }
      if (rd.factors.size() != 1 || rd.constant != 1) {
        const Dim* source = same_group(rule, inputs, rd);
        dim.name = source != nullptr ? source->name : dim.name;
        dim.unit = source != nullptr ? source->unit : product(dim.unit, inner, "result", dim.name);
        if (rd.factors.empty()) dim.unit = 1;
      }
      type.dims.push_back(std::move(dim));
    }
    results.push_back(std::move(type));
  }
  return results;
}

std::string to_string(const Rule& rule) {
  const auto mark = [](FactorKind kind) {
    switch (kind) {
      case FactorKind::kSum:
        return "+";
      case FactorKind::kFrozen:
        return "^";
      case FactorKind::kHalo:
        return "~";
      case FactorKind::kSpatial:
        break;
    }
    return "";
  };
  const auto print = [&](const std::vector<RuleTensor>& tensors) {
    std::string text;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (i > 0) text += ", ";
      if (tensors[i].opaque) text += "?";
      for (std::size_t d = 0; d < tensors[i].dims.size(); ++d) {
        if (d > 0) text += " ";
        const RuleDim& dim = tensors[i].dims[d];
        const bool group = dim.factors.size() + (dim.constant != 1) > 1;
        if (group) text += "(";
        for (std::size_t k = 0; k < dim.factors.size(); ++k) {
          const Factor& f = rule.factors[static_cast<std::size_t>(dim.factors[k])];
          std::string id = f.id;
          if (id[0] == '*') id = "x" + id.substr(1);
          text +=
              fmt::format("{}{}{}{}", k > 0 ? " " : "", id, mark(f.kind), dim.scaled ? "'" : "");
        }
        if (dim.factors.empty() || dim.constant != 1) {
          text += fmt::format("{}{}", dim.factors.empty() ? "" : " ", dim.constant);
        }
        if (group) text += ")";
      }
    }
    return text;
  };
  return print(rule.inputs) + " -> " + print(rule.outputs);
}

}  // namespace meshwright
