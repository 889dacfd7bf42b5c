#include "base/json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    parse_json(text, "x.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Json, ParsesAndKeepsOrder) {
  const Json json = parse_json(R"({"b": 1, "a": [2.5, null]})", "x.json");
  EXPECT_EQ(json.dump(), R"({"b":1,"a":[2.5,null]})");
}

TEST(Json, ErrorsNameLineAndColumn) {
  EXPECT_THAT(error_of("{\n  \"a\": }"), HasSubstr("x.json:2:"));
  EXPECT_THAT(error_of(""), HasSubstr("not valid JSON"));
}

TEST(Json, ErrorsQuoteOnlyPrintableBytes) {
  EXPECT_THAT(error_of("\xff\x01"), HasSubstr("last read: '\\xff'"));
}

TEST(Json, DeepNestingIsRefused) {
  EXPECT_THAT(error_of(std::string(100000, '[')), HasSubstr("200 levels"));
  const std::string brackets_in_a_string = "\"" + std::string(1000, '[') + "\"";
  EXPECT_EQ(error_of(brackets_in_a_string), "no error");
}

}  // namespace
}  // namespace meshwright
