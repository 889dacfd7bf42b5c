// Prints the graph text form. The parser numbers values in order of appearance, so the printer
// writes a value where its id is due: inputs and parameters just before the operator that follows
// them, activations in the line of their operator. Only where an activation's id comes before its
// operator's turn is it declared by a line of its own.

#include <fmt/format.h>

#include <algorithm>

#include "ir/graph.h"
#include "ir/graph_words.h"

namespace meshwright {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string name_text(std::string_view name) {
  const bool bare = !name.empty() && name[0] != '-' && std::ranges::all_of(name, is_bare);
  return bare ? std::string(name) : quoted(name);
}

std::string type_text(const TensorType& type) {
  std::string text = fmt::format("{}[", dtype_name(type.dtype));
  for (std::size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    text += fmt::format("{}{}={}", i == 0 ? "" : ", ", name_text(dim.name), dim.size);
    if (dim.unit != 1) text += fmt::format("/{}", dim.unit);
  }
  return text + "]";
}

struct AttrPrinter {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<std::int64_t>& value) const {
    return fmt::format("[{}]", fmt::join(value, ", "));
  }
};

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string print() {
    text_ = fmt::format("graph {} {}\n", kGraphTextVersion, name_text(graph_.name));
    for (const Op& op : graph_.ops) print_op(op);
    declare_values(graph_.values.size());
    return std::move(text_);
  }

 private:
  // Lines of the values below `end` that have none yet.
  void declare_values(std::size_t end) {
    for (; next_ < end; ++next_) {
      const Value& value = graph_.values[next_];
      text_ += fmt::format("{} {} {}\n", kValueKeywords[static_cast<std::size_t>(value.kind)],
                           name_text(value.name), type_text(value.type));
    }
  }

  void print_op(const Op& op) {
    for (const ValueId id : op.inputs) declare_values(id.index() + 1);
    std::size_t end = next_;
    for (const ValueId id : op.outputs) end = std::max(end, id.index() + 1);
    bool in_line = !op.outputs.empty() && op.outputs[0].index() >= next_;
    for (std::size_t i = 0; i < op.outputs.size(); ++i) {
      in_line = in_line && op.outputs[i].index() == op.outputs[0].index() + i;
    }
    declare_values(in_line ? op.outputs[0].index() : end);
    text_ += fmt::format("op {} = {}(", name_text(op.name), name_text(op.kind));
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (i > 0) text_ += ", ";
      text_ += name_text(graph_.value(op.inputs[i]).name);
    }
    text_ += ')';
    std::string_view before = " {";
    for (const auto& [key, attr] : op.attrs) {
      text_ += fmt::format("{}{}={}", before, name_text(key), std::visit(AttrPrinter(), attr));
      before = ", ";
    }
    if (!op.attrs.empty()) text_ += '}';
    before = " -> ";
    for (const ValueId id : op.outputs) {
      const Value& value = graph_.value(id);
      text_ += before;
      before = ", ";
      const bool same_name = in_line && op.outputs.size() == 1 && value.name == op.name;
      if (!same_name) text_ += name_text(value.name);
      if (in_line) text_ += (same_name ? "" : " ") + type_text(value.type);
    }
    text_ += '\n';
    if (in_line) next_ = end;
  }

  const Graph& graph_;
  std::size_t next_ = 0;  // The first value without a line.
  std::string text_;
};

}  // namespace

std::string print_graph(const Graph& graph) { return Printer(graph).print(); }

// FNV-1a, 64 bits.
std::string graph_fingerprint(const Graph& graph) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : print_graph(graph)) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ull;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace meshwright
