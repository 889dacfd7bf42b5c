#include <fmt/format.h>

#include "ops/dim_list.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Functions whose every element depends on whole dims: softmax along a dim that is not the last,
// cumulative sums, triangles, sorts. Those dims cannot be split.

std::string annotation(const OpContext& c) {
  const std::vector<bool> whole = listed_dims(c);
  std::string text;
  for (std::size_t i = 0; i < whole.size(); ++i)
    text += fmt::format("a{}{} ", i, whole[i] ? "^" : "");
  return text + "-> " + text;
}

Work work(const OpContext& c) { return memory_work(c, 5, 1.5); }
Saved saved(const OpContext&) { return {{}, {0}, Bytes(0)}; }

constexpr AttrSpec kAttrs[] = {
    {.name = "fn", .type = AttrType::kString, .required = true},
    {"dims", AttrType::kInts, true, -8, 7},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"channels", 6}, {"height", 8}, {"width", 8}}};
  const Attr softmax = std::string("softmax");
  const Attr triangle = std::string("trilu");
  return {{{{"fn", softmax}, {"dims", std::vector<std::int64_t>{1}}}, {x}},
          {{{"fn", triangle}, {"dims", std::vector<std::int64_t>{-2, -1}}}, {x}}};
}

}  // namespace

const OpDef kOverDims = {
    .kind = "over_dims",
    .summary = "Function 'fn' along whole dims, which stay unsplit: [*] -> [*]",
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
