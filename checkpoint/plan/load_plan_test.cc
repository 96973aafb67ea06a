// A load reads the chunks that hold wanted bytes, and no others.

#include "checkpoint/plan/load_plan.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/plan/box_index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;

// One file of `file_bytes` with one F32 tensor.
Manifest OneTensor(const Shape& shape, uint32_t chunk_bytes, uint64_t file_bytes) {
  Manifest manifest;
  LogicalTensor& tensor = *manifest.add_tensors();
  tensor.set_name("x");
  tensor.set_dtype(ToProto(DType::kF32));
  for (int64_t extent : shape) tensor.add_global_shape(extent);
  DataFile& file = *manifest.add_files();
  file.set_path("data");
  file.set_chunk_bytes(chunk_bytes);
  file.set_size_bytes(file_bytes);
  return manifest;
}

TEST(LoadPlanTest, OnlyChunksThatHoldWantedBytes) {
  // 100 rows of 64 bytes from byte 64 on; chunks of 128 bytes.
  Manifest manifest = OneTensor({100, 16}, 128, 6464);
  AddShard(WholeBox({100, 16}), 0, 64, *manifest.mutable_tensors(0));
  const auto ranges = [&](const Box& box) {
    const auto plan = OrFail(PlanLoad(manifest, std::vector<WantedBox>{{0, box}}));
    return plan.files.at(0).ranges;
  };
  EXPECT_THAT(ranges({{0, 0}, {1, 16}}), ElementsAre(ByteRange{0, 128}));
  EXPECT_THAT(ranges({{1, 0}, {2, 16}}), ElementsAre(ByteRange{128, 256}));
  EXPECT_THAT(ranges({{99, 15}, {1, 1}}), ElementsAre(ByteRange{6400, 6464}));  // the file's tail
  EXPECT_THAT(ranges({{0, 3}, {100, 1}}),
              ElementsAre(ByteRange{0, 6464}));  // a column touches every chunk
  ASSERT_OK_AND_ASSIGN(const auto two,
                       PlanLoad(manifest, std::vector<WantedBox>{{0, {{50, 0}, {1, 16}}},
                                                                 {0, {{10, 0}, {1, 1}}},
                                                                 {0, {{10, 5}, {1, 3}}}}));
  EXPECT_THAT(two.files[0].ranges, ElementsAre(ByteRange{640, 768}, ByteRange{3200, 3328}));
  EXPECT_EQ(two.bytes, 256);
}

TEST(LoadPlanTest, DistantRowsAreReadApart) {
  // Columns 0 and 1 of rows of 4 KiB each: one chunk of 64 bytes per row.
  Manifest manifest = OneTensor({8, 1024}, 64, 32768);
  AddShard(WholeBox({8, 1024}), 0, 0, *manifest.mutable_tensors(0));
  ASSERT_OK_AND_ASSIGN(const auto plan,
                       PlanLoad(manifest, std::vector<WantedBox>{{0, {{0, 0}, {8, 2}}}}));
  EXPECT_EQ(plan.files[0].ranges.size(), 8);
  EXPECT_EQ(plan.bytes, 8 * 64);
}

TEST(LoadPlanTest, WhatIsNotSavedIsNamed) {
  Manifest manifest = OneTensor({4, 4}, 64, 1000);
  AddShard({{0, 0}, {2, 4}}, 0, 0, *manifest.mutable_tensors(0));
  const auto plan = PlanLoad(manifest, std::vector<WantedBox>{{0, {{1, 0}, {2, 4}}}});
  EXPECT_TRUE(absl::IsDataLoss(plan.status()));
  EXPECT_EQ(plan.status().message(),
            "tensor x: the saved shards hold 4 of the 8 elements of box [1:3,0:4]");
}

TEST(LoadPlanTest, EmptyBoxesNeedNothing) {
  Manifest manifest = OneTensor({4, 4}, 64, 1000);
  ASSERT_OK_AND_ASSIGN(const auto plan,
                       PlanLoad(manifest, std::vector<WantedBox>{{0, {{1, 0}, {0, 4}}}}));
  EXPECT_TRUE(plan.files.empty());
}

TEST(BoxIndexTest, FindsWhatComparingAllFinds) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " round ", round));
    const size_t rank = random() % 4;
    const auto random_box = [&] {
      Box box;
      for (size_t d = 0; d < rank; ++d) {
        box.global_offset.push_back(random() % 12);
        box.shape.push_back(random() % 6);
      }
      return box;
    };
    std::vector<Box> boxes(random() % 30);
    for (Box& box : boxes) box = random_box();
    const BoxIndex index(boxes);
    const Box query = random_box();
    std::vector<std::pair<size_t, Box>> found, expected;
    index.ForEachOverlap(query, [&](size_t i, const Box& region) { found.push_back({i, region}); });
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (const auto region = Intersect(boxes[i], query)) expected.push_back({i, *region});
    }
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
  }
}

}  // namespace
}  // namespace tessera::ckpt
