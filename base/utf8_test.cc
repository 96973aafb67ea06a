#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "base/testing.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

std::string EncodeCodePoint(uint32_t c, int bytes) {
  if (bytes == 1) return {static_cast<char>(c)};
  std::string text;
  for (int i = bytes - 1; i > 0; --i, c >>= 6) {
    text.insert(text.begin(), static_cast<char>(0x80 | (c & 0x3F)));
  }
  const uint32_t lead = bytes == 2 ? 0xC0 : bytes == 3 ? 0xE0 : 0xF0;
  text.insert(text.begin(), static_cast<char>(lead | c));
  return text;
}

// All of the first code points, those at the ends of ranges, and some of the others.
bool IsTried(uint32_t c) { return c < 0x3000 || (c + 2) % 0x800 < 4 || c % 61 == 0; }

TEST(Utf8, CodePointsInTheirShortestFormOnly) {
  for (uint32_t c = 0; c <= 0x10FFFF + 100; ++c) {
    if (!IsTried(c)) continue;
    const int shortest = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    const bool valid = c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    ASSERT_EQ(Utf8Length(EncodeCodePoint(c, shortest)), valid ? shortest : 0) << c;
    for (int longer = shortest + 1; longer <= 4 && c < 0x1000; ++longer) {
      ASSERT_EQ(Utf8Length(EncodeCodePoint(c, longer)), 0) << c;
    }
  }
}

TEST(Utf8, TruncatedAndStrayBytes) {
  EXPECT_EQ(Utf8Length(""), 0);
  for (const std::string whole : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(Utf8Length(whole + "x"), whole.size());
    for (size_t n = 1; n < whole.size(); ++n) {
      EXPECT_EQ(Utf8Length(whole.substr(0, n)), 0);
      EXPECT_EQ(Utf8Length(whole.substr(0, n) + "x"), 0);
      EXPECT_EQ(Utf8Length(whole.substr(n)), 0);
    }
  }
}

TEST(Utf8, AcceptsWhatIsWellFormed) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("plain"));
  EXPECT_TRUE(IsValidUtf8("\u00e9 \u20ac \U0001F600 \U0010FFFF"));
  EXPECT_TRUE(IsValidUtf8(std::string(1, '\0')));
}

TEST(Utf8, RefusesTheRest) {
  EXPECT_FALSE(IsValidUtf8("\x80"));              // a tail without a lead
  EXPECT_FALSE(IsValidUtf8("a\xC3"));             // cut off
  EXPECT_FALSE(IsValidUtf8("\xE2\x82"));          // cut off
  EXPECT_FALSE(IsValidUtf8("\xC3("));             // a lead without a tail
  EXPECT_FALSE(IsValidUtf8("\xC0\x80"));          // overlong
  EXPECT_FALSE(IsValidUtf8("\xE0\x9F\xBF"));      // overlong
  EXPECT_FALSE(IsValidUtf8("\xF0\x8F\xBF\xBF"));  // overlong
  EXPECT_FALSE(IsValidUtf8("\xED\xA0\x80"));      // a surrogate
  EXPECT_FALSE(IsValidUtf8("\xF4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_FALSE(IsValidUtf8("\xFF"));
}

bool IsControl(uint32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

TEST(Printable, WhatNeedsNoEscapeIsUnchanged) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || !IsTried(c)) continue;
    const std::string character = EncodeCodePoint(c, c < 0x80      ? 1
                                                     : c < 0x800   ? 2
                                                     : c < 0x10000 ? 3
                                                                   : 4);
    const std::string shown = Printable("a" + character + "b");
    const bool turns = c == 0x61C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
                       (c >= 0x2066 && c <= 0x2069);
    const bool kept = c == '\n' || c == '\t' || !(IsControl(c) || turns);
    ASSERT_EQ(shown == "a" + character + "b", kept) << c;
    ASSERT_EQ(PrintableInLine(character) == character, kept && c != '\n' && c != '\t') << c;
    // In JSON, the escape is the character.
    if (!kept) ASSERT_EQ(nlohmann::json::parse("\"" + shown + "\""), "a" + character + "b") << c;
  }
}

TEST(Printable, AnyBytesBecomeTextWithoutControls) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 12, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 3 == 0 ? random() % 0x30 : random());
    const std::string shown = PrintableInLine(bytes);
    ASSERT_TRUE(IsValidUtf8(shown));
    ASSERT_EQ(Printable(shown), shown);
    ASSERT_TRUE(std::none_of(shown.begin(), shown.end(), absl::ascii_iscntrl));
    // Two parts that are cut between characters show the same as the whole.
    const size_t cut = WholeCharacters(std::string_view(bytes).substr(0, bytes.size() / 2));
    ASSERT_EQ(PrintableInLine(bytes.substr(0, cut)) + PrintableInLine(bytes.substr(cut)), shown);
  }
  EXPECT_EQ(Printable("\x1b]0;t\x07 \xff\xc2\x9b"), "\\u001b]0;t\\u0007 \\xff\\u009b");
}

}  // namespace
}  // namespace tessera
