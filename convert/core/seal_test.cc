#include "convert/core/seal.h"

#include <tuple>
#include <utility>

#include "base/byte_order.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

// Two files, and three tensors of which two share bytes.
Seal TwoFiles() {
  Seal seal;
  seal.set_format("hf");
  for (const auto& [path, size] : {std::pair("a.json", 0), std::pair("b.safetensors", 200)}) {
    SealedFile& file = *seal.add_files();
    file.mutable_file()->set_path(path);
    file.mutable_file()->set_size_bytes(size);
    file.mutable_file()->set_chunk_bytes(128);
    for (int i = 0; i < (size + 127) / 128; ++i) {
      file.mutable_file()->add_chunk_crc32c(17 + i);
      file.mutable_chunk_sha256()->append(kSha256Bytes, 'x');
    }
  }
  for (const auto& [name, begin, end] :
       {std::tuple("q", 8, 90), std::tuple("k", 20, 100), std::tuple("w", 100, 200)}) {
    SealedTensor& tensor = *seal.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(ToProto(DType::kF32));
    tensor.mutable_digest()->set_lo(begin);
    tensor.add_file_index(1);
    tensor.add_begin(begin);
    tensor.add_end(end);
  }
  return seal;
}

// With the checksum of what a test has changed.
std::string Sealed(std::string bytes) {
  bytes.replace(12, 4, 4, '\0');
  const std::string without = bytes.substr(0, 12) + bytes.substr(16);
  StoreLittleEndian(Crc32c(without), bytes.data() + 12);
  return bytes;
}

TEST(SealTest, TheSameMessageGivesTheSameBytes) {
  ASSERT_OK_AND_ASSIGN(const auto bytes, EncodeSeal(TwoFiles()));
  EXPECT_EQ(bytes, *EncodeSeal(TwoFiles()));
  EXPECT_EQ(bytes, Sealed(bytes));
  ASSERT_OK_AND_ASSIGN(const auto seal, DecodeSeal(bytes));
  EXPECT_EQ(seal.SerializeAsString(), TwoFiles().SerializeAsString());
}

TEST(SealTest, EveryChangedByteAndEveryTruncationIsFound) {
  const std::string good = *EncodeSeal(TwoFiles());
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeSeal(good.substr(0, at)).status())) << at;
    for (int value = 0; value < 256; ++value) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      if (bytes == good) continue;
      ASSERT_TRUE(absl::IsDataLoss(DecodeSeal(bytes).status())) << at;
    }
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeSeal(good + '\0').status()));
}

TEST(SealTest, AnotherVersionIsNotDamage) {
  std::string bytes = *EncodeSeal(TwoFiles());
  bytes[8] = 2;
  const auto status = DecodeSeal(Sealed(bytes)).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2"));
}

// With a valid checksum: what a program with a fault, or with bad intent, may write.
TEST(SealTest, ContentsThatContradictThemselvesAreRefused) {
  struct Change {
    const char* says;
    void (*change)(Seal& seal);
  };
  const Change changes[] = {
      {"no files", [](Seal& seal) { seal.clear_files(); }},
      {"has no name", [](Seal& seal) { seal.mutable_files(0)->mutable_file()->clear_path(); }},
      {"chunks of 0",
       [](Seal& seal) { seal.mutable_files(1)->mutable_file()->clear_chunk_bytes(); }},
      {"2 chunks", [](Seal& seal) { seal.mutable_files(1)->mutable_file()->clear_chunk_crc32c(); }},
      {"of SHA-256", [](Seal& seal) { seal.mutable_files(1)->mutable_chunk_sha256()->pop_back(); }},
      {"18446744073709551615",
       [](Seal& seal) { seal.mutable_tensors(0)->set_end(0, ~uint64_t{0}); }},
      {"not in order", [](Seal& seal) { seal.mutable_files()->SwapElements(0, 1); }},
      {"twice", [](Seal& seal) { seal.mutable_tensors(1)->set_name("q"); }},
      {"different lengths", [](Seal& seal) { seal.mutable_tensors(1)->add_begin(3); }},
      {"are in no file", [](Seal& seal) { seal.mutable_tensors(1)->set_file_index(0, 2); }},
  };
  for (const auto& [says, change] : changes) {
    Seal seal = TwoFiles();
    change(seal);
    EXPECT_THAT(std::string(EncodeSeal(seal).status().message()), HasSubstr(says));
    const std::string bytes = EncodeSeal(TwoFiles())->substr(0, 16) + seal.SerializeAsString();
    const auto status = DecodeSeal(Sealed(bytes)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }
  const std::string header = EncodeSeal(TwoFiles())->substr(0, 16);
  EXPECT_TRUE(absl::IsDataLoss(DecodeSeal(Sealed(header + "\xFF\xFF")).status()));
  // Two bytes each, of messages of a hundred.
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += std::string("\x12\x00", 2);
  EXPECT_THAT(std::string(DecodeSeal(Sealed(header + many)).status().message()),
              HasSubstr("not a Seal message"));
}

TEST(SealTest, BytesAreThoseOfAllTensorsThatHaveThem) {
  const Manifest manifest = ToScannedManifest(TwoFiles());
  ASSERT_EQ(manifest.files_size(), 2);
  std::string text;
  for (const LogicalTensor& tensor : manifest.tensors()) {
    for (int64_t s = 0; s < ShardCount(tensor); ++s) {
      const uint64_t begin = tensor.shards().file_offset(static_cast<int>(s));
      text += tensor.name() + " " + std::to_string(begin) + "-" +
              std::to_string(begin + ShardBytes(tensor, s)) + "; ";
    }
  }
  EXPECT_EQ(text, "q 8-20; q, k 20-90; k 90-100; w 100-200; ");
}

}  // namespace
}  // namespace tessera::ckpt::convert
