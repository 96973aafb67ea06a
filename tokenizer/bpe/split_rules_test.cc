#include "tokenizer/bpe/split_rules.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

TEST(SplitRulesTest, UnknownExpressionsAreNotGuessed) {
  EXPECT_TRUE(FindSplitRules(kLlama3Regex).has_value());
  EXPECT_FALSE(FindSplitRules("").has_value());
  EXPECT_FALSE(FindSplitRules(std::string(kLlama3Regex) + "|x").has_value());
}

TEST(SplitRulesTest, TheRegexOfRulesMeansTheSameToOniguruma) {
  for (const std::string_view regex : {kGpt2Regex, kCl100kRegex, kLlama3Regex}) {
    const SplitRules rules = *FindSplitRules(regex);
    const std::string_view written = SplitRegex(rules);
    EXPECT_EQ(FindSplitRules(written), rules);
    // Elsewhere a possessive repetition and the end of the text; there a repetition of a repetition
    // and the end of a line.
    EXPECT_EQ(written.find("{1,3}+"), std::string_view::npos) << written;
    EXPECT_EQ(written.find('$'), std::string_view::npos) << written;
  }
}

}  // namespace
}  // namespace tessera
