#include "layout/copy_box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/test_seed.h"

namespace tessera::ckpt {
namespace {

// All indices of a box in row-major order.
std::vector<std::vector<int64_t>> Indices(const Box& box) {
  std::vector<std::vector<int64_t>> all;
  if (box.empty()) return all;
  std::vector<int64_t> index = box.global_offset;
  while (true) {
    all.push_back(index);
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == box.global_offset[d - 1] + box.shape[d - 1]) {
      index[d - 1] = box.global_offset[d - 1];
      --d;
    }
    if (d == 0) return all;
  }
}

int64_t Offset(const Box& box, const std::vector<int64_t>& strides,
               const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    offset += (index[d] - box.global_offset[d]) * strides[d];
  }
  return offset;
}

Box RandomBoxAround(const Box& inner, std::mt19937_64& random) {
  Box box = inner;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    const auto before = static_cast<int64_t>(random() % 3);
    box.global_offset[d] -= before;
    box.shape[d] += before + static_cast<int64_t>(random() % 3);
  }
  return box;
}

// Row-major strides, or those of dims in a random order with padding after each.
std::vector<int64_t> RandomStrides(const Shape& shape, std::mt19937_64& random) {
  if (random() % 3 == 0) return ContiguousStrides(shape);
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1 + static_cast<int64_t>(random() % 2);
  for (const size_t d : order) {
    strides[d] = stride;
    stride *= shape[d] + static_cast<int64_t>(random() % 2);
  }
  return strides;
}

TEST(CopyBox, MovesExactlyTheElementsOfTheRegion) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 3000; ++round) {
    const size_t element_bytes = std::vector<size_t>{1, 2, 3, 4, 8, 16}[random() % 6];
    Box region;
    for (size_t d = random() % 5; d > 0; --d) {
      region.global_offset.push_back(10 + static_cast<int64_t>(random() % 5));
      region.shape.push_back(static_cast<int64_t>(random() % 5) + (random() % 16 != 0));
    }
    const Box from_box = RandomBoxAround(region, random), to_box = RandomBoxAround(region, random);
    const auto from_strides = RandomStrides(from_box.shape, random);
    const auto to_strides = RandomStrides(to_box.shape, random);
    const auto bytes_of = [&](const Box& box, const std::vector<int64_t>& strides) {
      int64_t last = 0;
      for (size_t d = 0; d < strides.size(); ++d) {
        last += std::max<int64_t>(box.shape[d] - 1, 0) * strides[d];
      }
      return (last + 1) * element_bytes;
    };
    std::vector<std::byte> from(bytes_of(from_box, from_strides));
    for (std::byte& byte : from) byte = static_cast<std::byte>(random());
    std::vector<std::byte> to(bytes_of(to_box, to_strides), std::byte{0xEE});
    std::vector<std::byte> expected = to;
    for (const auto& index : Indices(region)) {
      std::memcpy(expected.data() + Offset(to_box, to_strides, index) * element_bytes,
                  from.data() + Offset(from_box, from_strides, index) * element_bytes,
                  element_bytes);
    }
    const bool implicit = from_strides == ContiguousStrides(from_box.shape);
    CopyBox(region, {from.data(), from_box, implicit ? std::vector<int64_t>{} : from_strides},
            {to.data(), to_box, to_strides}, element_bytes);
    ASSERT_EQ(to, expected) << ToString(region) << ToString(from_box) << ToString(to_box);
  }
}

// Larger than the blocks in which a transposition is copied, and no multiples of them.
TEST(CopyBox, TransposesLargeMatrices) {
  std::mt19937_64 random(TestSeed());
  for (const size_t element_bytes : {1, 2, 4, 8, 16}) {
    for (const auto& [rows, columns] : {std::pair{33, 100}, {64, 65}, {1, 70}, {95, 32}}) {
      const Box box = {{5, 7}, {rows, columns}};
      std::vector<std::byte> from(rows * columns * element_bytes);
      for (std::byte& byte : from) byte = static_cast<std::byte>(random());
      std::vector<std::byte> to(from.size());
      CopyBox(box, {from.data(), box, {columns, 1}}, {to.data(), box, {1, rows}}, element_bytes);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          ASSERT_EQ(std::memcmp(to.data() + (j * rows + i) * element_bytes,
                                from.data() + (i * columns + j) * element_bytes, element_bytes),
                    0)
              << element_bytes << ": " << i << ", " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::ckpt
