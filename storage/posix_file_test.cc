#include "storage/posix_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "base/status_macros.h"
#include "base/testing.h"
#include "base/threads.h"
#include "gtest/gtest.h"

namespace tessera::internal {
namespace {

// A fake kernel that misbehaves on request. Both descriptors of the file under test are ordinary
// ones, so that the rules of direct I/O are checked here instead of by one file system.
constexpr int kAsItIs = std::numeric_limits<int>::max();
struct FakeKernel {
  int direct_fd = -1;
  size_t longest_write = std::numeric_limits<size_t>::max();
  size_t longest_read = std::numeric_limits<size_t>::max();
  int interrupt_every = 0;      // EINTR on every n-th call
  bool refuse_direct = false;   // EINVAL, as some file systems do
  int64_t fail_at_offset = -1;  // ENOSPC for writes, EIO for reads that touch it
  int ring_result = kAsItIs;
  uintptr_t memory_alignment = kIoAlignmentBytes;
  int calls = 0, direct_calls = 0, misaligned_calls = 0;
};
FakeKernel kernel;

// Returns 0, or the errno to fail with; may shorten `size`.
int Enter(int fd, const void* data, size_t* size, size_t longest, off_t offset, int failure) {
  ++kernel.calls;
  if (kernel.interrupt_every > 0 && kernel.calls % kernel.interrupt_every == 0) return EINTR;
  if (fd == kernel.direct_fd) {
    ++kernel.direct_calls;
    if (kernel.refuse_direct) return EINVAL;
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (((*size | offset) & (kIoAlignmentBytes - 1)) != 0 ||
        address % kernel.memory_alignment != 0) {
      ++kernel.misaligned_calls;
      return EINVAL;
    }
  }
  *size = std::min(*size, longest);
  const int64_t end = offset + static_cast<int64_t>(*size);
  if (kernel.fail_at_offset >= offset && kernel.fail_at_offset < end) return failure;
  return 0;
}

ssize_t FakeRead(int fd, void* data, size_t size, off_t offset) {
  errno = Enter(fd, data, &size, kernel.longest_read, offset, EIO);
  if (errno != 0) return -1;
  errno = EINTR;  // of an earlier call
  return ::pread(fd, data, size, offset);
}

ssize_t FakeWrite(int fd, const void* data, size_t size, off_t offset) {
  errno = Enter(fd, data, &size, kernel.longest_write, offset, ENOSPC);
  if (errno != 0) return -1;
  errno = EINTR;  // of an earlier call
  return ::pwrite(fd, data, size, offset);
}

int FakeRingResult(size_t size, off_t, int result) {
  if (kernel.ring_result == kAsItIs) return result;
  return std::min(kernel.ring_result, static_cast<int>(size));
}

class DualFileTest : public testing::Test {
 protected:
  DualFileTest() : path_(directory_.path() + "/file") {
    kernel = FakeKernel();
    MakeFile();
  }

  // An empty one.
  void MakeFile() {
    ScopedFd buffered(open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600));
    ScopedFd direct(open(path_.c_str(), O_RDWR));
    kernel.direct_fd = direct.get();
    file_.emplace(std::move(buffered), std::move(direct),
                  DualFileOptions{.direct_min_bytes = 8192,
                                  .calls = {&FakeRead, &FakeWrite, &FakeRingResult}},
                  &bounce_);
  }

  // What a transfer is, whether it was started or not.
  int Write(uint64_t offset, std::span<const std::byte> data) {
    if (!starts_) return file_->WriteAt(offset, data);
    const std::unique_ptr<RingTransfer> started = file_->StartWrite(offset, data);
    started_ += started != nullptr ? 1 : 0;
    return file_->FinishWrite(started.get(), offset, data);
  }
  int Read(uint64_t offset, std::span<std::byte> out, size_t* found) {
    if (!starts_) return file_->ReadAt(offset, out, found);
    const std::unique_ptr<RingTransfer> started = file_->StartRead(offset, out);
    started_ += started != nullptr ? 1 : 0;
    return file_->FinishRead(started.get(), offset, out, found);
  }

  // Writes ranges of every alignment, in any order, with gaps; then reads such ranges. The kernel's
  // misbehaviour must not be visible.
  void ExpectRoundTrips() {
    MakeFile();
    std::mt19937 random(1);
    struct Range {
      size_t begin, end;
    };
    std::vector<Range> ranges;
    for (size_t end = 0; end < 200'000;) {
      const size_t begin = end + (random() % 4 == 0 ? random() % 9'000 : 0);
      const size_t unit = ranges.size() % 3 == 0 ? kIoAlignmentBytes : 1;
      const size_t longest = random() % 3 == 0 ? 50'000 : 5'000;
      end = std::max(begin + 1, (begin + random() % longest) / unit * unit);
      ranges.push_back({begin, end});
    }
    std::string expected(ranges.back().end, '\0');
    std::ranges::shuffle(ranges, random);
    for (const Range& range : ranges) {
      const size_t shift = random() % 2 == 0 ? range.begin % kIoAlignmentBytes : random() % 100;
      const std::span<std::byte> data = memory_.span().subspan(shift, range.end - range.begin);
      for (std::byte& byte : data) byte = std::byte(random());
      ASSERT_EQ(Write(range.begin, data), 0);
      std::copy_n(reinterpret_cast<char*>(data.data()), data.size(), &expected[range.begin]);
    }
    ASSERT_EQ(ftruncate(file_->fd(), expected.size()), 0);
    for (int i = 0; i < 60; ++i) {
      const size_t from = random() % (expected.size() + 1);
      const size_t shift = i % 3 == 0 ? from % kIoAlignmentBytes : random() % 2;
      const std::span<std::byte> out = memory_.span().subspan(shift, 60'000);
      size_t found = 0;
      ASSERT_EQ(Read(from, out, &found), 0);
      ASSERT_EQ(found, std::min(out.size(), expected.size() - from)) << "offset " << from;
      ASSERT_TRUE(std::equal(out.begin(), out.begin() + found, AsBytes(expected) + from));
    }
    EXPECT_EQ(kernel.misaligned_calls, 0);
  }

  static const std::byte* AsBytes(const std::string& text) {
    return reinterpret_cast<const std::byte*>(text.data());
  }

  TestFolder directory_;
  std::string path_;
  BouncePool bounce_{2 * kIoAlignmentBytes, 2};
  AlignedBuffer memory_ = *AlignedBuffer::Allocate(200'000);
  std::optional<DualFile> file_;
  bool starts_ = false;
  int started_ = 0;
};

// The same where the direct parts are started through io_uring, whose results misbehave.
class RingFileTest : public DualFileTest {
 protected:
  void SetUp() override {
    starts_ = true;
    if (!IsThereARing()) GTEST_SKIP() << "this machine refuses io_uring (needs: io_uring)";
  }
  bool IsThereARing() { return file_->StartRead(0, memory_.span().first(65'536)) != nullptr; }
};

TEST_F(RingFileTest, TransfersAreStartedAndGoPastTheCalls) {
  ExpectRoundTrips();
  EXPECT_GE(started_, 5);
  kernel.calls = 0;
  ASSERT_EQ(Write(4096, memory_.span().first(65'536)), 0);
  size_t found = 0;
  ASSERT_EQ(Read(8192, memory_.span().first(32'768), &found), 0);
  EXPECT_EQ(found, 32'768);
  EXPECT_EQ(kernel.calls, 0);
}

TEST_F(RingFileTest, WhatTheRingLeavesUndoneIsDoneByCalls) {
  for (const int result : {0, 1'000, 4096, 5'000, -EINTR, -EAGAIN, -EINVAL, -ECANCELED}) {
    SCOPED_TRACE(result);
    kernel.ring_result = result;
    ExpectRoundTrips();
    kernel.calls = 0;
    size_t found = 0;
    ASSERT_EQ(Read(0, memory_.span().first(32'768), &found), 0);
    EXPECT_EQ(kernel.calls, 1);
    EXPECT_TRUE(file_->direct());
  }
}

TEST_F(RingFileTest, ErrorsOfTheRingAreThoseOfTheCalls) {
  ASSERT_EQ(Write(0, memory_.span().first(65'536)), 0);
  for (const int error : {EIO, ENOSPC, EBADMSG}) {
    kernel.ring_result = -error;
    size_t found = 0;
    EXPECT_EQ(Write(100, memory_.span().subspan(100, 61'000)), error);
    EXPECT_EQ(Read(100, memory_.span().subspan(100, 61'000), &found), error);
  }
}

TEST_F(RingFileTest, WhatDoesNotFitTheRingIsNotStartedAndWorks) {
  ASSERT_EQ(Write(0, memory_.span()), 0);
  std::vector<AlignedBuffer> buffers;
  std::vector<std::unique_ptr<RingTransfer>> transfers;
  for (int i = 0; i < 40; ++i) {
    buffers.push_back(*AlignedBuffer::Allocate(65'536));
    transfers.push_back(file_->StartRead(4096, buffers.back().span()));
  }
  EXPECT_NE(transfers.front(), nullptr);
  EXPECT_EQ(transfers.back(), nullptr);
  for (int i = 39; i >= 0; --i) {
    size_t found = 0;
    ASSERT_EQ(file_->FinishRead(transfers[i].get(), 4096, buffers[i].span(), &found), 0);
    EXPECT_TRUE(std::equal(buffers[i].data(), buffers[i].data() + found, memory_.data() + 4096));
  }
  EXPECT_NE(file_->StartRead(4096, buffers[0].span()), nullptr);
  EXPECT_EQ(file_->StartRead(4096, memory_.span().subspan(1)), nullptr) << "misaligned";
}

// A file whose contents come later.
class RingTransferTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    reading_ = ScopedFd(fds[0]);
    writing_ = ScopedFd(fds[1]);
    transfer_ = RingTransfer::Start(/*write=*/false, reading_.get(), 0, byte_);
    if (transfer_ == nullptr) GTEST_SKIP() << "this machine refuses io_uring (needs: io_uring)";
  }
  // The end of the file is the end of what a test has left in flight.
  void TearDown() override { writing_.Close(); }
  std::thread WriteSoon() {
    return *StartThread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT_EQ(write(writing_.get(), "x", 1), 1);
    });
  }

  ScopedFd reading_, writing_;
  std::vector<std::byte> byte_ = std::vector<std::byte>(1);
  std::unique_ptr<RingTransfer> transfer_;
};

TEST_F(RingTransferTest, WaitsForTheEndAndSoDoesItsDestructor) {
  std::thread first = WriteSoon();
  EXPECT_EQ(transfer_->Wait(), 1);
  EXPECT_EQ(byte_[0], std::byte('x'));
  first.join();
  byte_[0] = {};
  transfer_ = RingTransfer::Start(/*write=*/false, reading_.get(), 0, byte_);
  std::thread second = WriteSoon();
  transfer_.reset();
  EXPECT_EQ(byte_[0], std::byte('x'));
  second.join();
}

TEST_F(RingTransferTest, IsRefusedThroughTheEnvironment) {
  const auto starts = [this] {
    std::unique_ptr<RingTransfer> started;
    std::vector<std::byte> byte(1);
    StartThread([&] {
      started = RingTransfer::Start(/*write=*/true, writing_.get(), 0, byte);
      const bool did = started != nullptr;
      started.reset();
      byte[0] = std::byte(did ? 1 : 0);
    })->join();
    return byte[0] == std::byte(1);
  };
  EXPECT_TRUE(starts());
  setenv("TESSERA_IO_URING", "0", /*overwrite=*/1);
  EXPECT_FALSE(starts());
  unsetenv("TESSERA_IO_URING");
  EXPECT_TRUE(starts());
  EXPECT_EQ(transfer_->Wait(), 1);
}

// As in a container whose filter of system calls does not know it.
TEST_F(RingTransferTest, IsReplacedByCallsWhereTheKernelRefuses) {
  TestFolder directory;
  const std::string path = directory.path() + "/file";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none = {0, 0};
    const int taken = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    DualFile file(ScopedFd(taken), ScopedFd(open(path.c_str(), O_RDWR)), {}, nullptr);
    AlignedBuffer memory = *AlignedBuffer::Allocate(65'536);
    memory.data()[65'000] = std::byte(5);
    // No further descriptor, and so no ring.
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) _exit(1);
    const auto write = file.StartWrite(0, memory.span());
    if (write != nullptr || file.FinishWrite(nullptr, 0, memory.span()) != 0) _exit(2);
    memory.data()[65'000] = {};
    size_t found = 0;
    const bool read = file.FinishRead(nullptr, 0, memory.span(), &found) == 0 && found == 65'536;
    _exit(read && memory.data()[65'000] == std::byte(5) ? 0 : 3);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(RingTransferTest, AForkedProcessMakesARingOfItsOwn) {
  const pid_t child = fork();
  if (child == 0) {
    // The parent's transfer ends first: in one ring for both, this process would take its end away.
    int fds[2];
    std::vector<std::byte> byte(1);
    if (write(writing_.get(), "x", 1) != 1 || pipe(fds) != 0 || write(fds[1], "y", 1) != 1) {
      _exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto mine = RingTransfer::Start(/*write=*/false, fds[0], 0, byte);
    _exit(mine != nullptr && mine->Wait() == 1 && byte[0] == std::byte('y') ? 0 : 2);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(transfer_->Wait(), 1);
  EXPECT_EQ(byte_[0], std::byte('x'));
  EXPECT_EQ(status, 0);
}

TEST_F(DualFileTest, DirectTransfersAreAlwaysAligned) {
  ExpectRoundTrips();
  EXPECT_GT(kernel.direct_calls, 0);
  EXPECT_LT(kernel.direct_calls, kernel.calls);
  EXPECT_TRUE(file_->direct());
}

TEST_F(DualFileTest, AnAlignedTransferIsOneCall) {
  ASSERT_EQ(file_->WriteAt(4096, memory_.span().first(65'536)), 0);
  EXPECT_EQ(kernel.calls, 1);
  EXPECT_EQ(kernel.direct_calls, 1);
  size_t found = 0;
  ASSERT_EQ(file_->ReadAt(8192, memory_.span().first(32'768), &found), 0);
  EXPECT_EQ(kernel.calls, 2);
  EXPECT_EQ(kernel.direct_calls, 2);
}

TEST_F(DualFileTest, MemoryThatTheFileSystemAcceptsIsNotCopied) {
  ScopedFd buffered(open(path_.c_str(), O_RDWR)), direct(open(path_.c_str(), O_RDWR));
  kernel.direct_fd = direct.get();
  kernel.memory_alignment = 512;
  DualFile file(
      std::move(buffered), std::move(direct),
      {.direct_min_bytes = 8192, .memory_alignment_bytes = 512, .calls = {&FakeRead, &FakeWrite}},
      nullptr);
  ASSERT_EQ(file.WriteAt(4096, memory_.span().subspan(512, 65'536)), 0);
  size_t found = 0;
  ASSERT_EQ(file.ReadAt(4096, memory_.span().subspan(1536, 65'536), &found), 0);
  EXPECT_EQ(found, 65'536);
  EXPECT_EQ(kernel.direct_calls, 2);
  EXPECT_EQ(kernel.misaligned_calls, 0);
}

TEST(DirectMemoryAlignmentTest, DividesTheBlockAndIsTheBlockForOtherThings) {
  EXPECT_EQ(DirectMemoryAlignment(-1), kIoAlignmentBytes);
  TestFolder directory;
  const ScopedFd fd(open((directory.path() + "/f").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600));
  if (!fd.valid()) GTEST_SKIP() << "no direct I/O here (needs: direct_io)";
  EXPECT_EQ(kIoAlignmentBytes % DirectMemoryAlignment(fd.get()), 0);
}

TEST_F(DualFileTest, InterruptedCallsAreRepeated) {
  kernel.interrupt_every = 2;
  ExpectRoundTrips();
}

TEST_F(DualFileTest, ShortTransfersAreContinued) {
  for (size_t longest : {1'000, 4096, 5'000}) {
    kernel.longest_write = std::max(longest, kIoAlignmentBytes);
    kernel.longest_read = longest;
    ExpectRoundTrips();
  }
  // The rest of a write ends where the write does.
  MakeFile();
  ASSERT_EQ(file_->WriteAt(0, memory_.span().first(12'288)), 0);
  EXPECT_EQ(lseek(file_->fd(), 0, SEEK_END), 12'288);
}

TEST_F(DualFileTest, ShortAndInterruptedAtOnce) {
  kernel.longest_write = 5'333;
  kernel.longest_read = 3'333;
  kernel.interrupt_every = 3;
  ExpectRoundTrips();
}

TEST_F(DualFileTest, RefusedDirectTransfersGoThroughTheCache) {
  kernel.refuse_direct = true;
  ExpectRoundTrips();
  EXPECT_EQ(kernel.direct_calls, 1);
  EXPECT_FALSE(file_->direct());
}

TEST_F(DualFileTest, AFileForDirectWritesIsWrittenDirectlyOnly) {
  ExpectRoundTrips();
  MakeFile();
  kernel.calls = kernel.direct_calls = 0;
  for (const auto& [begin, end] : {std::pair(1, 2), {4095, 4097}, {2, 9}, {5'000, 100'000}}) {
    ASSERT_EQ(Write(begin, memory_.span().first(end - begin)), 0);
  }
  EXPECT_EQ(kernel.calls, kernel.direct_calls);
}

TEST_F(DualFileTest, ADiskWithoutRoomForABlockIsFull) {
  kernel.longest_write = 1'000;
  EXPECT_EQ(file_->WriteAt(0, memory_.span().first(65'536)), ENOSPC);
  EXPECT_EQ(file_->WriteAt(100'000, memory_.span().first(10)), ENOSPC);
  kernel.longest_write = 0;
  EXPECT_EQ(file_->WriteAt(0, memory_.span().first(65'536)), ENOSPC);
  EXPECT_TRUE(file_->direct());
  kernel.refuse_direct = true;
  EXPECT_EQ(file_->WriteAt(0, memory_.span().first(65'536)), EIO);
}

TEST_F(DualFileTest, ErrorsAreReportedFromEveryPart) {
  // Head, blocks and tail; then the same with bounce buffers.
  for (size_t shift : {size_t{100}, size_t{101}}) {
    for (int64_t at : {200, 20'000, 61'000}) {
      kernel.fail_at_offset = at;
      EXPECT_EQ(file_->WriteAt(100, memory_.span().subspan(shift, 61'000)), ENOSPC) << at;
      kernel.fail_at_offset = -1;
      ASSERT_EQ(file_->WriteAt(100, memory_.span().subspan(shift, 61'000)), 0);
      kernel.fail_at_offset = at;
      size_t found = 0;
      EXPECT_EQ(file_->ReadAt(100, memory_.span().subspan(shift, 61'000), &found), EIO) << at;
      kernel.fail_at_offset = -1;
    }
  }
  EXPECT_TRUE(file_->direct()) << "another error than that of misaligned transfers";
}

TEST_F(DualFileTest, CloseReportsTheErrorOfEitherDescriptor) {
  EXPECT_EQ(file_->Close(), 0);
  MakeFile();
  close(kernel.direct_fd);
  EXPECT_EQ(file_->Close(), EBADF);
  MakeFile();
  close(file_->fd());
  EXPECT_EQ(file_->Close(), EBADF);
}

TEST_F(DualFileTest, OffsetsBeyondTheSystemsAreTooBig) {
  size_t found = 0;
  for (uint64_t offset :
       {UINT64_MAX, UINT64_MAX - 65'536, uint64_t{1} << 63, (uint64_t{1} << 63) - 65'536}) {
    EXPECT_EQ(file_->WriteAt(offset, memory_.span().first(65'536)), EFBIG);
    EXPECT_EQ(file_->ReadAt(offset, memory_.span().first(65'536), &found), EFBIG);
  }
  EXPECT_EQ(kernel.calls, 0);
}

// What the system could not write, it may have given up: the next call would report nothing.
TEST(PosixWritableFileTest, ASyncThatFailedIsNotForgotten) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const ScopedFd reader(ends[0]);
  PosixWritableFile file("file", ScopedFd(ends[1]), ScopedFd(), {}, nullptr);
  EXPECT_FALSE(file.Sync().ok()) << "a pipe cannot be synced";
  const std::string path = ::testing::TempDir() + "/can_be_synced";
  const ScopedFd other(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(other.valid());
  ASSERT_EQ(dup2(other.get(), ends[1]), ends[1]);
  EXPECT_FALSE(file.Sync().ok());
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
  EXPECT_OK(ran);
  EXPECT_LE(most, 2);
}

TEST(BouncePoolTest, AFailedAllocationDoesNotUseUpTheBound) {
  BouncePool pool(size_t{1} << 60, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pool.Acquire().status().code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tessera::internal
