#include "ir/tensor_type.h"

#include <fmt/format.h>

#include "base/error.h"

namespace meshwright {

double TensorType::elements() const {
  double product = 1;
  for (const Dim& dim : dims) product *= static_cast<double>(dim.size);
  return product;
}

Bytes TensorType::bytes() const { return Bytes(elements() * dtype_bytes(dtype)); }

std::string to_string(const TensorType& type) {
  std::string text = fmt::format("{}[", dtype_name(type.dtype));
  for (std::size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    text += fmt::format("{}{}={}", i == 0 ? "" : ", ", dim.name, dim.size);
    if (dim.unit != 1) text += fmt::format("/{}", dim.unit);
  }
  return text + "]";
}

void check_tensor_type(const TensorType& type, const std::string& where) {
  if (type.rank() > kMaxRank) {
    throw Error(fmt::format("a tensor has at most {} dimensions, not {}", kMaxRank, type.rank()),
                where);
  }
  for (const Dim& dim : type.dims) {
    if (dim.size < 1 || dim.size > kMaxDimSize) {
      throw Error(fmt::format("dimension '{}' must be between 1 and 2^40: {}", dim.name, dim.size),
                  where);
    }
    if (dim.unit < 1 || dim.size % dim.unit != 0) {
      throw Error(fmt::format("dimension '{}' of size {} is not a multiple of its unit {}",
                              dim.name, dim.size, dim.unit),
                  where);
    }
  }
  if (type.elements() > kMaxTensorElements) {
    throw Error(fmt::format("tensor {} has more than 2^53 elements", to_string(type)), where);
  }
}

}  // namespace meshwright
