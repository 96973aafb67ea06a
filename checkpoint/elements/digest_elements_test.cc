// A digest does not depend on how a tensor is cut, or on how it lies in memory.

#include "checkpoint/elements/digest_elements.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

TEST(DigestElementsTest, DoesNotDependOnHowATensorIsCut) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 500; ++round) {
    const size_t element_bytes = size_t{1} << random() % 4;
    Shape shape(random() % 5);
    for (int64_t& extent : shape) extent = 1 + static_cast<int64_t>(random() % 7);
    const int64_t count = ElementCount(shape);
    const std::vector<std::byte> tensor = RandomBytes(count * element_bytes, random);
    const LogicalDigest expected = DigestRun(0, tensor.data(), count, element_bytes);
    const std::vector<int64_t> strides = ContiguousStrides(shape);
    ASSERT_EQ(DigestBox(shape, WholeBox(shape), tensor.data(), strides, element_bytes), expected);

    // Flat ranges, each decomposed into boxes: in place, as copies with strides of their own, and
    // as the contents of files.
    LogicalDigest in_place, copied, stored;
    int64_t begin = 0;
    while (begin < count) {
      const int64_t end = std::min<int64_t>(count, begin + 1 + static_cast<int64_t>(random() % 20));
      for (const Box& box : FlatRangeToBoxes(WholeBox(shape), begin, end)) {
        int64_t at = 0;
        for (size_t d = 0; d < shape.size(); ++d) at += box.global_offset[d] * strides[d];
        const std::byte* const first = tensor.data() + at * element_bytes;
        in_place += DigestBox(shape, box, first, strides, element_bytes);

        std::vector<size_t> order(shape.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<int64_t> scattered(shape.size());
        std::vector<StridedDim> dims(shape.size());
        int64_t stride = 1 + static_cast<int64_t>(random() % 2);
        for (const size_t d : order) {
          scattered[d] = stride;
          dims[d] = {box.shape[d], strides[d], stride};
          stride *= box.shape[d] + static_cast<int64_t>(random() % 2);
        }
        std::vector<std::byte> copy(stride * element_bytes);
        CopyStrided(dims, element_bytes, first, copy.data());
        copied += DigestBox(shape, box, copy.data(), scattered, element_bytes);

        const int64_t elements = ElementCount(box.shape);
        const uint64_t offset = 8 * (random() % 3), middle = random() % elements * element_bytes;
        const uint64_t last = elements * element_bytes;
        const std::vector<StoredBox> boxes = {
            {offset, offset + last, 1, static_cast<int64_t>(element_bytes),
             BoxRuns(box, box, std::vector<int64_t>(shape.size(), 0), strides)}};
        std::vector<std::byte> packed(last);
        const std::vector<int64_t> own = ContiguousStrides(box.shape);
        for (size_t d = 0; d < shape.size(); ++d) dims[d].to_stride = own[d];
        CopyStrided(dims, element_bytes, first, packed.data());
        std::vector<LogicalDigest> sums(2);
        DigestStored(boxes, offset, offset + middle, packed.data(), sums);
        DigestStored(boxes, offset + middle, offset + last + 5, packed.data() + middle, sums);
        stored += sums[1];
        ASSERT_EQ(sums[0], LogicalDigest());
      }
      begin = end;
    }
    ASSERT_EQ(in_place, expected) << ShapeToString(shape);
    ASSERT_EQ(copied, expected) << ShapeToString(shape);
    ASSERT_EQ(stored, expected) << ShapeToString(shape);
  }
}

TEST(DigestElementsTest, LongScatteredRuns) {
  std::mt19937_64 random(TestSeed());
  constexpr int64_t kCount = 10000;
  for (const size_t element_bytes : {1, 2, 4, 8}) {
    const std::vector<std::byte> dense = RandomBytes(kCount * element_bytes, random);
    std::vector<std::byte> sparse(3 * kCount * element_bytes);
    for (int64_t i = 0; i < kCount; ++i) {
      std::copy_n(dense.data() + i * element_bytes, element_bytes,
                  sparse.data() + 3 * i * element_bytes);
    }
    EXPECT_EQ(DigestBox({kCount}, WholeBox({kCount}), sparse.data(), {3}, element_bytes),
              DigestRun(0, dense.data(), kCount, element_bytes));
  }
  EXPECT_EQ(DigestBox({4, 4}, {{2, 0}, {0, 4}}, nullptr, {4, 1}, 4), LogicalDigest());
}

}  // namespace
}  // namespace tessera::ckpt
