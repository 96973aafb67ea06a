// The instruction sets of crc32c.cc.
#define HWY_WANT_AVX3_DL

#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/for_each_target.h"
#include "base/testing.h"

namespace tessera {
namespace {

constexpr uint64_t kSeed = 20261121;

constexpr uint32_t kCastagnoli = 0x82F63B78, kZip = 0xEDB88320;

// One bit at a time, directly from the definition.
uint32_t Oracle(std::span<const std::byte> data, uint32_t polynomial = kCastagnoli) {
  uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : data) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ polynomial : crc >> 1;
  }
  return ~crc;
}

TEST(Crc32c, VectorsOfRfc3720) {
  std::string ascending, descending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
    descending += static_cast<char>(31 - i);
  }
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(descending), 0x113FDB5Cu);
  const unsigned char iscsi_read[48] = {0x01, 0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                        0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                        0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(iscsi_read))), 0xD9963A56u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, CombinesThatOfTwoParts) {
  std::mt19937_64 random(kSeed);
  const std::vector<std::byte> bytes = RandomBytes(5000, random);
  for (const size_t a_bytes : {0, 1, 7, 4096, 4999, 5000}) {
    const std::span a = std::span(bytes).first(a_bytes), b = std::span(bytes).subspan(a_bytes);
    EXPECT_EQ(CombineCrc32c(Crc32c(a), Crc32c(b), b.size()), Crc32c(bytes)) << a_bytes;
  }
}

TEST(Crc32c, ZipsCheckValue) {
  const std::string digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  EXPECT_EQ(ExtendZipCrc32(0, bytes), 0xCBF43926u);
  EXPECT_EQ(ExtendZipCrc32(ExtendZipCrc32(0, bytes.first(4)), bytes.subspan(4)), 0xCBF43926u);
}

TEST(Crc32c, EveryInstructionSetAgreesWithTheDefinition) {
  std::mt19937_64 random(kSeed);
  const std::vector<std::byte> bytes = RandomBytes(40000, random);
  std::vector<size_t> sizes(700);
  std::iota(sizes.begin(), sizes.end(), 0);
  for (const size_t base : {1023, 1024, 1025, 1536, 12287, 12288, 12289, 24576, 39990}) {
    sizes.push_back(base);
  }
  ForEachTarget([&](const char* target) {
    for (const size_t size : sizes) {
      const auto part = std::span(bytes).subspan(random() % 9, size);
      ASSERT_EQ(Crc32c(part), Oracle(part)) << target << ": " << size;
      ASSERT_EQ(ExtendZipCrc32(0, part), Oracle(part, kZip)) << target << ": " << size;
    }
  });
}

TEST(Crc32c, ExtendsAtEveryCut) {
  std::mt19937_64 random(kSeed);
  const std::vector<std::byte> bytes = RandomBytes(1500, random);
  const std::span<const std::byte> all = bytes;
  const uint32_t whole = Crc32c(all);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t a = Crc32c(all.first(cut));
    ASSERT_EQ(ExtendCrc32c(a, all.subspan(cut)), whole) << cut;
  }
}

// The change of another byte may have the same checksum: then none is named.
TEST(Crc32c, AChangedByteIsLocatedOnlyIfItIsTheOnlyOne) {
  constexpr uint64_t kBytes = uint64_t{1} << 20;
  std::string contents(kBytes, '\0');
  const uint32_t expected = Crc32c(contents);
  std::mt19937_64 random(1);
  int unnamed = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t at = random() % kBytes;
    contents[at] = static_cast<char>(1 + random() % 255);
    const std::optional<uint64_t> found = LocateSingleByteError(expected, Crc32c(contents), kBytes);
    contents[at] = '\0';
    if (found.has_value()) EXPECT_EQ(*found, at);
    unnamed += found.has_value() ? 0 : 1;
  }
  EXPECT_GT(unnamed, 0);
  EXPECT_LT(unnamed, 30);
  EXPECT_EQ(LocateSingleByteError(1, 2, 0), std::nullopt);
}

}  // namespace
}  // namespace tessera
