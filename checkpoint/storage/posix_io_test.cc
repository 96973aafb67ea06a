#include "checkpoint/storage/posix_io.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/threads.h"
#include "checkpoint/include/storage.h"
#include "checkpoint/storage/testing/temporary_directory.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::internal {
namespace {

// A fake kernel that misbehaves on request. Both descriptors of the file under test are ordinary
// ones, so that the rules of direct I/O are checked here instead of by one file system.
struct FakeKernel {
  int direct_fd = -1;
  size_t longest_transfer = std::numeric_limits<size_t>::max();
  int interrupt_every = 0;      // EINTR on every n-th call
  bool refuse_direct = false;   // EINVAL, as some file systems do
  int64_t fail_at_offset = -1;  // ENOSPC for writes, EIO for reads that touch it
  int calls = 0, direct_calls = 0, misaligned_calls = 0;
  const void* direct_data = nullptr;  // of the last direct call
};
FakeKernel kernel;

// Returns 0, or the errno to fail with; may shorten `size`.
int Enter(int fd, const void* data, size_t* size, off_t offset, int failure) {
  ++kernel.calls;
  if (kernel.interrupt_every > 0 && kernel.calls % kernel.interrupt_every == 0) return EINTR;
  if (fd == kernel.direct_fd) {
    ++kernel.direct_calls;
    if (kernel.refuse_direct) return EINVAL;
    const auto address = reinterpret_cast<uintptr_t>(data);
    kernel.direct_data = data;
    if (((*size | offset) & (kIoAlignmentBytes - 1)) != 0 ||
        address % DirectMemoryAlignment(fd) != 0) {
      ++kernel.misaligned_calls;
      return EINVAL;
    }
  }
  *size = std::min(*size, kernel.longest_transfer);
  const int64_t end = offset + static_cast<int64_t>(*size);
  if (kernel.fail_at_offset >= offset && kernel.fail_at_offset < end) return failure;
  return 0;
}

ssize_t FakeRead(int fd, void* data, size_t size, off_t offset) {
  errno = Enter(fd, data, &size, offset, EIO);
  return errno == 0 ? ::pread(fd, data, size, offset) : -1;
}

ssize_t FakeWrite(int fd, const void* data, size_t size, off_t offset) {
  errno = Enter(fd, data, &size, offset, ENOSPC);
  return errno == 0 ? ::pwrite(fd, data, size, offset) : -1;
}

class DualFileTest : public testing::Test {
 protected:
  DualFileTest() : path_(directory_.path() + "/file"), file_(MakeFile()) {}

  DualFile MakeFile() {
    kernel = FakeKernel();
    ScopedFd buffered(open(path_.c_str(), O_RDWR | O_CREAT, 0600));
    ScopedFd direct(open(path_.c_str(), O_RDWR));
    kernel.direct_fd = direct.get();
    return DualFile(std::move(buffered), std::move(direct), 8192, &bounce_,
                    {&FakeRead, &FakeWrite});
  }

  // Writes and reads ranges of every alignment; the kernel's misbehaviour must not be visible.
  void ExpectRoundTrips() {
    ASSERT_EQ(ftruncate(file_.fd(), 0), 0);
    std::mt19937 random(1);
    std::string expected;
    for (int i = 0; i < 60; ++i) {
      const size_t unit = i % 3 == 0 ? kIoAlignmentBytes : 1;
      const size_t offset = random() % 60'000 / unit * unit;
      const size_t size = random() % 50'000 / unit * unit, shift = i % 2;
      for (size_t k = 0; k < size; ++k) memory_.data()[shift + k] = std::byte(random());
      ASSERT_EQ(file_.WriteAt(offset, memory_.span().subspan(shift, size)), 0);
      if (size > 0) expected.resize(std::max(expected.size(), offset + size));
      std::copy_n(reinterpret_cast<char*>(memory_.data() + shift), size, &expected[offset]);
      const size_t from = random() % (expected.size() + 1);
      const std::span<std::byte> out = memory_.span().subspan(random() % 2, 60'000);
      size_t found = 0;
      ASSERT_EQ(file_.ReadAt(from, out, &found), 0);
      ASSERT_EQ(found, std::min(out.size(), expected.size() - from)) << "offset " << from;
      ASSERT_TRUE(std::equal(out.begin(), out.begin() + found, AsBytes(expected) + from));
    }
  }

  static const std::byte* AsBytes(const std::string& text) {
    return reinterpret_cast<const std::byte*>(text.data());
  }

  TemporaryDirectory directory_;
  std::string path_;
  BouncePool bounce_{2 * kIoAlignmentBytes, 2};
  AlignedBuffer memory_ = *AlignedBuffer::Allocate(200'000);
  DualFile file_;
};

TEST_F(DualFileTest, DirectTransfersAreAlwaysAligned) {
  ExpectRoundTrips();
  EXPECT_GT(kernel.direct_calls, 0);
  EXPECT_LT(kernel.direct_calls, kernel.calls);
  EXPECT_EQ(kernel.misaligned_calls, 0);
  EXPECT_TRUE(file_.direct());
}

// Memory need not be aligned as the file is: what the file system takes is not copied.
TEST_F(DualFileTest, MemoryIsWrittenFromWhereItIsIfTheFileSystemPermits) {
  const uint64_t alignment = DirectMemoryAlignment(kernel.direct_fd);
  ASSERT_EQ(kIoAlignmentBytes % alignment, 0);
  const auto data = memory_.span().subspan(alignment, 65'536);
  ASSERT_EQ(file_.WriteAt(4096, data), 0);
  EXPECT_EQ(kernel.direct_data, data.data());
  EXPECT_EQ(kernel.misaligned_calls, 0);
  ASSERT_EQ(file_.WriteAt(4096, memory_.span().subspan(1, 65'536)), 0);
  EXPECT_NE(kernel.direct_data, memory_.data() + 1);
  EXPECT_EQ(kernel.misaligned_calls, 0);
}

TEST_F(DualFileTest, AnAlignedTransferIsOneCall) {
  ASSERT_EQ(file_.WriteAt(4096, memory_.span().first(65'536)), 0);
  EXPECT_EQ(kernel.calls, 1);
  EXPECT_EQ(kernel.direct_calls, 1);
  size_t found = 0;
  ASSERT_EQ(file_.ReadAt(8192, memory_.span().first(32'768), &found), 0);
  EXPECT_EQ(kernel.calls, 2);
  EXPECT_EQ(kernel.direct_calls, 2);
}

TEST_F(DualFileTest, InterruptedCallsAreRepeated) {
  kernel.interrupt_every = 2;
  ExpectRoundTrips();
}

TEST_F(DualFileTest, ShortTransfersAreContinued) {
  for (size_t longest : {1'000, 4096, 5'000}) {
    kernel.longest_transfer = longest;
    ExpectRoundTrips();
  }
}

TEST_F(DualFileTest, ShortAndInterruptedAtOnce) {
  kernel.longest_transfer = 3'333;
  kernel.interrupt_every = 3;
  ExpectRoundTrips();
}

TEST_F(DualFileTest, RefusedDirectTransfersGoThroughTheCache) {
  kernel.refuse_direct = true;
  ExpectRoundTrips();
  EXPECT_EQ(kernel.direct_calls, 1);
  EXPECT_FALSE(file_.direct());
}

TEST_F(DualFileTest, ErrorsAreReportedFromEveryPart) {
  // Head through the cache, blocks directly, tail through the cache; then the same with bounce
  // buffers.
  for (size_t shift : {size_t{100}, size_t{101}}) {
    for (int64_t at : {200, 20'000, 61'000}) {
      kernel.fail_at_offset = at;
      EXPECT_EQ(file_.WriteAt(100, memory_.span().subspan(shift, 61'000)), ENOSPC) << at;
      kernel.fail_at_offset = -1;
      ASSERT_EQ(file_.WriteAt(100, memory_.span().subspan(shift, 61'000)), 0);
      kernel.fail_at_offset = at;
      size_t found = 0;
      EXPECT_EQ(file_.ReadAt(100, memory_.span().subspan(shift, 61'000), &found), EIO) << at;
      kernel.fail_at_offset = -1;
    }
  }
}

TEST_F(DualFileTest, OffsetsBeyondTheSystemsAreTooBig) {
  size_t found = 0;
  for (uint64_t offset :
       {UINT64_MAX, UINT64_MAX - 65'536, uint64_t{1} << 63, (uint64_t{1} << 63) - 65'536}) {
    EXPECT_EQ(file_.WriteAt(offset, memory_.span().first(65'536)), EFBIG);
    EXPECT_EQ(file_.ReadAt(offset, memory_.span().first(65'536), &found), EFBIG);
  }
  EXPECT_EQ(kernel.calls, 0);
}

TEST(BouncePoolTest, NeverLendsMoreThanItsBound) {
  BouncePool pool(kIoAlignmentBytes, 2);
  std::atomic<int> lent = 0, most = 0;
  const absl::Status ran = RunTasks(6, 1200, [&](int worker, size_t i) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(BouncePool::Lease lease, pool.Acquire());
    const int now = ++lent;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    lease.span()[i] = std::byte(worker);
    std::this_thread::yield();
    EXPECT_EQ(lease.span()[i], std::byte(worker));
    --lent;
    return absl::OkStatus();
  });
  EXPECT_TRUE(ran.ok()) << ran;
  EXPECT_LE(most, 2);
}

TEST(BouncePoolTest, AFailedAllocationDoesNotUseUpTheBound) {
  BouncePool pool(size_t{1} << 60, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pool.Acquire().status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(ErrnoStatusTest, HasTheCodesOfTheInterface) {
  const std::vector<std::pair<int, absl::StatusCode>> expected = {
      {ENOENT, absl::StatusCode::kNotFound},
      {ENOTDIR, absl::StatusCode::kNotFound},
      {EEXIST, absl::StatusCode::kAlreadyExists},
      {ENOTEMPTY, absl::StatusCode::kAlreadyExists},
      {EACCES, absl::StatusCode::kPermissionDenied},
      {EPERM, absl::StatusCode::kPermissionDenied},
      {EROFS, absl::StatusCode::kPermissionDenied},
      {ENOSPC, absl::StatusCode::kResourceExhausted},
      {EDQUOT, absl::StatusCode::kResourceExhausted},
      {EFBIG, absl::StatusCode::kResourceExhausted},
      {EINVAL, absl::StatusCode::kInvalidArgument},
      {EISDIR, absl::StatusCode::kInvalidArgument},
      {ELOOP, absl::StatusCode::kInvalidArgument},
      {EIO, absl::StatusCode::kUnavailable},
      {EMFILE, absl::StatusCode::kUnavailable},
      {ESTALE, absl::StatusCode::kUnavailable}};
  for (const auto& [error, code] : expected) {
    EXPECT_EQ(ErrnoStatus(error, "Open", "/a").code(), code) << error;
  }
  EXPECT_EQ(ErrnoStatus(ENOSPC, "WriteAt", "/a/b").message(),
            "WriteAt /a/b: No space left on device");
}

}  // namespace
}  // namespace tessera::ckpt::internal
