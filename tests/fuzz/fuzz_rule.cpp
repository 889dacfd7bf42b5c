// An input is a line of operand shapes ("4x16x32 64x32/8": sizes, and the last unit after "/") and
// a factor rule; the rule is parsed, bound to the shapes, and the result types are inferred from
// it.
#include <charconv>

#include "fuzz.h"
#include "ir/rule.h"

namespace meshwright {
namespace {

std::int64_t read_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) throw Error("not a number");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::vector<TensorType> read_shapes(std::string_view text) {
  std::vector<TensorType> types;
  while (!text.empty()) {
    TensorType& type = types.emplace_back();
    do {
      if (!text.empty() && text[0] == 'x') text.remove_prefix(1);
      type.dims.push_back({"dim", read_number(text), 1});
      if (!text.empty() && text[0] == '/') {
        text.remove_prefix(1);
        type.dims.back().unit = read_number(text);
      }
    } while (!text.empty() && text[0] == 'x');
    if (!text.empty()) text.remove_prefix(1);
    check_tensor_type(type, "operand");
  }
  return types;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const std::size_t newline = std::min(text.find('\n'), text.size());
    const std::vector<TensorType> types = read_shapes(text.substr(0, newline));
    std::vector<int> ranks;
    for (const TensorType& type : types) ranks.push_back(type.rank());

    Rule rule = parse_rule(text.substr(std::min(newline + 1, text.size())), ranks);
    const std::string printed = to_string(rule);
    MW_CHECK(to_string(parse_rule(printed, ranks)) == printed, "rule does not survive printing");
    bind_rule(rule, types);
    infer_from_rule(rule, types);
  });
}

}  // namespace meshwright
