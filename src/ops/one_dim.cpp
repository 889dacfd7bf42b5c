#include <fmt/format.h>

#include "base/error.h"
#include "ops/ops.h"

namespace meshwright {

std::size_t dim_attr(const OpContext& context, std::string_view name, std::size_t rank) {
  const std::int64_t stated = attr_int(context.attrs, name, 0);
  const auto signed_rank = static_cast<std::int64_t>(rank);
  const std::int64_t dim = stated < 0 ? stated + signed_rank : stated;
  if (dim < 0 || dim >= signed_rank) {
    throw Error(fmt::format("attribute '{}' is {}, but the rank is {}", name, stated, rank));
  }
  return static_cast<std::size_t>(dim);
}

std::string frozen_dim(std::size_t rank, std::size_t dim) {
  std::string operand;
  std::string result;
  for (std::size_t i = 0; i < rank; ++i) {
    operand += fmt::format("a{}{} ", i, i == dim ? "^" : "");
    result += fmt::format(" a{}{}", i, i == dim ? "'" : "");
  }
  return operand + "->" + result;
}

}  // namespace meshwright
