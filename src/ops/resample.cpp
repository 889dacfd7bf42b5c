#include <fmt/format.h>

#include "base/error.h"
#include "ops/dim_list.h"
#include "ops/kernel_dims.h"
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

using Ints = std::vector<std::int64_t>;

// What functions need besides sizes.
struct Lack {
  std::string_view fn, what;
};
constexpr Lack kLacks[] = {
    {"avg_pool", "its strides and padding"},
    {"depth_to_space", "the order of the blocks in the channels"},
    {"lp_pool", "its p, strides and padding"},
    {"max_pool", "its strides and padding"},
    {"resize", "its mode and how coordinates map"},
    {"strided_slice", "where it starts and its step"},
};

// One window over all of the dims.
bool is_global(const KernelContext& c, const std::vector<bool>& listed) {
  std::int64_t count = 1;
  for (std::size_t d = 0; d < listed.size(); ++d) {
    if (!listed[d]) continue;
    if (c.outputs[0].dims[d].size != 1) return false;
    count *= c.inputs[0].dims[d].size;
  }
  return attr_int(c.attrs, "window", 1) == count;
}

// Blocks of s x s pixels become s^2 channels each, the block's rows outermost.
Slot space_to_depth(KernelBuilder& k, const KernelContext& c) {
  const Ints sizes = sizes_of(c.input_boxes[0]);
  const Ints result = sizes_of(c.output_boxes[0]);
  const std::int64_t s = sizes.size() == 4 ? sizes[2] / result[2] : 0;
  if (s == 0 || Ints{sizes[0], sizes[1] * s * s, sizes[2] / s, sizes[3] / s} != result ||
      sizes[2] % s != 0 || sizes[3] % s != 0) {
    throw Error("resample 'space_to_depth': the sizes are not those of square blocks");
  }
  Slot x = k.call("aten::reshape", {Slot{0}, Ints{sizes[0], sizes[1], result[2], s, result[3], s}});
  x = k.call("aten::permute", {x, Ints{0, 3, 5, 1, 2, 4}});
  return k.call("aten::reshape", {x, result});
}

Kernel kernel(const KernelContext& c) {
  const std::string fn = attr_string(c.attrs, "fn", "");
  const std::vector<bool> listed = listed_dims(op_context(c));
  Ints dims;
  Ints repeats(listed.size(), 1);
  for (std::size_t d = 0; d < listed.size(); ++d) {
    if (!listed[d]) continue;
    dims.push_back(static_cast<std::int64_t>(d));
    const std::int64_t from = c.inputs[0].dims[d].size;
    const std::int64_t to = c.outputs[0].dims[d].size;
    repeats[d] = to / from;
    if ((fn == "expand" && from != 1) || (fn == "tile" && to % from != 0)) {
      throw Error(fmt::format("resample '{}' cannot make {} elements of {}", fn, to, from));
    }
  }
  KernelBuilder k(c);
  if (fn == "tile") return k.finish({k.call("aten::repeat", {Slot{0}, repeats})});
  if (fn == "expand") {
    return k.finish({k.call("aten::expand", {Slot{0}, sizes_of(c.output_boxes[0])})});
  }
  if (fn == "space_to_depth") return k.finish({space_to_depth(k, c)});
  if (fn.ends_with("_pool") && fn != "lp_pool" && !dims.empty() && is_global(c, listed)) {
    const Slot x = as_floating(k, c);
    return k.finish({k.call(fn == "max_pool" ? "aten::amax" : "aten::mean.dim", {x, dims, true})});
  }
  for (const Lack& lack : kLacks) {
    if (lack.fn == fn) cannot_run("resample", fn, lack.what);
  }
  cannot_run("resample", fn, "what it computes");
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
            {"sizes", list({1, 1})},
            {"window", std::int64_t{64}}},
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
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
