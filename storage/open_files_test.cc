// More files than the process may open at once, in folders.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"

namespace tessera {
namespace {

constexpr size_t kDescriptors = 64;
constexpr size_t kManyFiles = 200;
// Is read past the page cache, where the file system has direct I/O.
constexpr size_t kFileBytes = 200'000;

std::string NameOf(size_t i) { return absl::StrCat("file-", i); }
std::string ContentsOf(size_t i) { return std::string(kFileBytes, static_cast<char>(i)); }

class OpenFilesTest : public testing::Test {
 protected:
  using Files = std::vector<std::unique_ptr<ReadableFile>>;

  void SetUp() override {
    for (size_t i = 0; i < kManyFiles; ++i) {
      ASSERT_OK(WriteAll(*storage_, NameOf(i), ContentsOf(i)));
    }
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit few = {kDescriptors, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  void TearDown() override { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

  static Files OpenAll(Storage& storage, size_t count) {
    Files files;
    for (size_t i = 0; i < count; ++i) files.push_back(OrFail(storage.Open(NameOf(i))));
    return files;
  }

  static absl::Status Check(const Files& files, size_t i) {
    std::string found(kFileBytes, '?');
    const absl::Status status = files[i]->ReadAt(0, std::as_writable_bytes(std::span(found)));
    if (status.ok() && found != ContentsOf(i)) return absl::DataLossError(NameOf(i));
    return status;
  }

  void Delete(size_t i) { EXPECT_OK(storage_->Delete(NameOf(i))); }

  // Puts another file with the same time in a file's place.
  void Replace(size_t i, const std::string& contents) {
    const std::string path = folder_.path() + "/" + NameOf(i);
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    const timespec times[] = {info.st_atim, info.st_mtim};
    EXPECT_OK(storage_->Rename(NameOf(i), "old-" + NameOf(i)));  // keeps its inode's number
    EXPECT_OK(WriteAll(*storage_, NameOf(i), contents));
    EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  TestFolder folder_;
  std::unique_ptr<Storage> storage_ = OrFail(OpenPosixStorage(folder_.path()));
  rlimit before_ = {};
};

TEST_F(OpenFilesTest, MoreAreReadThanTheProcessMayOpen) {
  constexpr size_t kAtOnce = 10;
  const Files files = OpenAll(*storage_, kManyFiles);
  for (size_t first = 0; first < kManyFiles; first += kAtOnce) {
    std::vector<std::string> found(kAtOnce, std::string(kFileBytes, '?'));
    std::vector<std::unique_ptr<PendingIo>> reads;
    for (size_t i = 0; i < kAtOnce; ++i) {
      const auto out = std::as_writable_bytes(std::span(found[i]));
      reads.push_back(files[first + i]->StartReadAt(0, out, /*original=*/false));
    }
    for (size_t i = 0; i < kAtOnce; ++i) {
      ASSERT_OK(reads[i]->Wait());
      EXPECT_EQ(found[i], ContentsOf(first + i)) << first + i;
    }
  }
}

// Files that are closed meanwhile are not replaced by others; open ones keep their contents.
TEST_F(OpenFilesTest, OneThatWasDeletedOrReplacedWhileItIsClosedIsNoDamage) {
  const Files files = OpenAll(*storage_, kManyFiles);
  const auto aborted = [&](size_t i) {
    const absl::Status status = Check(files, i);
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(storage_->Describe(NameOf(i))));
  };
  ASSERT_OK(WriteAll(*storage_, NameOf(0), ContentsOf(0)));
  aborted(0);
  Replace(1, "shorter");
  aborted(1);
  Delete(2);
  aborted(2);
  Delete(kManyFiles - 1);
  EXPECT_OK(Check(files, kManyFiles - 1));
}

// Some network file systems give an unchanged file another number when it is opened again.
TEST_F(OpenFilesTest, AnInodesNumberMayChange) {
  const Files files = OpenAll(*storage_, kManyFiles);
  Replace(0, ContentsOf(0));
  EXPECT_OK(Check(files, 0));
}

TEST_F(OpenFilesTest, HalfOfTheDescriptorsAreUsedForThoseReadLast) {
  constexpr size_t kOpen = kDescriptors / 2;
  const auto buffered = OrFail(OpenPosixStorage(folder_.path(), {.direct_io = false}));
  const Files files = OpenAll(*buffered, kOpen + 1);
  EXPECT_OK(Check(files, 1));
  EXPECT_OK(Check(files, 0));  // which closes 2
  for (size_t i = 0; i <= kOpen; ++i) Delete(i);
  for (size_t i = 0; i <= kOpen; ++i) {
    EXPECT_EQ(Check(files, i).code(), i == 2 ? absl::StatusCode::kAborted : absl::StatusCode::kOk);
  }
}

// A deleted file that stays open takes room on the disk.
TEST_F(OpenFilesTest, OneThatNobodyReadsAnyMoreIsClosed) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  Files files = OpenAll(*storage_, 3);
  EXPECT_GE(descriptors(), before + 3);
  files.clear();
  EXPECT_EQ(descriptors(), before);
}

TEST_F(OpenFilesTest, FoldersShareThem) {
  std::vector<std::unique_ptr<Storage>> folders;
  std::vector<Files> files;
  for (int i = 0; i < 4; ++i) {
    folders.push_back(OrFail(OpenPosixStorage(folder_.path())));
    files.push_back(OpenAll(*folders.back(), kDescriptors / 2));
  }
  for (size_t i = 0; i < kDescriptors / 2; ++i) {
    for (const Files& of_folder : files) EXPECT_OK(Check(of_folder, i));
  }
}

}  // namespace
}  // namespace tessera
