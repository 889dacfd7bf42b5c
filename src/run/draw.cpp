#include "run/draw.h"

namespace meshwright {

std::uint64_t draw_key(std::uint64_t seed, std::uint64_t value) {
  return draw_bits(seed ^ 0xd1b54a32d192ed03ull, value);
}

std::uint64_t draw_key(std::uint64_t seed, std::string_view text) {
  std::uint64_t key = draw_key(seed, text.size());
  for (char c : text) key = draw_key(key, static_cast<unsigned char>(c));
  return key;
}

}  // namespace meshwright
