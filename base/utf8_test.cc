#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/text.h"

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

TEST(Utf8, EveryCodePointInItsShortestFormOnly) {
  for (uint32_t c = 0; c <= 0x10FFFF + 100; ++c) {
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

}  // namespace
}  // namespace tessera
