#include "trainer/data/content_hash.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "trainer/data/test_files.h"

namespace tessera {
namespace {

TEST(ContentHashTest, DoesNotDependOnHowBytesAreCut) {
  const std::string text = "The quick brown fox jumps over the lazy dog; 0123456789.";
  ContentHash whole;
  whole.Add(AsBytes(text));
  const uint64_t expected = whole.Finish();
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ContentHash parts;
    parts.Add(AsBytes(std::string_view(text).substr(0, cut)));
    parts.Add(AsBytes(std::string_view(text).substr(cut)));
    EXPECT_EQ(parts.Finish(), expected) << cut;
  }
}

TEST(ContentHashTest, EveryBitAndTheLengthCount) {
  const std::string text = "0123456789ab";
  ContentHash base;
  base.Add(AsBytes(text));
  const uint64_t expected = base.Finish();
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ContentHash hash;
    hash.Add(AsBytes(flipped));
    EXPECT_NE(hash.Finish(), expected) << bit;
  }
  ContentHash longer;
  longer.Add(AsBytes(text + std::string(1, '\0')));
  EXPECT_NE(longer.Finish(), expected);
}

}  // namespace
}  // namespace tessera
