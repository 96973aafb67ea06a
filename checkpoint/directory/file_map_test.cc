// Damage is named by the tensor that it hits and, where that is possible, by its only byte.

#include "checkpoint/directory/file_map.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "checkpoint/format/manifest_codec.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

constexpr uint64_t kFileBytes = 150, kMapChunkBytes = 64;

// Returns a manifest of a file of zeros. From byte 32 on it has tensors "t0" to "t6" of 16 bytes,
// which the manifest lists from the last to the first.
Manifest SevenTensors() {
  Manifest manifest;
  for (int t = 6; t >= 0; --t) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(absl::StrCat("t", t));
    tensor.set_dtype(F32);
    tensor.add_global_shape(4);
    AddShard({.global_offset = {0}, .shape = {4}}, 0, 32 + 16 * t, tensor);
  }
  DataFile& file = *manifest.add_files();
  file.set_path("model");
  file.set_size_bytes(kFileBytes);
  file.set_chunk_bytes(kMapChunkBytes);
  const std::string zeros(kFileBytes, '\0');
  for (uint64_t at = 0; at < kFileBytes; at += kMapChunkBytes) {
    file.add_chunk_crc32c(Crc32c(std::string_view(zeros).substr(at, kMapChunkBytes)));
  }
  return manifest;
}

// Describes a chunk of the file, in which bytes have changed.
Damage DescribeChanged(uint64_t chunk, const std::vector<uint64_t>& changed) {
  const Manifest manifest = SevenTensors();
  std::string contents(kFileBytes, '\0');
  for (const uint64_t at : changed) contents[at] = '\x10';
  const uint32_t found =
      Crc32c(std::string_view(contents).substr(chunk * kMapChunkBytes, kMapChunkBytes));
  return DescribeChecksumError(manifest, FileMap(manifest), 0, chunk, found);
}

TEST(FileMapTest, TensorsOfARangeAreThoseWithBytesInIt) {
  const Manifest manifest = SevenTensors();
  const FileMap map(manifest);
  EXPECT_EQ(map.TensorsIn(0, 0, 32), "");
  EXPECT_EQ(map.TensorsIn(0, 0, 33), "t0");
  EXPECT_EQ(map.TensorsIn(0, 47, 48), "t0");
  EXPECT_EQ(map.TensorsIn(0, 48, 49), "t1");
  EXPECT_EQ(map.TensorsIn(0, 32, 96), "t0, t1, t2, t3");
  EXPECT_EQ(map.TensorsIn(0, 32, 97), "t0, t1, t2, t3 and 1 more");
  EXPECT_EQ(map.TensorsIn(0, 0, 150), "t0, t1, t2, t3 and 3 more");
  EXPECT_EQ(map.TensorsIn(0, 144, 150), "");
  const FileMap::Extent& first = map.extents(0).front();
  EXPECT_EQ(first.begin, 32);
  EXPECT_EQ(first.end, 48);
  EXPECT_EQ(first.tensor, 6);
  EXPECT_EQ(first.shard, 0);
  // Another shard of t0.
  Manifest more = manifest;
  AddShard({.global_offset = {4}, .shape = {1}}, 0, 144, *more.mutable_tensors(6));
  EXPECT_EQ(FileMap(more).TensorsIn(0, 0, 150), "t0, t1, t2, t3 and 3 more");
  EXPECT_EQ(FileMap(more).TensorsIn(0, 128, 150), "t6, t0");
}

TEST(FileMapTest, OneChangedByteOfAChunkIsNamed) {
  const Damage damage = DescribeChanged(1, {70});
  EXPECT_EQ(damage.file, "model");
  EXPECT_EQ(damage.offset_bytes, 70);
  EXPECT_EQ(damage.tensor, "t2");
  EXPECT_TRUE(damage.message.starts_with("checksum of bytes [64, 128): expected "))
      << damage.message;
  EXPECT_TRUE(damage.message.ends_with(", as after a change of byte 70")) << damage.message;
  EXPECT_EQ(DescribeChanged(1, {64}).offset_bytes, 64);
  EXPECT_EQ(DescribeChanged(1, {127}).offset_bytes, 127);
  // In the last chunk, which is a shorter one, and behind all tensors.
  const Damage last = DescribeChanged(2, {149});
  EXPECT_EQ(last.offset_bytes, 149);
  EXPECT_EQ(last.tensor, "");
  EXPECT_TRUE(last.message.starts_with("checksum of bytes [128, 150): ")) << last.message;
}

TEST(FileMapTest, OfSeveralChangedBytesTheirChunkIsNamed) {
  const Damage damage = DescribeChanged(1, {70, 100});
  EXPECT_EQ(damage.offset_bytes, 64);
  EXPECT_EQ(damage.tensor, "t2, t3, t4, t5");
  EXPECT_EQ(damage.message.find("as after"), std::string::npos) << damage.message;
}

TEST(FileMapTest, AWrongSizeIsDamageFromTheFirstByteThatIsMissing) {
  const Manifest manifest = SevenTensors();
  const FileMap map(manifest);
  const Damage shorter = DescribeSizeError(manifest, map, 0, 100);
  EXPECT_EQ(ToString(shorter),
            "model at offset 100: tensor t4, t5, t6: size: expected 150 bytes, found 100");
  const Damage longer = DescribeSizeError(manifest, map, 0, 200);
  EXPECT_EQ(ToString(longer), "model at offset 150: size: expected 150 bytes, found 200");
}

}  // namespace
}  // namespace tessera::ckpt
