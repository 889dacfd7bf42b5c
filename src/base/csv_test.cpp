#include "base/csv.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace meshwright {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string failure(std::string_view text) {
  try {
    parse_csv(text, "t.csv");
  } catch (const Error& e) {
    return e.where() + ": " + e.message();
  }
  return "no error";
}

TEST(Csv, ReadsQuotesCommasAndLineBreaks) {
  const CsvTable table = parse_csv("a,b\r\n1,\"x, \"\"y\"\"\nz\"\n\n,2\n", "t.csv");
  EXPECT_THAT(table.columns, ElementsAre("a", "b"));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_THAT(table.rows[0].cells, ElementsAre("1", "x, \"y\"\nz"));
  EXPECT_EQ(table.rows[0].line, 2);
  EXPECT_THAT(table.rows[1].cells, ElementsAre("", "2"));
  EXPECT_EQ(table.rows[1].line, 5);
  EXPECT_EQ(table.column("b"), 1);
  EXPECT_EQ(table.column("c"), -1);
}

TEST(Csv, LastLineNeedsNoLineBreak) {
  const CsvTable table = parse_csv(
      "\xEF\xBB\xBF"
      "a,b\n1,",
      "t.csv");
  EXPECT_THAT(table.columns, ElementsAre("a", "b"));
  EXPECT_THAT(table.rows[0].cells, ElementsAre("1", ""));
}

TEST(Csv, FaultsNameTheLine) {
  EXPECT_EQ(failure(""), "t.csv: has no header line");
  EXPECT_EQ(failure("a,a\n"), "t.csv:1: column 'a' appears twice");
  EXPECT_EQ(failure("a,b\n1,2\n3\n"), "t.csv:3: 1 cells under 2 columns");
  EXPECT_EQ(failure("a,b\n1,\"2\n3"), "t.csv:2: a quoted cell is never closed");
  EXPECT_THAT(failure("a,b\n1,\"2\"3\n"), HasSubstr("t.csv:2: a comma or the end of the line"));
  EXPECT_THAT(failure(std::string(300, ',')), HasSubstr("more than 256 columns"));
}

}  // namespace
}  // namespace meshwright
