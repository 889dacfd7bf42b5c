#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// An operator of which only the types of its results are known. Nothing of it may be split: every
// device has whole operands and computes whole results. The attribute "results" holds the types as
// text, "bf16[batch=8, hidden=4096]; i64[batch=8]".

constexpr std::size_t kMaxText = 65536;
constexpr std::size_t kMaxResults = 1024;

class TypeParser {
 public:
  explicit TypeParser(std::string_view text) : text_(text) {}

  std::vector<TensorType> parse() {
    std::vector<TensorType> types;
    do {
      if (types.size() == kMaxResults) fail("has more than 1024 types");
      types.push_back(type());
    } while (accept(';'));
    if (at_ != text_.size()) fail("has text after the last type");
    return types;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(fmt::format("attribute 'results', column {}: {}", at_ + 1, what), {},
                "legal: bf16[batch=8, hidden=4096]; i64[batch=8]");
  }

  bool accept(char c) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view until(std::string_view stops) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const std::size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    return word;
  }

  std::int64_t size() {
    std::int64_t value = 0;
    const std::string_view word = until(",]/");
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) fail("expected a size");
    return value;
  }

  TensorType type() {
    TensorType type;
    type.dtype = parse_dtype(until("["));
    if (!accept('[')) fail("expected '['");
    if (accept(']')) return type;
    do {
      if (type.dims.size() == static_cast<std::size_t>(kMaxRank)) fail("more than 8 dimensions");
      Dim dim;
      dim.name = until("=");
      if (dim.name.empty() || !accept('=')) fail("expected 'name=size'");
      dim.size = size();
      if (accept('/')) dim.unit = size();
      type.dims.push_back(std::move(dim));
    } while (accept(','));
    if (!accept(']')) fail("expected ']'");
    check_tensor_type(type, "");
    return type;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::vector<TensorType> results(const OpContext& c) {
  const std::string text = attr_string(c.attrs, "results", "");
  if (text.size() > kMaxText) throw Error("attribute 'results' is longer than 65536 characters");
  return TypeParser(text).parse();
}

// Dims as numbers: sizes without a factor cannot be split. Operands too many for that are opaque as
// a whole.
std::string annotation(const OpContext& c) {
  constexpr std::size_t kMaxAnnotation = 4000;
  const std::vector<TensorType> types = results(c);
  std::string sizes;
  std::string marks;
  const auto append = [&](std::span<const TensorType> tensors) {
    for (const TensorType& t : tensors) {
      if (&t != tensors.data()) sizes += ',', marks += ',';
      marks += " ?";
      for (const Dim& dim : t.dims) sizes += fmt::format(" {}", dim.size);
    }
  };
  append(c.inputs);
  sizes += " ->", marks += " ->";
  append(types);
  return sizes.size() <= kMaxAnnotation ? sizes : marks;
}

std::vector<TensorType> infer(const OpContext& c, const Rule&) { return results(c); }

Work work(const OpContext& c) {
  Work work = memory_work(c, 1, 1);
  work.forward_flops = work.backward_input_flops = Flops(0);
  for (const TensorType& t : c.outputs) work.forward_flops += Flops(t.elements());
  work.backward_input_flops = work.forward_flops;
  return work;
}

constexpr AttrSpec kAttrs[] = {
    {.name = "op",
     .type = AttrType::kString,
     .required = true},  // What it is: "NonMaxSuppression".
    {.name = "results", .type = AttrType::kString, .required = true},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"seq", 16}, {"hidden", 32}}};
  const TensorType ids{DType::kI64, {{"batch", 4}}};
  const auto text = [](const char* t) { return Attr(std::string(t)); };
  return {{{{"op", text("Sort")}, {"results", text("bf16[batch=4, seq=16]; i64[batch=4]")}}, {x}},
          {{{"op", text("Lookup")}, {"results", text("f32[]")}}, {x, ids}}};
}

}  // namespace

const OpDef kOpaque = {
    .kind = "opaque",
    .summary = "Operator 'op' without a rule: whole operands, whole results of the stated types",
    .operands = {1, 1024},
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .examples = examples,
};

}  // namespace meshwright
