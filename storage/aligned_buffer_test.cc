#include "storage/aligned_buffer.h"

#include <algorithm>
#include <utility>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "storage/storage.h"

namespace tessera {
namespace {

TEST(AlignedBufferTest, IsAlignedZeroedAndPaddedAtEverySize) {
  for (uint64_t size : {1ull, 4095ull, 4096ull, 4097ull, (2ull << 20) - 1, 2ull << 20,
                        (2ull << 20) + 1, 5'000'000ull}) {
    ASSERT_OK_AND_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Allocate(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kIoAlignmentBytes, 0) << size;
    EXPECT_EQ(buffer.size_bytes(), size);
    EXPECT_EQ(buffer.span().size(), size);
    EXPECT_EQ(buffer.capacity_bytes() % kIoAlignmentBytes, 0);
    EXPECT_GE(buffer.capacity_bytes(), size);
    EXPECT_LT(buffer.capacity_bytes(), size + kIoAlignmentBytes);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.capacity_bytes(),
                            [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(buffer.data(), buffer.capacity_bytes(), std::byte{1});
  }
}

TEST(AlignedBufferTest, HugeBuffersStartAtAHugePage) {
  ASSERT_OK_AND_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Allocate(3 << 20));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (2 << 20), 0);
}

TEST(AlignedBufferTest, EmptyBufferHoldsNothing) {
  ASSERT_OK_AND_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Allocate(0));
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.span().empty());
  buffer.Prefault();
}

TEST(AlignedBufferTest, MovesOwnership) {
  AlignedBuffer a = *AlignedBuffer::Allocate(10'000);
  a.data()[9'999] = std::byte{7};
  const std::byte* data = a.data();
  AlignedBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): its state is promised
  AlignedBuffer c = *AlignedBuffer::Allocate(1);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.span()[9'999], std::byte{7});
  EXPECT_EQ(b.size_bytes(), 0);  // NOLINT(bugprone-use-after-move)
}

TEST(AlignedBufferTest, PrefaultKeepsContents) {
  AlignedBuffer buffer = *AlignedBuffer::Allocate(5 << 20);
  buffer.data()[4'000'000] = std::byte{9};
  buffer.Prefault();
  EXPECT_EQ(buffer.data()[4'000'000], std::byte{9});
}

TEST(AlignedBufferTest, ImpossibleSizesAreRefused) {
  for (uint64_t size : {UINT64_MAX, uint64_t{1} << 62, uint64_t{1} << 55}) {
    absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(size);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tessera
