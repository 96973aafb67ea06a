// Every field of manifest.pb x {truncated, flipped, wrong version, oversized length}.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/byte_order.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/format/testing/test_manifest.h"

namespace tessera::ckpt {
namespace {

using absl::StatusCode;

std::string Good() { return EncodeManifest(FullManifest()).value(); }

// Recomputes the checksums after a test has changed bytes, so that a later check answers.
void FixChecksums(std::string& bytes) {
  StoreLittleEndian(Crc32c(std::string_view(bytes).substr(kManifestHeaderBytes)),
                    bytes.data() + 24);
  StoreLittleEndian(Crc32c(std::string_view(bytes).substr(0, 28)), bytes.data() + 28);
}

// A frame around a payload, checksums included.
std::string Frame(const std::string& payload) {
  std::string bytes = Good().substr(0, kManifestHeaderBytes) + payload;
  StoreLittleEndian<uint64_t>(payload.size(), bytes.data() + 16);
  FixChecksums(bytes);
  return bytes;
}

void ExpectDataLoss(const std::string& bytes, const std::string& part) {
  const absl::Status status = DecodeManifest(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos)
      << "\"" << part << "\" is not in: " << status;
}

TEST(ManifestCorruption, TheTestsFrameIsTheCodecs) {
  EXPECT_EQ(Frame(Good().substr(kManifestHeaderBytes)), Good());
  EXPECT_OK(DecodeManifest(Good()));
}

TEST(ManifestCorruption, EveryChangedByteIsDetected) {
  const std::string good = Good();
  for (size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      if (bytes == good) continue;
      const absl::Status status = DecodeManifest(bytes).status();
      ASSERT_EQ(status.code(), StatusCode::kDataLoss) << at << ": " << status;
      ASSERT_NE(status.message().find("offset "), status.message().npos) << status;
    }
  }
}

TEST(ManifestCorruption, EveryTruncationIsDetected) {
  const std::string good = Good();
  for (size_t size = 0; size < good.size(); ++size) {
    const absl::Status status = DecodeManifest(good.substr(0, size)).status();
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << size;
    ASSERT_NE(status.message().find("offset " + std::to_string(size)), status.message().npos)
        << status;
  }
}

TEST(ManifestCorruption, TrailingBytes) { ExpectDataLoss(Good() + '\0', "payload: expected"); }

TEST(ManifestCorruption, Magic) { ExpectDataLoss("NOTTESSERA" + Good().substr(10), "magic"); }

TEST(ManifestCorruption, UnknownMajorIsUnimplementedNotDamage) {
  for (const uint32_t major : {0u, kFormatMajor + 1, ~0u}) {
    std::string bytes = Good();
    StoreLittleEndian(major, bytes.data() + 8);
    FixChecksums(bytes);
    const absl::Status status = DecodeManifest(bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status;
    EXPECT_NE(status.message().find(std::to_string(major)), status.message().npos) << status;
  }
}

TEST(ManifestCorruption, NewerMinorIsRead) {
  Manifest manifest = FullManifest();
  manifest.set_format_minor(kFormatMinor + 1);
  // A field that this version does not know: number 1000, a varint.
  std::string bytes = Frame(manifest.SerializeAsString() + "\xC0\x3E\x01");
  StoreLittleEndian(kFormatMinor + 1, bytes.data() + 12);
  FixChecksums(bytes);
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodeManifest(bytes));
  EXPECT_EQ(decoded.format_minor(), kFormatMinor + 1);
}

TEST(ManifestCorruption, VersionsOfHeaderAndPayloadMustAgree) {
  std::string bytes = Good();
  StoreLittleEndian(kFormatMinor + 1, bytes.data() + 12);
  FixChecksums(bytes);
  ExpectDataLoss(bytes, "format version");
}

TEST(ManifestCorruption, OversizedLengths) {
  for (const uint64_t length : {uint64_t{1} << 30, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string bytes = Good();
    StoreLittleEndian(length, bytes.data() + 16);
    FixChecksums(bytes);
    ExpectDataLoss(bytes, "allowed");
  }
  std::string bytes = Good();
  StoreLittleEndian(uint64_t{bytes.size()}, bytes.data() + 16);
  FixChecksums(bytes);
  ExpectDataLoss(bytes, "payload: expected");
}

TEST(ManifestCorruption, PayloadThatIsNoMessage) {
  ExpectDataLoss(Frame("\xFF\xFF\xFF\xFF"), "not a Manifest");
  // A field whose length exceeds the payload, by a little and by 2^63.
  ExpectDataLoss(Frame("\x1A\x05"
                       "ab"),
                 "not a Manifest");
  ExpectDataLoss(Frame("\x1A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"
                       "ab"),
                 "not a Manifest");
  ExpectDataLoss(Frame(""), "format version");
}

// A small file must not exhaust the machine's memory: its elements are counted before it is parsed.
TEST(ManifestCorruption, WhatWouldCostMuchMoreMemoryThanItsSize) {
  using std::string_literals::operator""s;
  for (const std::string& piece :
       {"\x42\x00"s, "\x4a\x00"s, "\xA2\x06\x00"s, "\xA3\x06\xA4\x06"s}) {
    std::string payload;
    for (int i = 0; i < 200'000; ++i) payload += piece;
    ExpectDataLoss(Frame(payload), "bytes would take more than 16 times its size");
  }
  // A large manifest that is valid is accepted.
  Manifest manifest = FullManifest();
  (*manifest.mutable_trainer()->mutable_extra())["large"] = std::string(1 << 20, 'x');
  for (int i = 0; i < 5000; ++i) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name("model.layers." + std::to_string(i) + ".weight");
    tensor.set_role(ToProto(TensorRole::kWeight));
    tensor.set_dtype(ToProto(DType::kF32));
    tensor.add_global_shape(0);
  }
  ASSERT_OK_AND_ASSIGN(const auto bytes, EncodeManifest(manifest));
  EXPECT_OK(DecodeManifest(bytes));
}

TEST(ManifestCorruption, TheHeaderIsCheckedWithoutTheRest) {
  const std::string good = Good();
  const std::string header = good.substr(0, kManifestHeaderBytes);
  EXPECT_OK(CheckManifestHeader(header, good.size()));
  for (const uint64_t size : {good.size() - 1, good.size() + 1, size_t{kManifestHeaderBytes}}) {
    EXPECT_EQ(CheckManifestHeader(header, size).code(), StatusCode::kDataLoss) << size;
  }
  for (size_t size = 0; size < kManifestHeaderBytes; ++size) {
    EXPECT_EQ(CheckManifestHeader(header.substr(0, size), size).code(), StatusCode::kDataLoss);
  }
  for (size_t at = 0; at < kManifestHeaderBytes; ++at) {
    std::string flipped = header;
    flipped[at] ^= 1;
    EXPECT_FALSE(CheckManifestHeader(flipped, good.size()).ok()) << at;
  }
}

// Behind valid checksums, every truncation and every flip of the payload must yield an answer: no
// crash, no hang, and no accepted manifest that breaks a rule.
TEST(ManifestCorruption, PayloadIsNeverTrusted) {
  const std::string payload = Good().substr(kManifestHeaderBytes);
  int accepted = 0;
  for (size_t size = 0; size < payload.size(); ++size) {
    const absl::StatusOr<Manifest> decoded = DecodeManifest(Frame(payload.substr(0, size)));
    if (decoded.ok()) EXPECT_OK(ValidateManifest(*decoded));
  }
  for (size_t at = 0; at < payload.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = payload;
      bytes[at] ^= static_cast<char>(1 << bit);
      const absl::StatusOr<Manifest> decoded = DecodeManifest(Frame(bytes));
      if (!decoded.ok()) continue;
      ++accepted;
      ASSERT_OK(ValidateManifest(*decoded));
    }
  }
  EXPECT_GT(accepted, 0) << "a digest's bits, for one, are free";
}

TEST(ManifestCorruption, RulesHoldOnDecodeToo) {
  Manifest manifest = FullManifest();
  manifest.mutable_tensors(0)->mutable_shards()->set_file_index(0, 9);
  ExpectDataLoss(Frame(manifest.SerializeAsString()), "tensor wte.weight: shard 0: file_index 9");
}

}  // namespace
}  // namespace tessera::ckpt
