#include "ops/kernel_dims.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshwright {

bool is_empty(const Box& box) {
  return std::ranges::any_of(box, [](const Interval& i) { return i.empty(); });
}

void cannot_run(std::string_view kind, std::string_view fn, std::string_view lacks) {
  throw Error(fmt::format("{} '{}' cannot be run: the graph does not carry {}", kind, fn, lacks));
}

Slot as_floating(KernelBuilder& k, const KernelContext& c) {
  if (is_floating(c.inputs[0].dtype)) return {0};
  return k.call("aten::to.dtype", {Slot{0}, DType::kF64});
}

Slot along_channels(KernelBuilder& k, Slot vector, std::int64_t channels, int rank) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank), 1);
  sizes[1] = channels;
  return k.call("aten::reshape", {vector, sizes});
}

JoinedDims::JoinedDims(std::vector<std::int64_t> sizes, const std::vector<bool>& listed) {
  for (const bool last : {false, true}) {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (listed[d] == last) order_.push_back(static_cast<std::int64_t>(d));
    }
  }
  back_.resize(sizes.size());
  std::int64_t product = 1;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const auto d = static_cast<std::size_t>(order_[i]);
    back_[d] = static_cast<std::int64_t>(i);
    moved_.push_back(sizes[d]);
    if (listed[d]) {
      product *= sizes[d];
    } else {
      joined_.push_back(sizes[d]);
    }
  }
  joined_.push_back(product);
}

Slot JoinedDims::join(KernelBuilder& k, Slot x) const {
  return k.call("aten::reshape", {k.call("aten::permute", {x, order_}), joined_});
}

Slot JoinedDims::split(KernelBuilder& k, Slot x) const {
  return k.call("aten::permute", {k.call("aten::reshape", {x, moved_}), back_});
}

}  // namespace meshwright
