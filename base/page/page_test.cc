#include "base/page/page.h"

#include <limits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string DataIn(const nlohmann::json& data) {
  const std::string page = FillPage("<script>{{DATA}}</script>", data);
  EXPECT_TRUE(page.starts_with("<script>") && page.ends_with("</script>"));
  return page.substr(8, page.size() - 17);
}

TEST(FillPage, KeepsWhatTheDataSay) {
  const nlohmann::json data = {{"name", "gr\u00fc\u00df <b>&amp;</b> \"\\\n"}, {"loss", 0.1}};
  EXPECT_EQ(nlohmann::json::parse(DataIn(data)), data);
}

TEST(FillPage, NoTextLeavesTheScript) {
  for (const char* text : {"</script><script>alert(1)</script>", "<!--<script>", "-->", "]]>",
                           "\u2028\u2029", "{{DATA}}"}) {
    const std::string inside = DataIn({{text, text}});
    EXPECT_EQ(inside.find_first_of("<>&"), std::string::npos) << inside;
    for (const unsigned char c : inside) EXPECT_LT(c, 0x80) << inside;
    EXPECT_EQ(nlohmann::json::parse(inside), nlohmann::json({{text, text}}));
  }
}

TEST(FillPage, WhatJsonCannotExpress) {
  EXPECT_EQ(DataIn({std::numeric_limits<double>::infinity()}), "[null]");
  EXPECT_EQ(DataIn({"a\xff"}), "[\"a\\ufffd\"]");
}

}  // namespace
}  // namespace tessera
