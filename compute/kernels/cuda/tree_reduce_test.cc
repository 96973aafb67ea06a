#include "compute/kernels/cuda/tree_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "compute/kernels/cuda/testing/simt_host.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

template <typename T>
struct Partial {
  using Type = T;
};
template <>
struct Partial<BFloat16> {
  using Type = float;
};

template <typename A>
A Pair(TreeOp op, A a, A b) {
  if (op == TreeOp::kMax) return a > b ? a : b;
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

// The definition, written as it is stated.
template <typename T>
typename Partial<T>::Type Tree(TreeOp op, const std::vector<std::vector<T>>& inputs, int begin,
                               int end, int64_t i) {
  using A = typename Partial<T>::Type;
  if (end - begin == 1) return static_cast<A>(inputs[begin][i]);
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  return Pair<A>(op, Tree<T>(op, inputs, begin, begin + half, i),
                 Tree<T>(op, inputs, begin + half, end, i));
}

template <typename T>
T RandomValue(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    const double value = std::ldexp(static_cast<double>(static_cast<int32_t>(random())),
                                    static_cast<int>(random() % 20) - 40);
    return static_cast<T>(static_cast<typename Partial<T>::Type>(value));
  }
}

template <typename T>
class TreeReduceTest : public testing::Test {};
using Types = testing::Types<float, BFloat16, double, int32_t, int64_t>;
TYPED_TEST_SUITE(TreeReduceTest, Types);

TYPED_TEST(TreeReduceTest, HasTheBitsOfTheDefinition) {
  using T = TypeParam;
  std::mt19937_64 random(7);
  for (int count : {1, 2, 3, 4, 5, 6, 7, 8, 13, 31, 255, 256, 257, 600}) {
    for (int64_t elements : {0, 1, 300}) {
      if (count > 31 && elements > 1) continue;
      std::vector<std::vector<T>> inputs(count, std::vector<T>(elements));
      for (std::vector<T>& input : inputs) {
        for (T& value : input) value = RandomValue<T>(random);
      }
      for (TreeOp op : {TreeOp::kSum, TreeOp::kMax}) {
        std::vector<const T*> addresses;
        for (const std::vector<T>& input : inputs) addresses.push_back(input.data());
        std::vector<T> output(elements);
        std::vector<char> scratch(static_cast<size_t>(TreeReduceScratchBytes<T>(count, elements)));
        TreeReduce<T>(nullptr, op, addresses, elements, output.data(), scratch.data());
        ASSERT_EQ(simt::TakeLaunchError(), "");
        for (int64_t i = 0; i < elements; ++i) {
          const T expected = static_cast<T>(Tree<T>(op, inputs, 0, count, i));
          EXPECT_EQ(std::memcmp(&expected, &output[i], sizeof(T)), 0)
              << count << " inputs, element " << i;
        }
      }
    }
  }
}

TYPED_TEST(TreeReduceTest, TheOutputMayBeAnyInput) {
  using T = TypeParam;
  for (int which = 0; which < 3; ++which) {
    std::vector<std::vector<T>> inputs(3, std::vector<T>(5, static_cast<T>(2)));
    const std::vector<const T*> addresses = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
    TreeReduce<T>(nullptr, TreeOp::kSum, addresses, 5, inputs[which].data());
    ASSERT_EQ(simt::TakeLaunchError(), "");
    for (const T value : inputs[which]) {
      EXPECT_EQ(static_cast<double>(static_cast<typename Partial<T>::Type>(value)), 6);
    }
  }
}

// More than 2^32 elements, of which only some blocks are run, the first and the last among them.
TEST(TreeReduceIndexTest, IndicesBeyond32Bits) {
  const int64_t elements = (int64_t{1} << 32) + 300;
  const Tensor a(DType::kF32, {elements}), b(DType::kF32, {elements});
  a.view().as<float>()[elements - 1] = 3;
  b.view().as<float>()[elements - 1] = 4;
  b.view().as<float>()[0] = 5;
  const std::vector<const float*> inputs = {a.view().as<float>(), b.view().as<float>()};
  simt::SetSimulatorOptions({.sampled_blocks = 3});
  TreeReduce<float>(nullptr, TreeOp::kSum, inputs, elements, a.view().as<float>());
  simt::SetSimulatorOptions({});
  EXPECT_EQ(simt::TakeLaunchError(), "");
  EXPECT_EQ(a.view().as<float>()[elements - 1], 7);
  EXPECT_EQ(a.view().as<float>()[0], 5);
}

TEST(TreeReduceNanTest, AMaximumIsNanWhereAnyInputIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1, 2, -1}, b = {1, nan, 3, -2}, c = {1, 1, 1, -3};
  const std::vector<const float*> inputs = {a.data(), b.data(), c.data()};
  std::vector<float> output(4);
  TreeReduce<float>(nullptr, TreeOp::kMax, inputs, 4, output.data());
  EXPECT_TRUE(std::isnan(output[0]) && std::isnan(output[1]));
  EXPECT_EQ(output[2], 3);
  EXPECT_EQ(output[3], -1);
}

}  // namespace
}  // namespace tessera::cuda
