#include "layout/elements/box_runs.h"

#include <random>
#include <utility>

#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// Pairs (element of outer's storage, element of the strided storage), computed one element at a
// time.
using Pairs = std::vector<std::pair<int64_t, int64_t>>;

Pairs ByElement(const Box& outer, const Box& region, const std::vector<int64_t>& offset,
                const std::vector<int64_t>& strides) {
  Pairs pairs;
  const std::vector<int64_t> outer_strides = ContiguousStrides(outer.shape);
  std::vector<int64_t> index = region.global_offset;
  while (true) {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      from += (index[d] - outer.global_offset[d]) * outer_strides[d];
      to += (index[d] - offset[d]) * strides[d];
    }
    pairs.push_back({from, to});
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == region.global_offset[d - 1] + region.shape[d - 1]) {
      index[d - 1] = region.global_offset[d - 1];
      --d;
    }
    if (d == 0) return pairs;
  }
}

Pairs ByRuns(const BoxRuns& runs, int64_t begin, int64_t end) {
  Pairs pairs;
  runs.ForEach(begin, end, [&](const BoxRuns::Run& run) {
    EXPECT_GT(run.count, 0);
    for (int64_t i = 0; i < run.count; ++i) {
      pairs.push_back({run.outer_element + i, run.strided_element + i * runs.run_stride()});
    }
  });
  return pairs;
}

TEST(BoxRunsTest, EveryPieceOfRandomRegions) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(seed);
    const size_t dims = random() % 4;
    Box outer, region;
    std::vector<int64_t> offset(dims), strides(dims);
    int64_t stride = 1;
    for (size_t d = dims; d-- > 0;) {
      outer.global_offset.insert(outer.global_offset.begin(), random() % 5);
      outer.shape.insert(outer.shape.begin(), 1 + random() % 5);
      const int64_t skip = random() % 2 == 0 ? 0 : random() % outer.shape[0];
      region.global_offset.insert(region.global_offset.begin(), outer.global_offset[0] + skip);
      const int64_t rest = outer.shape[0] - skip;
      region.shape.insert(region.shape.begin(), random() % 2 == 0 ? rest : 1 + random() % rest);
      offset[d] = random() % 3;
      stride *= 1 + random() % 2;
      strides[d] = stride;
      stride *= region.shape[0];
    }
    const BoxRuns runs(outer, region, offset, strides);
    const Pairs expected = ByElement(outer, region, offset, strides);
    const int64_t size = ElementCount(outer.shape);
    ASSERT_EQ(ByRuns(runs, 0, size), expected);
    for (int64_t begin = 0; begin < size; ++begin) {
      const int64_t end = begin + 1 + random() % (size - begin);
      Pairs part;
      for (const auto& pair : expected) {
        if (begin <= pair.first && pair.first < end) part.push_back(pair);
      }
      ASSERT_EQ(ByRuns(runs, begin, end), part) << begin << " " << end;
    }
  }
}

TEST(BoxRunsTest, WholeTensorIsOneRun) {
  const Box box = WholeBox({3, 4, 5});
  const BoxRuns runs(box, box, {0, 0, 0}, ContiguousStrides(box.shape));
  int count = 0;
  runs.ForEach(7, 50, [&](const BoxRuns::Run& run) {
    ++count;
    EXPECT_EQ(run.outer_element, 7);
    EXPECT_EQ(run.count, 43);
  });
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace tessera
