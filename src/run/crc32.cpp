// Long inputs are folded 64 bytes at a time by carry-less multiplication (Gopal et al. 2009, "Fast
// CRC computation for generic polynomials using the PCLMULQDQ instruction", the bit-reflected
// form with its constants for this polynomial), ends and other processors by eight tables (Kounavis
// and Berry 2005, "slicing-by-8"). A checkpoint is read at the speed of this function or the disk.
#include "run/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace meshwright {
namespace {

using Table = std::array<std::uint32_t, 256>;

constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0xedb88320u : 0u);
    tables[0][i] = value;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t last = tables[t - 1][i];
      tables[t][i] = (last >> 8) ^ tables[0][last & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

std::uint32_t by_tables(std::uint32_t state, const unsigned char* p, std::size_t size) {
  for (; size >= 8; p += 8, size -= 8) {
    // Byte by byte, so that it holds on machines of either byte order.
    state = kTables[7][(state & 0xff) ^ p[0]] ^ kTables[6][((state >> 8) & 0xff) ^ p[1]] ^
            kTables[5][((state >> 16) & 0xff) ^ p[2]] ^ kTables[4][(state >> 24) ^ p[3]] ^
            kTables[3][p[4]] ^ kTables[2][p[5]] ^ kTables[1][p[6]] ^ kTables[0][p[7]];
  }
  for (; size > 0; ++p, --size) state = (state >> 8) ^ kTables[0][(state & 0xff) ^ *p];
  return state;
}

#if defined(__x86_64__)
// `x` moved on by as many bits as `by` stands for, plus `next`.
__attribute__((target("pclmul,sse4.1"))) inline __m128i fold(__m128i x, __m128i by, __m128i next) {
  return _mm_xor_si128(
      next, _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)));
}

__attribute__((target("pclmul,sse4.1"))) inline __m128i load(const unsigned char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// `size` is a multiple of 16, 64 at least.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t by_folding(std::uint32_t state,
                                                                  const unsigned char* p,
                                                                  std::size_t size) {
  const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  __m128i x[4];
  for (int i = 0; i < 4; ++i) x[i] = load(p + 16 * i);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
    for (int i = 0; i < 4; ++i) x[i] = fold(x[i], by_512, load(p + 16 * i));
  }
  __m128i sum = x[0];
  for (int i = 1; i < 4; ++i) sum = fold(sum, by_128, x[i]);
  for (; size >= 16; p += 16, size -= 16) sum = fold(sum, by_128, load(p));

  // 128 bits to 96, to 64, and Barrett's reduction to 32.
  const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
  sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_128, 0x10));
  sum = _mm_xor_si128(
      _mm_srli_si128(sum, 4),
      _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), _mm_set_epi64x(0, 0x0163cd6124), 0x00));
  const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), barrett, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), barrett, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(sum, quotient), 1));
}

bool can_fold() {
  static const bool kCan = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return kCan;
}
#endif

}  // namespace

std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> data) {
  const auto* p = reinterpret_cast<const unsigned char*>(data.data());
  std::size_t size = data.size();
  std::uint32_t state = ~before;
#if defined(__x86_64__)
  if (size >= 64 && can_fold()) {
    const std::size_t folded = size / 16 * 16;
    state = by_folding(state, p, folded);
    p += folded;
    size -= folded;
  }
#endif
  return ~by_tables(state, p, size);
}

}  // namespace meshwright
