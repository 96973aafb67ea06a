#include "layout/partition.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/coverage.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PartitionTest, SectionsAreCutOneByOne) {
  const Partition qkv = {.dim = 1, .sections = 3};
  EXPECT_THAT(CutTensor(qkv, {4, 12}, 0, 1, 2),
              ElementsAre(Box{{0, 2}, {4, 2}}, Box{{0, 6}, {4, 2}}, Box{{0, 10}, {4, 2}}));
}

TEST(PartitionTest, WhatIsNotCutIsWholeInEveryPart) {
  EXPECT_THAT(CutTensor({}, {4, 12}, 0, 1, 2), ElementsAre(WholeBox({4, 12})));
  EXPECT_THAT(CutTensor({}, {}, 0, 1, 2), ElementsAre(WholeBox({})));
}

TEST(PartitionTest, PaddingIsCutAndNotInAnyBox) {
  const Partition table = {.dim = 0, .padded = true};
  EXPECT_THAT(CutTensor(table, {5, 2}, 8, 2, 4), ElementsAre(Box{{4, 0}, {1, 2}}));
  EXPECT_THAT(CutTensor(table, {5, 2}, 8, 3, 4), IsEmpty());
}

TEST(PartitionTest, PartsCoverTheTensorOnce) {
  for (const Partition& partition :
       {Partition{.dim = 0}, Partition{.dim = 1}, Partition{.dim = 1, .sections = 3},
        Partition{.dim = 0, .padded = true}}) {
    for (int parts = 1; parts <= 9; ++parts) {
      for (const int64_t rows : {0, 7, 8, 18}) {
        std::vector<Box> boxes;
        for (int part = 0; part < parts; ++part) {
          for (const Box& box : CutTensor(partition, {7, 15}, rows, part, parts)) {
            boxes.push_back(box);
          }
        }
        const auto problem = FindCoverageProblem({7, 15}, boxes);
        EXPECT_FALSE(problem) << ToString(*problem, boxes);
      }
    }
  }
}

TEST(PartitionTest, WhatDoesNotFitIsRefused) {
  const auto message = [](const Partition& partition, const Shape& shape) {
    return std::string(CheckPartition(partition, shape).message());
  };
  EXPECT_EQ(message({.dim = 1, .sections = 3, .place = InLayer(2)}, {4, 12}), "");
  EXPECT_EQ(message({.dim = 0, .padded = true, .place = kBothEnds}, {4, 2}), "");
  EXPECT_EQ(message({}, {}), "");
  EXPECT_THAT(message({.dim = 2}, {4, 12}), HasSubstr("dim 2 of 2"));
  EXPECT_THAT(message({.dim = -2}, {4, 12}), HasSubstr("dim -2 of 2"));
  EXPECT_THAT(message({.dim = 0}, {}), HasSubstr("dim 0 of 0"));
  EXPECT_THAT(message({.dim = 1, .sections = 0}, {4, 12}), HasSubstr("0 sections"));
  EXPECT_THAT(message({.dim = 1, .sections = 5}, {4, 12}), HasSubstr("5 sections do not divide"));
  EXPECT_THAT(message({.sections = 2}, {4, 12}), HasSubstr("sections of no dim"));
  EXPECT_THAT(message({.dim = 1, .padded = true}, {4, 12}), HasSubstr("padding"));
  EXPECT_THAT(message({.place = InLayer(-2)}, {4}), HasSubstr("layer -2"));
  EXPECT_THAT(message({.place = {.layer = 1, .after_layers = true}}, {4}), HasSubstr("at an end"));
}

}  // namespace
}  // namespace tessera
