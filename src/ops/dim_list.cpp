#include "ops/dim_list.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {

std::vector<bool> listed_dims(const OpContext& context) {
  const auto rank = static_cast<std::int64_t>(context.inputs[0].dims.size());
  std::vector<bool> listed(context.inputs[0].dims.size());
  for (const std::int64_t stated : attr_ints(context.attrs, "dims")) {
    const std::int64_t dim = stated < 0 ? stated + rank : stated;
    if (dim < 0 || dim >= rank) {
      throw Error(
          fmt::format("attribute 'dims' names dimension {}, but the rank is {}", stated, rank));
    }
    if (listed[static_cast<std::size_t>(dim)]) {
      throw Error(fmt::format("attribute 'dims' names dimension {} twice", stated));
    }
    listed[static_cast<std::size_t>(dim)] = true;
  }
  return listed;
}

}  // namespace meshwright
