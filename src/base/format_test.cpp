#include "base/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace meshwright {
namespace {

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(format_bytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(format_bytes(Bytes(1024)), "1.0 KiB");
  EXPECT_EQ(format_bytes(Bytes(80e9)), "74.5 GiB");
  EXPECT_EQ(format_bytes(Bytes(-1536)), "-1.5 KiB");
  EXPECT_EQ(format_bytes(Bytes(1e20)), "88817.8 PiB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(format_seconds(Seconds(0)), "0.000 s");
  EXPECT_EQ(format_seconds(Seconds(1.2344)), "1.234 s");
  EXPECT_EQ(format_seconds(Seconds(0.0567)), "56.7 ms");
  EXPECT_EQ(format_seconds(Seconds(8.9e-6)), "8.9 us");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(125), "125");
  EXPECT_EQ(format_count(6738415616.0), "6.74 B");
  EXPECT_EQ(format_count(671.0e9), "671 B");
}

TEST(Format, Integers) {
  EXPECT_EQ(format_integer(0), "0");
  EXPECT_EQ(format_integer(999), "999");
  EXPECT_EQ(format_integer(1000), "1,000");
  EXPECT_EQ(format_integer(6738415616), "6,738,415,616");
  EXPECT_EQ(format_integer(-123456), "-123,456");
  EXPECT_EQ(format_integer(std::numeric_limits<long long>::max()), "9,223,372,036,854,775,807");
  EXPECT_EQ(format_integer(std::numeric_limits<long long>::min()), "-9,223,372,036,854,775,808");
}

}  // namespace
}  // namespace meshwright
