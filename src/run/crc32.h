#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace meshwright {

/// CRC-32 of ISO-HDLC, which zlib.crc32 and gzip compute (of "123456789": 0xcbf43926), continued
/// from the value of the bytes before (0 at the start). Every change within 32 adjacent bits is
/// seen.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> data);

}  // namespace meshwright
