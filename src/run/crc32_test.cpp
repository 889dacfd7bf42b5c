#include "run/crc32.h"

#include <gmock/gmock.h>

#include <random>
#include <string_view>
#include <vector>

namespace meshwright {
namespace {

std::uint32_t bit_by_bit(std::span<const std::byte> data) {
  std::uint32_t state = ~0u;
  for (const std::byte byte : data) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) ? 0xedb88320u : 0u);
  }
  return ~state;
}

TEST(Crc32, KnownValues) {
  const auto of = [](std::string_view text) { return crc32(0, std::as_bytes(std::span(text))); };
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xcbf43926u);  // The catalogue's check value.
  // zlib.crc32(bytes(range(256)) * 4) of Python.
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(of(bytes), 0xb70b4c26u);
}

TEST(Crc32, EqualsTheDefinitionForEveryLengthAndCut) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(700);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  const std::span<const std::byte> all = data;
  for (std::size_t begin = 0; begin < 3; ++begin) {
    for (std::size_t size = 0; begin + size <= data.size(); ++size) {
      const auto part = all.subspan(begin, size);
      ASSERT_EQ(crc32(0, part), bit_by_bit(part)) << begin << " " << size;
      const std::size_t cut = size == 0 ? 0 : random() % size;
      ASSERT_EQ(crc32(crc32(0, part.first(cut)), part.subspan(cut)), bit_by_bit(part));
    }
  }
}

}  // namespace
}  // namespace meshwright
