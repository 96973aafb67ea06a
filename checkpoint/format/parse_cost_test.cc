// A message from a disk takes no more memory than its length permits.

#include "base/parse_cost.h"

#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/testing/test_manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

std::optional<uint64_t> Cost(const std::string& payload, uint64_t limit = kNoLimit) {
  return ParseCost(*Manifest::descriptor(), payload, limit);
}

// Expects that the parsed message takes no more than the bound.
void ExpectBound(const std::string& payload, const std::string& what) {
  const google::protobuf::LogSilencer silencer;
  const std::optional<uint64_t> cost = Cost(payload);
  Manifest manifest;
  const bool parsed = manifest.ParsePartialFromString(payload);
  if (cost.has_value()) {
    EXPECT_LE(manifest.SpaceUsedLong(), *cost + sizeof(Manifest)) << what;
  } else {
    EXPECT_FALSE(parsed) << what;
  }
}

std::string Repeat(const std::string& piece, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

std::string Field(int number, const std::string& contents) {
  std::string text(1, static_cast<char>(number << 3 | 2));
  for (size_t size = contents.size();; size >>= 7) {
    text += static_cast<char>((size & 0x7F) | (size >= 0x80 ? 0x80 : 0));
    if (size < 0x80) break;
  }
  return text + contents;
}

TEST(ParseCost, BoundsWhatSmallPiecesTake) {
  using std::string_literals::operator""s;
  const std::string key_and_value = Field(1, "key") + Field(2, "value");
  for (const std::string& piece : {
           "\x42\x00"s,                                  // a tensor
           "\x4a\x00"s,                                  // a file
           Field(8, Field(1, "x")),                      // a tensor with a name
           Field(8, Field(1, std::string(100, 'x'))),    //
           Field(8, "\x22\x01\x00"s),                    // a dim
           Field(8, "\x20\x00\x20\x00\x20\x00"s),        // dims that are not packed
           Field(8, Field(8, "\x0a\x01\x00"s)),          // shards
           Field(8, Field(7, "")),                       // a digest
           Field(9, Field(4, "abcd")),                   // a checksum
           Field(7, Field(2, "")),                       // a parameter group
           Field(7, Field(2, Field(1, key_and_value))),  //
           Field(7, Field(3, "")),                       // a parameter
           Field(7, Field(3, Field(3, ""))),             // with a state
           Field(7, Field(3, Field(3, key_and_value))),  //
           Field(5, Field(15, "")),                      // something extra
           Field(5, Field(15, key_and_value)),           //
           "\xA0\x06\x00"s,                              // unknown: a number
           "\xA2\x06\x00"s,                              // bytes
           "\xA3\x06\xA4\x06"s,                          // a group
           "\xA3\x06\xA0\x06\x00\xA4\x06"s,              //
           "\xA1\x06"
           "12345678"s,                // fixed
           Field(8, "\xA0\x06\x00"s),  // in a tensor
           "\x0d"
           "1234"s,  // known, of another type
           "\x45"
           "1234"s,  //
       }) {
    for (const int count : {1, 2, 3, 10, 1000}) {
      ExpectBound(Repeat(piece, count), std::to_string(count) + " of " + piece);
    }
  }
  for (const int count : {1, 3, 1000, 100'000}) {
    ExpectBound(Field(8, Field(8, Field(1, std::string(count, '\x01')))), "numbers of a byte");
    ExpectBound(Field(9, Field(4, std::string(4 * count, '\x01'))), "numbers of four bytes");
  }
}

TEST(ParseCost, BoundsWhatRandomBytesTake) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string good = FullManifest().SerializeAsString();
  ExpectBound(good, "a whole manifest");
  for (int i = 0; i < 20'000; ++i) {
    std::string payload = good;
    for (int change = random() % 8; change >= 0; --change) {
      payload[random() % payload.size()] = static_cast<char>(random());
    }
    ExpectBound(payload.substr(0, random() % (payload.size() + 1)), "changed");
    std::string noise(random() % 64, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    ExpectBound(noise, "noise");
  }
}

// However deep and large the input is, counting takes no memory and stops at the limit.
TEST(ParseCost, EndsAtTheLimit) {
  EXPECT_EQ(Cost(""), 0);
  EXPECT_GT(*Cost(Repeat(std::string("\x42\x00", 2), 1000)), 1000 * sizeof(LogicalTensor));
  const uint64_t limited = *Cost(Repeat(std::string("\x42\x00", 2), 1'000'000), 5000);
  EXPECT_GT(limited, 5000);
  EXPECT_LT(limited, 6000);
  EXPECT_EQ(Cost(Repeat("\xA3\x06", 1'000'000)), std::nullopt);
  std::string nested;
  for (int i = 0; i < 200; ++i) nested = Field(8, nested);
  Cost(nested);
  // The parser allocates what a length field claims, up to fifty megabytes, before it finds it
  // wrong.
  EXPECT_EQ(Cost("\x42\xFF\xFF\x7F"), std::nullopt);
}

}  // namespace
}  // namespace tessera::ckpt
