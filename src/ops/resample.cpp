#include <fmt/format.h>

#include "base/error.h"
#include "ops/dim_list.h"
#include "ops/ops.h"

namespace meshwright {
namespace {

// Whatever gives some dims another size and needs them whole for it: pooling, resizing, strided
// slices, tiling, moving blocks between channels and space.

std::string annotation(const OpContext& c) {
  const std::vector<bool> changed = listed_dims(c);
  std::string operand;
  std::string result;
  for (std::size_t i = 0; i < changed.size(); ++i) {
    operand += fmt::format("a{}{} ", i, changed[i] ? "^" : "");
    result += fmt::format(" a{}{}", i, changed[i] ? "'" : "");
  }
  return operand + "->" + result;
}

std::vector<TensorType> infer(const OpContext& c, const Rule& rule) {
  const std::vector<std::int64_t> dims = attr_ints(c.attrs, "dims");
  const std::vector<std::int64_t> sizes = attr_ints(c.attrs, "sizes");
  if (sizes.size() != dims.size()) {
    throw Error(fmt::format("{} sizes for {} dimensions", sizes.size(), dims.size()));
  }
  std::vector<TensorType> results = infer_from_rule(rule, c.inputs);
  const auto rank = static_cast<std::int64_t>(results[0].dims.size());
  const std::string name = attr_string(c.attrs, "name", "");
  for (std::size_t i = 0; i < dims.size(); ++i) {
    Dim& dim = results[0].dims[static_cast<std::size_t>(dims[i] < 0 ? dims[i] + rank : dims[i])];
    dim = {name.empty() ? dim.name : name, sizes[i], 1};
  }
  return results;
}

Work work(const OpContext& c) {
  Work work = memory_work(c, static_cast<double>(attr_int(c.attrs, "window", 1)), 1);
  work.backward_input_flops = work.forward_flops;
  return work;
}

// Pooling keeps where its maxima were; the rest follows from the shapes.
Saved saved(const OpContext& c) {
  if (attr_string(c.attrs, "fn", "") != "max_pool") return {};
  return {{0}, {}, Bytes(8 * c.outputs[0].elements())};
}

constexpr AttrSpec kAttrs[] = {
    {.name = "fn", .type = AttrType::kString, .required = true},
    {"dims", AttrType::kInts, true, -8, 7},
    {"sizes", AttrType::kInts, true, 1},
    {"window", AttrType::kInt, false, 1},         // Elements read per element of the result.
    {.name = "name", .type = AttrType::kString},  // Of the dims that change, when not their own.
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"channels", 6}, {"height", 8}, {"width", 8}}};
  const auto text = [](const char* t) { return Attr(std::string(t)); };
  const auto list = [](std::vector<std::int64_t> d) { return Attr(std::move(d)); };
  return {{{{"fn", text("max_pool")},
            {"dims", list({2, 3})},
            {"sizes", list({4, 4})},
            {"window", std::int64_t{9}}},
           {x}},
          {{{"fn", text("tile")}, {"dims", list({-1})}, {"sizes", list({16})}}, {x}}};
}

}  // namespace

const OpDef kResample = {
    .kind = "resample",
    .summary = "Gives some dims other sizes, needing them whole: pooling, resizing, strides, tiles",
    .element_types = "a",
    .attrs = kAttrs,
    .annotation = annotation,
    .infer = infer,
    .work = work,
    .saved = saved,
    .examples = examples,
};

}  // namespace meshwright
