// A target with a planted fault, which the driver must find: `:` followed by a digit other than 1.
#include <cctype>
#include <stdexcept>

#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (std::size_t i = 1; i < size; ++i) {
    if (data[i - 1] == ':' && std::isdigit(data[i]) && data[i] != '1') {
      throw std::runtime_error("planted fault");
    }
  }
  return 0;
}

}  // namespace meshwright
