#include <fmt/format.h>

#include "base/error.h"
#include "ops/dim_list.h"
#include "ops/kernel_dims.h"
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

// What functions need besides their dims.
struct Lack {
  std::string_view fn, what;
};
constexpr Lack kLacks[] = {
    {"local_response_norm", "its size, alpha, beta and bias"},
    {"lp_normalize", "its p"},
    {"trilu", "which triangle it keeps, and from which diagonal on"},
};

Slot one_hot(KernelBuilder& k, Slot x) {
  const std::int64_t last = -1;
  const Slot at = k.call("aten::argmax", {x, last, true});
  return k.call("aten::scatter.value", {k.call("aten::zeros_like", {x}), last, at, 1.0});
}

Kernel kernel(const KernelContext& c) {
  const std::string fn = attr_string(c.attrs, "fn", "");
  for (const Lack& lack : kLacks) {
    if (lack.fn == fn) cannot_run("over_dims", fn, lack.what);
  }
  const std::vector<bool> listed = listed_dims(op_context(c));
  KernelBuilder k(c);
  if (fn == "softmax" || fn == "log_softmax" || fn == "hardmax") {
    // Several dims count as one.
    const JoinedDims dims(sizes_of(c.input_boxes[0]), listed);
    const Slot x = dims.join(k, as_floating(k, c));
    const Slot y =
        fn == "hardmax" ? one_hot(k, x) : k.call("aten::" + fn + ".int", {x, std::int64_t{-1}});
    return k.finish({dims.split(k, y)});
  }
  if (fn == "cumsum" || fn == "cumprod") {
    const auto dims = attr_ints(c.attrs, "dims");
    if (dims.size() != 1) {
      throw Error(fmt::format("over_dims '{}' runs along one dim, not {}", fn, dims.size()));
    }
    return one_call(c, "aten::" + fn, {dims[0]});
  }
  cannot_run("over_dims", fn, "what it computes");
}

constexpr AttrSpec kAttrs[] = {
    {.name = "fn", .type = AttrType::kString, .required = true},
    {"dims", AttrType::kInts, true, -8, 7},
};

std::vector<OpDef::Example> examples() {
  const TensorType x{DType::kBf16, {{"batch", 4}, {"channels", 6}, {"height", 8}, {"width", 8}}};
  const Attr softmax = std::string("softmax");
  const Attr sums = std::string("cumsum");
  return {{{{"fn", softmax}, {"dims", std::vector<std::int64_t>{1}}}, {x}},
          {{{"fn", softmax}, {"dims", std::vector<std::int64_t>{-2, -1}}}, {x}},
          {{{"fn", sums}, {"dims", std::vector<std::int64_t>{2}}}, {x}}};
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
    .kernel = kernel,
    .examples = examples,
};

}  // namespace meshwright
