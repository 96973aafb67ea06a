#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tensor/bfloat16.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

float RoundTrip(float value) { return static_cast<float>(BFloat16(value)); }

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(RoundTrip(1.0f), 1.0f);
  // Between 1 and 1 + 2^-7: the half goes to the even neighbour, anything above it goes up.
  EXPECT_EQ(RoundTrip(1.0f + std::ldexp(1.0f, -8)), 1.0f);
  EXPECT_EQ(RoundTrip(1.0f + std::ldexp(3.0f, -8)), 1.0f + std::ldexp(2.0f, -7));
  EXPECT_EQ(RoundTrip(1.0f + std::ldexp(1.0f, -8) + std::ldexp(1.0f, -20)),
            1.0f + std::ldexp(1.0f, -7));
  EXPECT_EQ(RoundTrip(-0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(RoundTrip(-0.0f)));
}

TEST(BFloat16Test, KeepsSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(RoundTrip(infinity), infinity);
  EXPECT_EQ(RoundTrip(-infinity), -infinity);
  EXPECT_EQ(RoundTrip(std::numeric_limits<float>::max()), infinity);
  EXPECT_TRUE(std::isnan(RoundTrip(std::numeric_limits<float>::quiet_NaN())));
  // A payload only in the lower half must neither turn the NaN into an infinity nor carry into the
  // sign.
  EXPECT_TRUE(std::isnan(RoundTrip(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(std::isnan(RoundTrip(std::bit_cast<float>(0x7fffffffu))));
  EXPECT_TRUE(std::isnan(RoundTrip(std::bit_cast<float>(0xffffffffu))));
}

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(ElementSize(DType::kF32), 4);
  EXPECT_EQ(ElementSize(DType::kBF16), 2);
  EXPECT_EQ(ElementSize(DType::kF64), 8);
  EXPECT_EQ(ElementSize(DType::kI32), 4);
  EXPECT_EQ(DTypeName(DType::kBF16), "bfloat16");
}

TEST(TensorViewTest, SliceTransposeReshape) {
  std::vector<float> data(24);
  for (int i = 0; i < 24; ++i) data[i] = i;
  const TensorView x(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_TRUE(x.contiguous());
  EXPECT_EQ(x.elements(), 24);
  EXPECT_EQ(x.bytes(), 96);
  const TensorView slice = x.Slice(1, 1, 3);
  EXPECT_EQ(slice.shape(), (Shape{2, 2, 4}));
  EXPECT_FALSE(slice.contiguous());
  EXPECT_EQ(*slice.as<float>(), 4);
  EXPECT_EQ(slice.stride(0), 12);
  const TensorView swapped = x.Transpose(0, 2);
  EXPECT_EQ(swapped.shape(), (Shape{4, 3, 2}));
  EXPECT_EQ(swapped.strides(), (std::vector<int64_t>{1, 4, 12}));
  EXPECT_EQ(x.Reshape({6, 4}).Slice(0, 5, 6).as<float>()[0], 20);
  // One row of a wider buffer is contiguous whatever its stride is.
  EXPECT_TRUE(x.Slice(0, 1, 2).contiguous());
  EXPECT_TRUE(x.Slice(1, 0, 0).contiguous());
}

TEST(TensorViewDeathTest, RefusesWhatCannotBe) {
  std::vector<float> data(24);
  const TensorView x(data.data(), DType::kF32, {4, 6});
  EXPECT_DEATH(x.Transpose(0, 1).Reshape({24}), "strided view");
  EXPECT_DEATH(x.Reshape({5, 5}), "cannot become");
  EXPECT_DEATH(x.Slice(0, 2, 5), "of dim 0");
}

TEST(TensorTest, IsZeroedAlignedAndCounted) {
  const int64_t before = TensorMemory().live_bytes;
  const int64_t weights_before = TensorMemory(MemoryCategory::kWeights).live_bytes;
  ResetPeakMemory();
  {
    MemoryScope scope(MemoryCategory::kWeights);
    const Tensor small(DType::kBF16, {3, 5});
    const Tensor large(DType::kF32, {1 << 20});
    for (const Tensor* tensor : {&small, &large}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->view().data()) % 4096, 0u);
      std::vector<char> zeros(tensor->view().bytes());
      EXPECT_EQ(std::memcmp(tensor->view().data(), zeros.data(), zeros.size()), 0);
    }
    EXPECT_EQ(TensorMemory().live_bytes - before, 30 + (4 << 20));
    EXPECT_EQ(TensorMemory(MemoryCategory::kWeights).live_bytes - weights_before, 30 + (4 << 20));
  }
  EXPECT_EQ(TensorMemory().live_bytes, before);
  EXPECT_EQ(TensorMemory().peak_bytes, before + 30 + (4 << 20));
  ResetPeakMemory();
  EXPECT_EQ(TensorMemory().peak_bytes, before);
}

TEST(TensorTest, MovesKeepTheBuffer) {
  Tensor first(DType::kF32, {7});
  float* data = first.view().as<float>();
  data[3] = 5;
  const Tensor second = std::move(first);
  EXPECT_EQ(second.view().as<float>()[3], 5);
  EXPECT_EQ(second.view().data(), data);
}

TEST(TensorTest, EmptyTensorsExist) {
  const Tensor none;
  EXPECT_TRUE(none.view().empty());
  const Tensor no_rows(DType::kF32, {0, 4});
  EXPECT_FALSE(no_rows.view().empty());
  EXPECT_EQ(no_rows.view().elements(), 0);
}

}  // namespace
}  // namespace tessera
