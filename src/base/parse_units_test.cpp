#include "base/parse_units.h"

#include <gmock/gmock.h>

#include <random>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(ParseUnits, ReadsWhatUsersWrite) {
  EXPECT_EQ(parse_bytes("80 GiB").value, 80.0 * (1ull << 30));
  EXPECT_EQ(parse_bytes(" 1.5TB ").value, 1.5e12);
  EXPECT_EQ(parse_bandwidth("450 GB/s").value, 450e9);
  EXPECT_EQ(parse_bandwidth("400 Gb/s").value, 50e9);
  EXPECT_EQ(parse_bandwidth("100Gbps").value, 12.5e9);
  EXPECT_EQ(parse_seconds("5 us").value, 5e-6);
  EXPECT_EQ(parse_seconds("0 s").value, 0);
  EXPECT_EQ(parse_flop_rate("989 TFLOP/s").value, 989e12);
  EXPECT_EQ(parse_flop_rate("2e0 PFLOPS").value, 2e15);
}

TEST(ParseUnits, RefusesTheRest) {
  EXPECT_THAT(error_of([] { parse_bandwidth("450"); }), HasSubstr("\"450\" has no unit"));
  EXPECT_THAT(error_of([] { parse_bandwidth("450 gb/s"); }), HasSubstr("unknown unit \"gb/s\""));
  EXPECT_THAT(error_of([] { parse_bandwidth("450 gb/s"); }), HasSubstr("400 Gb/s (bits)"));
  EXPECT_THAT(error_of([] { parse_bytes("-1 GiB"); }), HasSubstr("not negative"));
  EXPECT_THAT(error_of([] { parse_bytes("nan GiB"); }), HasSubstr("finite"));
  EXPECT_THAT(error_of([] { parse_bytes("inf GiB"); }), HasSubstr("finite"));
  EXPECT_THAT(error_of([] { parse_bytes("1e400 GiB"); }), HasSubstr("is not a size"));
  EXPECT_THAT(error_of([] { parse_bytes("lots"); }), HasSubstr("\"lots\" is not a size"));
  EXPECT_THAT(error_of([] { parse_bytes(""); }), HasSubstr("is not a size"));
  EXPECT_THAT(error_of([] { parse_seconds("5 us 3"); }), HasSubstr("unknown unit"));
}

TEST(ParseUnits, ExactTextIsReadable) {
  EXPECT_EQ(exact_text(BytesPerSecond(450e9)), "450 GB/s");
  EXPECT_EQ(exact_text(Bytes(79.1 * (1 << 30))), "79.1 GiB");
  EXPECT_EQ(exact_text(FlopsPerSecond(989.4e12)), "989.4 TFLOP/s");
  EXPECT_EQ(exact_text(Seconds(5e-6)), "5 us");
  EXPECT_EQ(exact_text(Bytes(0)), "0 B");
}

TEST(ParseUnits, ExactTextRoundTrips) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(-9, 15);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::pow(10.0, exponent(random));
    EXPECT_EQ(parse_bytes(exact_text(Bytes(value))).value, value);
    EXPECT_EQ(parse_bandwidth(exact_text(BytesPerSecond(value))).value, value);
    EXPECT_EQ(parse_seconds(exact_text(Seconds(value))).value, value);
    EXPECT_EQ(parse_flop_rate(exact_text(FlopsPerSecond(value))).value, value);
  }
}

}  // namespace
}  // namespace meshwright
