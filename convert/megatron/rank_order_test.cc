#include "convert/megatron/rank_order.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using Found = std::optional<std::pair<size_t, size_t>>;

Found Find(const std::vector<int64_t>& ranks, const RankGrid& grid) {
  const auto found = FindMisplacedFile(ranks, grid);
  return found ? Found({found->file, found->place}) : std::nullopt;
}

TEST(RankOrderTest, FilesInTheirPlaces) {
  EXPECT_EQ(Find({0}, {}), std::nullopt);
  EXPECT_EQ(Find({0, 1, 2, 3}, {.tensor_ranks = 2}), std::nullopt);
  // Stages are the outermost axis, or data-parallel ranks are.
  EXPECT_EQ(Find({0, 1, 6, 7}, {.tensor_ranks = 2, .data_ranks = 3}), std::nullopt);
  EXPECT_EQ(Find({0, 1, 2, 3}, {.tensor_ranks = 2, .data_ranks = 3}), std::nullopt);
  EXPECT_EQ(Find({0, 1, 24, 25}, {.tensor_ranks = 2, .context_ranks = 4, .data_ranks = 3}),
            std::nullopt);
  // Sizes that the arguments do not tell.
  EXPECT_EQ(Find({0, 1, 24, 25}, {.tensor_ranks = 2}), std::nullopt);
}

TEST(RankOrderTest, FilesThatWereExchanged) {
  EXPECT_EQ(Find({1, 0}, {.tensor_ranks = 2}), Found({0, 1}));
  EXPECT_EQ(Find({0, 3, 2, 1}, {.tensor_ranks = 2}), Found({1, 3}));
  EXPECT_EQ(Find({24, 1, 0, 25}, {.tensor_ranks = 2}), Found({0, 2}));
  EXPECT_EQ(Find({4, 0}, {.data_ranks = 4}), Found({0, 1}));
}

TEST(RankOrderTest, ACopyInAnotherPlace) {
  EXPECT_EQ(Find({0, 0, 2, 3}, {.tensor_ranks = 2}), Found({1, 0}));
  EXPECT_EQ(Find({0, 4, 4}, {.data_ranks = 4}), Found({2, 1}));
}

TEST(RankOrderTest, ProgramsThatWriteSeveralFilesTellNothing) {
  EXPECT_EQ(Find({0, 0, 0, 0}, {.tensor_ranks = 2}), std::nullopt);
  EXPECT_EQ(Find({5, 5}, {.tensor_ranks = 2}), std::nullopt);
  EXPECT_EQ(Find({0, 0, 1, 1}, {.tensor_ranks = 2}), std::nullopt);
}

TEST(RankOrderTest, HostileNumbers) {
  const RankGrid grid = {
      .tensor_ranks = INT64_MAX, .context_ranks = INT64_MAX, .data_ranks = INT64_MIN};
  EXPECT_EQ(Find({INT64_MIN, 0, INT64_MAX}, grid), std::nullopt);
  EXPECT_EQ(Find({}, grid), std::nullopt);
}

}  // namespace
}  // namespace tessera::ckpt::convert
