#include "convert/megatron/state_buffer.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/format/manifest.pb.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::ElementsAre;

std::vector<RankParameter> Parameters(const std::vector<int64_t>& elements) {
  std::vector<RankParameter> parameters;
  for (const int64_t count : elements) parameters.push_back({.elements = count});
  return parameters;
}

StateBuffer Buffer(const std::vector<int64_t>& buckets) {
  StateBuffer buffer = {.bucket_elements = buckets};
  for (const int64_t bucket : buckets) buffer.elements += bucket;
  return buffer;
}

// Places found where the buffer's size is stored without that of its buckets.
std::optional<std::vector<int64_t>> Place(const std::vector<RankParameter>& parameters,
                                          int64_t elements, int64_t bucket_elements) {
  const StateBuffer buffer = {.elements = elements};
  return PlaceInBuffer(parameters, buffer, bucket_elements);
}

TEST(StateBufferTest, TheLastParameterIsFirstAndAllAreAligned) {
  const auto places = PlaceInBuffer(Parameters({10, 70, 5}), Buffer({202}), 0);
  ASSERT_TRUE(places.has_value());
  EXPECT_THAT(*places, ElementsAre(192, 64, 0));
  EXPECT_EQ(Place(Parameters({10, 70, 5}), 202, 0), places);
}

TEST(StateBufferTest, BucketsEndWithTheParameterThatFillsThem) {
  const auto places = PlaceInBuffer(Parameters({10, 70, 5}), Buffer({134, 10}), 0);
  ASSERT_TRUE(places.has_value());
  EXPECT_THAT(*places, ElementsAre(134, 64, 0));
  EXPECT_EQ(Place(Parameters({10, 70, 5}), 144, 100), places);
  EXPECT_EQ(Place(Parameters({10, 70, 5}), 144, 134), places);
  EXPECT_EQ(Place(Parameters({10, 70, 5}), 144, 135), std::nullopt);
}

// The bucket before a tied embedding's ends where that would have begun.
TEST(StateBufferTest, ATiedEmbeddingHasItsOwnBucket) {
  std::vector<RankParameter> parameters = Parameters({20, 30, 5});
  parameters[0].has_own_bucket = true;
  const auto first = Place(parameters, 128 + 20, 0);
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(*first, ElementsAre(128, 64, 0));
  EXPECT_EQ(PlaceInBuffer(parameters, Buffer({128, 20}), 0), first);
  parameters = Parameters({20, 30, 5});
  parameters[2].has_own_bucket = true;
  const auto last = Place(parameters, 5 + 64 + 20, 0);
  ASSERT_TRUE(last.has_value());
  EXPECT_THAT(*last, ElementsAre(69, 5, 0));
}

TEST(StateBufferTest, RefusesOtherSizes) {
  EXPECT_EQ(PlaceInBuffer(Parameters({10, 70, 5}), Buffer({203}), 0), std::nullopt);
  EXPECT_EQ(PlaceInBuffer(Parameters({10, 70, 5}), Buffer({201}), 0), std::nullopt);
  EXPECT_EQ(PlaceInBuffer(Parameters({10, 70, 5}), Buffer({100, 102}), 0), std::nullopt);
  EXPECT_EQ(PlaceInBuffer(Parameters({10, 70, 5}), Buffer({202, 1}), 0), std::nullopt);
  EXPECT_EQ(PlaceInBuffer(Parameters({10}), Buffer({}), 0), std::nullopt);
  EXPECT_EQ(Place(Parameters({10, 70, 5}), 201, 0), std::nullopt);
}

TEST(StateBufferTest, NamesWhatIsMissing) {
  const ForeignParameter parameter = {.name = "a", .shape = {10}};
  const std::vector<RankParameter> parameters = {{.parameter = &parameter, .elements = 10}};
  StateBuffer buffer = {.where = "file", .elements = 10};
  buffer.kinds.push_back({kForeignExpAvg,
                          {{.begin = 0, .count = 4, .place = {"f", 0, F32}},
                           {.begin = 5, .count = 5, .place = {"f", 0, F32}}}});
  const ModelDescription model;
  ForeignTensorSet set(model);
  const std::vector<int64_t> begins = {0};
  EXPECT_EQ(AddBuffer(parameters, begins, buffer, set).message(),
            "file: element 4 of 10, which is part of a, is missing");
}

}  // namespace
}  // namespace tessera::ckpt::convert
