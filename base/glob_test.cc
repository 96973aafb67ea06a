#include "base/glob.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(GlobTest, Matches) {
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("a*c*", "abcc"));
  EXPECT_TRUE(MatchesGlob("*ab", "aab"));
  EXPECT_TRUE(MatchesGlob("h.?.attn.*", "h.3.attn.c_proj.weight"));
  EXPECT_TRUE(MatchesGlob("h.[01].*", "h.1.ln_1.bias"));
  EXPECT_TRUE(MatchesGlob("a*", "a/b"));
  EXPECT_TRUE(MatchesGlob("*.b", ".b"));
}

TEST(GlobTest, DoesNotMatch) {
  EXPECT_FALSE(MatchesGlob("a*c", "abd"));
  EXPECT_FALSE(MatchesGlob("", "a"));
  EXPECT_FALSE(MatchesGlob("a?", "a"));
  EXPECT_FALSE(MatchesGlob("h.[01].*", "h.2.ln_1.bias"));
}

}  // namespace
}  // namespace tessera
