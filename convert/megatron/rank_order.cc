#include "convert/megatron/rank_order.h"

#include <algorithm>
#include <vector>

namespace tessera::ckpt::convert {
namespace {

// Bounds sizes that come from a file, so that their products do not overflow.
constexpr int64_t kMaxSize = 1 << 15;

int64_t Bounded(int64_t size) { return std::clamp<int64_t>(size, 1, kMaxSize); }

// The ranks that write the files where the stages are `stride` ranks apart.
std::vector<int64_t> RanksOf(size_t files, int64_t tensor_ranks, int64_t stride) {
  std::vector<int64_t> ranks(files);
  for (size_t i = 0; i < files; ++i) {
    const auto file = static_cast<int64_t>(i);
    ranks[i] = file / tensor_ranks * stride + file % tensor_ranks;
  }
  return ranks;
}

size_t CountEqual(std::span<const int64_t> a, std::span<const int64_t> b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 1 : 0;
  return count;
}

// The rank that belongs in each place; empty where that is not known.
std::vector<int64_t> ExpectedRanks(std::span<const int64_t> ranks, const RankGrid& grid) {
  const int64_t tensor_ranks = Bounded(grid.tensor_ranks);
  const int64_t before_data = tensor_ranks * Bounded(grid.context_ranks);
  for (const int64_t stride : {before_data * Bounded(grid.data_ranks), before_data}) {
    std::vector<int64_t> expected = RanksOf(ranks.size(), tensor_ranks, stride);
    if (2 * CountEqual(ranks, expected) > ranks.size()) return expected;
  }
  std::vector<int64_t> sorted(ranks.begin(), ranks.end());
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) sorted.clear();
  return sorted;
}

}  // namespace

std::optional<MisplacedFile> FindMisplacedFile(std::span<const int64_t> ranks,
                                               const RankGrid& grid) {
  const std::vector<int64_t> expected = ExpectedRanks(ranks, grid);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (ranks[i] == expected[i]) continue;
    const auto place = std::ranges::find(expected, ranks[i]);
    if (place == expected.end()) continue;
    return MisplacedFile{.file = i, .place = static_cast<size_t>(place - expected.begin())};
  }
  return std::nullopt;
}

}  // namespace tessera::ckpt::convert
