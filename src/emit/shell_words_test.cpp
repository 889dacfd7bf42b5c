#include "emit/shell_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/error.h"

namespace meshwright {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ShellWords, SplitsAsAShellDoes) {
  EXPECT_THAT(split_shell_words(""), IsEmpty());
  EXPECT_THAT(split_shell_words("  a\tb\n c "), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split_shell_words("'a b' \"c d\" e\\ f"), ElementsAre("a b", "c d", "e f"));
  EXPECT_THAT(split_shell_words("--layout=\"Et|tL\"x"), ElementsAre("--layout=Et|tLx"));
  EXPECT_THAT(split_shell_words("Et|(tt|)*2tL"), ElementsAre("Et|(tt|)*2tL"));
  EXPECT_THAT(split_shell_words("\"a\\\"b\\n\" 'a\\'"), ElementsAre("a\"b\\n", "a\\"));
  EXPECT_THAT(split_shell_words("'' \"\""), ElementsAre("", ""));
  EXPECT_THAT(split_shell_words("a \\\n  b \\\r\n c\\\nd"), ElementsAre("a", "b", "cd"));
  EXPECT_THAT(split_shell_words("a # b 'c\nd e#f"), ElementsAre("a", "d", "e#f"));
  EXPECT_THAT(split_shell_words("a\\"), ElementsAre("a\\"));
}

TEST(ShellWords, EndsAtTheEndOfTheCommand) {
  for (const auto* rest :
       {"| tee x", "2>&1 | tee x", "&& b", "; b", "&", "> x", "&>x", "2>/dev/null"})
    EXPECT_THAT(split_shell_words(std::string("a 1 ") + rest), ElementsAre("a", "1")) << rest;
  EXPECT_THAT(split_shell_words("a '|' \\> Et|tL"), ElementsAre("a", "|", ">", "Et|tL"));
}

TEST(ShellWords, RefusesOpenQuotesAndHugeLines) {
  const auto message = [](std::string_view line) {
    try {
      split_shell_words(line);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("ab 'c"), "command line, character 4: the quote ' is never closed");
  EXPECT_EQ(message("\"c\\\""), "command line, character 1: the quote \" is never closed");
  EXPECT_THAT(message(std::string(2'000'000, 'a')), HasSubstr("at most"));
}

TEST(ShellWords, QuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(quote_shell_word("--num-layers=32"), "--num-layers=32");
  EXPECT_EQ(quote_shell_word("Et|tL"), "'Et|tL'");
  EXPECT_EQ(quote_shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(quote_shell_word(""), "''");
}

TEST(ShellWords, SplitOfJoinIsTheSame) {
  EXPECT_TRUE(rc::check("any words", [](const std::vector<std::string>& words) {
    RC_ASSERT(split_shell_words(join_shell_words(words)) == words);
  }));
  EXPECT_TRUE(rc::check("words of awkward letters", [] {
    const auto words =
        *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(
            rc::gen::element('a', ' ', '\'', '"', '\\', '\n', '#', '$', '|', '>', '&')));
    RC_ASSERT(split_shell_words(join_shell_words(words)) == words);
  }));
}

}  // namespace
}  // namespace meshwright
