// Parses the graph text form; docs/graph_format.md has the grammar and the limits.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/graph_words.h"

namespace meshwright {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 30;
constexpr std::size_t kMaxLine = std::size_t{1} << 20;
constexpr std::size_t kMaxValues = 20'000'000;
constexpr std::size_t kMaxOperands = 1024;
constexpr std::size_t kMaxAttrs = 64;
constexpr std::size_t kMaxList = 4096;

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Graph parse() {
    if (text_.size() > kMaxText) {
      throw Error("graph text is larger than 1 GiB", std::string(source_));
    }
    bool header = false;
    for (std::size_t begin = 0; begin < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      line_ = text_.substr(begin, end - begin);
      begin = end + 1;
      ++line_number_;
      at_ = 0;
      if (line_.size() > kMaxLine) fail("line is longer than 1 MiB");
      if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
      if (at_end()) continue;
      if (header) {
        parse_statement();
      } else {
        parse_header();
        header = true;
      }
      if (!at_end()) fail(fmt::format("unexpected '{}'", line_[at_]));
    }
    if (!header) throw Error("graph text is empty", fmt::format("{}:1:1", source_));
    for (const auto& [value, line] : declared_) {
      if (!graph_.value(value).producer.valid()) {
        throw Error(fmt::format("no operator computes value '{}'", graph_.value(value).name),
                    fmt::format("{}:{}:1", source_, line));
      }
    }
    try {
      check_graph(graph_);
    } catch (const Error& e) {
      throw e.within(source_);
    }
    return std::move(graph_);
  }

 private:
  [[noreturn]] void fail_at(std::size_t column, std::string message, std::string hint = {}) const {
    throw Error(std::move(message), fmt::format("{}:{}:{}", source_, line_number_, column + 1),
                std::move(hint));
  }
  [[noreturn]] void fail(std::string message, std::string hint = {}) const {
    fail_at(at_, std::move(message), std::move(hint));
  }

  void skip_space() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t')) ++at_;
  }

  // At the end of the statement (a comment may follow).
  bool at_end() {
    skip_space();
    return at_ == line_.size() || line_[at_] == '#';
  }

  bool accept(std::string_view token) {
    skip_space();
    if (line_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (accept(token)) return;
    if (at_end()) fail(fmt::format("expected '{}' before the end of the line", token));
    fail(fmt::format("expected '{}', not '{}'", token, line_[at_]));
  }

  // The longest bare word here; stops before "->".
  std::string_view word() {
    skip_space();
    std::size_t end = at_;
    while (end < line_.size() && is_bare(line_[end]) && line_.substr(end, 2) != "->") ++end;
    return line_.substr(at_, end - at_);
  }

  std::string name(std::string_view what) {
    skip_space();
    if (at_ < line_.size() && line_[at_] == '"') return quoted_text();
    const std::string_view text = word();
    if (text.empty()) fail(fmt::format("expected {}", what));
    at_ += text.size();
    return std::string(text);
  }

  std::string quoted_text() {
    const std::size_t begin = at_++;
    std::string result;
    for (; at_ < line_.size() && line_[at_] != '"'; ++at_) {
      if (line_[at_] != '\\') {
        result += line_[at_];
        continue;
      }
      const char escape = ++at_ < line_.size() ? line_[at_] : ' ';
      if (escape == '"' || escape == '\\') {
        result += escape;
      } else if (escape == 'x') {
        unsigned byte = 0;
        const std::string_view digits = line_.substr(at_ + 1, 2);
        const char* end = digits.data() + digits.size();
        const auto [rest, error] = std::from_chars(digits.data(), end, byte, 16);
        if (digits.size() != 2 || error != std::errc() || rest != end) {
          fail("expected two hexadecimal digits after '\\x'");
        }
        result += static_cast<char>(byte);
        at_ += 2;
      } else {
        fail("unknown escape", "legal: \\\" \\\\ \\xHH");
      }
    }
    if (at_ >= line_.size()) fail_at(begin, "missing closing '\"'");
    ++at_;
    return result;
  }

  std::int64_t integer(std::string_view what) {
    const std::string_view text = word();
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (text.empty() || error != std::errc() || rest != end) {
      fail(fmt::format("expected {}", what));
    }
    at_ += text.size();
    return value;
  }

  void parse_header() {
    if (word() != "graph") fail("expected 'graph 1 NAME' on the first line");
    at_ += 5;
    skip_space();
    const std::size_t column = at_;
    const std::int64_t version = integer("the version of the format, 1");
    if (version != kGraphTextVersion) {
      fail_at(column, fmt::format("unknown version {} of the graph format", version),
              "this program reads version 1");
    }
    graph_.name = name("the name of the graph");
  }

  void parse_statement() {
    const std::string_view keyword = word();
    if (keyword == "op") {
      at_ += 2;
      parse_op();
      return;
    }
    const auto found = std::ranges::find(kValueKeywords, keyword);
    if (found == kValueKeywords.end()) fail("expected input, param, buffer, value or op");
    at_ += keyword.size();
    skip_space();
    const std::size_t column = at_;
    std::string value_name = name("the name of a value");
    const auto kind = static_cast<ValueKind>(found - kValueKeywords.begin());
    const ValueId id = define(std::move(value_name), column, kind, OpId());
    if (kind == ValueKind::kActivation) declared_.emplace_back(id, line_number_);
  }

  // Adds a value whose type stands here.
  ValueId define(std::string value_name, std::size_t column, ValueKind kind, OpId producer) {
    if (graph_.values.size() >= kMaxValues) fail("more than 20 million values");
    skip_space();
    const std::size_t type_column = at_;
    TensorType type = parse_type();
    try {
      check_tensor_type(type, "");
    } catch (const Error& e) {
      fail_at(type_column, e.message(), e.hint());
    }
    const ValueId id(static_cast<std::int64_t>(graph_.values.size()));
    if (!values_.emplace(value_name, id).second) {
      fail_at(column, fmt::format("two values are named '{}'", value_name));
    }
    graph_.values.push_back({std::move(value_name), std::move(type), kind, producer});
    return id;
  }

  TensorType parse_type() {
    TensorType type;
    const std::string_view dtype = word();
    if (dtype.empty()) fail("expected a type such as bf16[batch=8, hidden=4096]");
    try {
      type.dtype = parse_dtype(dtype);
    } catch (const Error& e) {
      fail(e.message(), e.hint());
    }
    at_ += dtype.size();
    expect("[");
    if (accept("]")) return type;
    do {
      if (type.dims.size() >= static_cast<std::size_t>(kMaxRank)) fail("more than 8 dimensions");
      Dim dim;
      dim.name = name("the name of a dimension");
      expect("=");
      // A bare word may hold the '/' of the unit.
      const std::string_view sizes = word();
      const std::size_t slash = std::min(sizes.find('/'), sizes.size());
      dim.size = size(sizes.substr(0, slash));
      if (slash < sizes.size()) dim.unit = size(sizes.substr(slash + 1));
      at_ += sizes.size();
      type.dims.push_back(std::move(dim));
    } while (accept(","));
    expect("]");
    return type;
  }

  std::int64_t size(std::string_view text) const {
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (text.empty() || error != std::errc() || rest != end) {
      fail("expected a size such as 4096, or 4096/128 with a unit");
    }
    return value;
  }

  void parse_op() {
    skip_space();
    const std::size_t column = at_;
    Op op;
    op.name = name("the name of an operator");
    if (!op_names_.insert(op.name).second) {
      fail_at(column, fmt::format("two operators are named '{}'", op.name));
    }
    expect("=");
    op.kind = name("an operator kind");
    expect("(");
    if (!accept(")")) {
      do {
        if (op.inputs.size() >= kMaxOperands) fail("more than 1024 operands");
        op.inputs.push_back(operand());
      } while (accept(","));
      expect(")");
    }
    if (accept("{")) parse_attrs(op.attrs);
    const OpId id(static_cast<std::int64_t>(graph_.ops.size()));
    if (accept("->")) {
      do {
        if (op.outputs.size() >= kMaxOperands) fail("more than 1024 results");
        op.outputs.push_back(result(op.name, id));
      } while (accept(","));
    }
    graph_.ops.push_back(std::move(op));
  }

  ValueId operand() {
    skip_space();
    const std::size_t column = at_;
    const std::string value_name = name("an operand");
    const auto found = values_.find(value_name);
    if (found == values_.end()) {
      fail_at(column, fmt::format("unknown value '{}'", value_name));
    }
    const Value& value = graph_.value(found->second);
    if (value.kind == ValueKind::kActivation && !value.producer.valid()) {
      fail_at(column, fmt::format("operand '{}' is used before it is computed", value_name));
    }
    return found->second;
  }

  // TYPE (named like its operator), NAME TYPE, or the NAME of a declared value.
  ValueId result(const std::string& op_name, OpId producer) {
    skip_space();
    const std::size_t column = at_;
    const std::string_view first = word();
    if (!first.empty() && line_.substr(at_ + first.size(), 1) == "[") {
      return define(op_name, column, ValueKind::kActivation, producer);
    }
    const std::string value_name = name("a result: a type, or a name and a type");
    if (!at_end() && line_[at_] != ',') {
      return define(value_name, column, ValueKind::kActivation, producer);
    }
    const auto found = values_.find(value_name);
    if (found == values_.end()) {
      fail_at(column, fmt::format("result '{}' has no type", value_name));
    }
    Value& value = graph_.values[found->second.index()];
    if (value.kind != ValueKind::kActivation || value.producer.valid()) {
      fail_at(column, fmt::format("value '{}' is computed twice", value_name));
    }
    value.producer = producer;
    return found->second;
  }

  void parse_attrs(Attrs& attrs) {
    do {
      if (attrs.size() >= kMaxAttrs) fail("more than 64 attributes");
      skip_space();
      const std::size_t column = at_;
      std::string key = name("the name of an attribute");
      expect("=");
      Attr attr = parse_attr();
      if (!attrs.emplace(key, std::move(attr)).second) {
        fail_at(column, fmt::format("attribute '{}' is given twice", key));
      }
    } while (accept(","));
    expect("}");
  }

  Attr parse_attr() {
    skip_space();
    if (at_ < line_.size() && line_[at_] == '"') return quoted_text();
    if (accept("[")) {
      std::vector<std::int64_t> list;
      if (accept("]")) return list;
      do {
        if (list.size() >= kMaxList) fail("more than 4096 elements in a list");
        list.push_back(integer("an integer"));
      } while (accept(","));
      expect("]");
      return list;
    }
    // A number such as 1e+20 is not one bare word.
    std::size_t end = at_;
    while (end < line_.size() && (is_bare(line_[end]) || line_[end] == '+')) ++end;
    const std::string_view text = line_.substr(at_, end - at_);
    if (text == "true" || text == "false") {
      at_ = end;
      return text == "true";
    }
    const char* last = text.data() + text.size();
    if (std::int64_t whole = 0; text.find_first_of(".eE") == std::string_view::npos) {
      const auto [rest, error] = std::from_chars(text.data(), last, whole);
      if (!text.empty() && error == std::errc() && rest == last) {
        at_ = end;
        return whole;
      }
    } else {
      double number = 0;
      const auto [rest, error] = std::from_chars(text.data(), last, number);
      if (error == std::errc() && rest == last && std::isfinite(number)) {
        at_ = end;
        return number;
      }
    }
    fail("expected true, false, a number, a quoted string or a list of integers");
  }

  std::string_view text_;
  std::string_view source_;
  std::string_view line_;
  std::size_t line_number_ = 0;
  std::size_t at_ = 0;
  Graph graph_;
  std::unordered_map<std::string, ValueId> values_;
  std::unordered_set<std::string> op_names_;
  std::vector<std::pair<ValueId, std::size_t>> declared_;  // By a "value" line, and which.
};

}  // namespace

Graph parse_graph(std::string_view text, std::string_view source) {
  return Parser(text, source).parse();
}

}  // namespace meshwright
