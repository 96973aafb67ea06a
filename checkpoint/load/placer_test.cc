// A plan says which bytes of which files are read, and where they go.

#include "checkpoint/load/placer.h"

#include <numeric>

#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

TEST(PlacerTest, APlanHasFilesAndTheirRanges) {
  LoadPlan plan;
  plan.files = {{.file_index = 3, .ranges = {{0, 5}, {7, 9}}},
                {.file_index = 5, .ranges = {{1, 2}}}};
  EXPECT_EQ(FilesOf(plan), (std::vector<uint32_t>{3, 5}));
  std::vector<uint64_t> ranges;
  for (const FilePiece& piece : RangesOf(plan)) {
    ranges.insert(ranges.end(), {piece.file_index, piece.begin, piece.end});
  }
  EXPECT_EQ(ranges, (std::vector<uint64_t>{3, 0, 5, 3, 7, 9, 5, 1, 2}));
}

// The region has three bytes of two rows of a tensor of four rows.
TEST(PackedRegionTest, ARegionIsPackedInTheOrderOfTheFile) {
  Manifest manifest;
  LogicalTensor& tensor = *manifest.add_tensors();
  tensor.set_dtype(U8);
  tensor.add_global_shape(4);
  tensor.add_global_shape(6);
  AddShard({.global_offset = {0, 0}, .shape = {4, 6}}, 0, 10, tensor);
  ShardRegion region;
  for (const int64_t offset : {1, 2}) region.mutable_box()->add_offset(offset);
  for (const int64_t extent : {2, 3}) region.mutable_box()->add_shape(extent);
  ASSERT_OK_AND_ASSIGN(const PackedRegion packed, PackedRegion::Create(manifest, region));
  std::vector<uint8_t> file(40);
  std::iota(file.begin(), file.end(), 0);
  const auto pack = [&](uint64_t begin, uint64_t end) {
    const FilePiece piece = {0, begin, end};
    std::vector<uint8_t> bytes(packed.BytesIn(piece));
    packed.Pack(piece, reinterpret_cast<const std::byte*>(file.data() + begin),
                reinterpret_cast<std::byte*>(bytes.data()));
    return bytes;
  };
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(pack(0, 40), (Bytes{18, 19, 20, 24, 25, 26}));
  EXPECT_EQ(pack(10, 34), (Bytes{18, 19, 20, 24, 25, 26}));
  EXPECT_EQ(pack(0, 20), (Bytes{18, 19}));
  EXPECT_EQ(pack(20, 25), (Bytes{20, 24}));
  EXPECT_EQ(pack(27, 40), Bytes());
}

}  // namespace
}  // namespace tessera::ckpt
