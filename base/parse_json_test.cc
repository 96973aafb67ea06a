#include "base/parse_json.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Nested(const std::string& open, const std::string& close, int levels) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  text += "1";
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

TEST(ParseJsonTest, DepthIsBounded) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    EXPECT_FALSE(ParseJson(Nested(open, close, kMaxJsonDepth)).is_discarded());
    EXPECT_TRUE(ParseJson(Nested(open, close, kMaxJsonDepth + 1)).is_discarded());
    EXPECT_TRUE(ParseJson(Nested(open, "", 10'000'000)).is_discarded());
  }
}

TEST(ParseJsonTest, BracketsInStringsAndNeighboursDoNotNest) {
  EXPECT_EQ(ParseJson("[\"" + std::string(1000, '[') + "\\\"[\", \"\\\\\", [2]]").size(), 3u);
  std::string neighbours = "[0";
  for (int i = 0; i < 1000; ++i) neighbours += ",[{}]";
  EXPECT_EQ(ParseJson(neighbours + "]").size(), 1001u);
}

TEST(ParseJsonTest, WhatIsNotJsonIsDiscarded) {
  for (const char* text : {"", "{", "]", "{]", "[1,]", "\"\\", "nan"}) {
    EXPECT_TRUE(ParseJson(text).is_discarded()) << text;
  }
}

}  // namespace
}  // namespace tessera
