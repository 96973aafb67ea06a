#include "base/file_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/errno_status.h"
#include "base/no_space.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

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
  for (const auto& [error, code] : expected) EXPECT_EQ(ErrnoStatus(error).code(), code) << error;
  EXPECT_EQ(Named("WriteAt", "/a/b", ErrnoStatus(ENOSPC)).message(),
            "WriteAt /a/b: No space left on device");
}

TEST(ErrnoStatusTest, LackOfSpaceIsToldFromLackOfMemory) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    const absl::Status status = Named("WriteAt", "/a/b", ErrnoStatus(error));
    EXPECT_TRUE(IsNoSpace(status)) << error;
    EXPECT_EQ(MayBeFreed(status), error != EFBIG) << error;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(ErrnoStatus(ENOMEM)));
  EXPECT_FALSE(IsNoSpace(ErrnoStatus(ENOMEM)));
  EXPECT_FALSE(IsNoSpace(ErrnoStatus(EIO)));
  EXPECT_FALSE(IsNoSpace(absl::OkStatus()));
}

// A file system without some ways to rename, of which RenameNameIfFree() tries first renameat2(),
// then link(), then rename().
class Without : public FileCallInterceptor {
 public:
  explicit Without(int ways) : ways_(ways) { SetFileCallInterceptor(this); }
  ~Without() override { SetFileCallInterceptor(nullptr); }
  int Sync(int, absl::FunctionRef<int()> call) override { return call(); }
  int Rename(absl::FunctionRef<int()> call) override {
    if (calls_++ >= ways_) return call();
    return calls_ == 1 ? ENOSYS : EOPNOTSUPP;
  }

 private:
  const int ways_;
  int calls_ = 0;
};

class RenameNameIfFreeTest : public testing::TestWithParam<int> {
 protected:
  RenameNameIfFreeTest() {
    fs::create_directories(root_);
    directory_ = open(root_.c_str(), O_RDONLY | O_DIRECTORY);
  }
  ~RenameNameIfFreeTest() override {
    close(directory_);
    fs::remove_all(root_);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
  }
  std::string Read(const std::string& name) {
    std::string text;
    std::ifstream(root_ / name) >> text;
    return text;
  }
  absl::StatusCode Move(const std::string& from, const std::string& to) {
    const Without without(GetParam());
    return RenameNameIfFree(directory_, from.c_str(), directory_, to.c_str()).code();
  }

  const fs::path root_ = fs::path(testing::TempDir()) / "file_calls_test";
  int directory_ = -1;
};

TEST_P(RenameNameIfFreeTest, MovesAFileToAFreeName) {
  Write("from", "x");
  EXPECT_EQ(Move("from", "to"), absl::StatusCode::kOk);
  EXPECT_EQ(Read("to"), "x");
  EXPECT_FALSE(fs::exists(root_ / "from"));
}

TEST_P(RenameNameIfFreeTest, ReplacesNeitherFilesNorDirectories) {
  Write("from", "x");
  Write("file", "y");
  fs::create_directory(root_ / "empty");
  fs::create_directory(root_ / "directory");
  EXPECT_EQ(Move("from", "file"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Move("from", "empty"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Move("directory", "empty"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read("from"), "x");
  EXPECT_EQ(Read("file"), "y");
}

TEST_P(RenameNameIfFreeTest, MovesADirectory) {
  fs::create_directory(root_ / "from");
  Write("from/file", "x");
  EXPECT_EQ(Move("from", "to"), absl::StatusCode::kOk);
  EXPECT_EQ(Read("to/file"), "x");
}

TEST_P(RenameNameIfFreeTest, ReportsAMissingName) {
  EXPECT_EQ(Move("no-such", "to"), absl::StatusCode::kNotFound);
}

// A network file system repeats a request whose reply was lost, and reports what that finds.
class LosingReplies : public FileCallInterceptor {
 public:
  LosingReplies(int ways, int error) : ways_(ways), error_(error) { SetFileCallInterceptor(this); }
  ~LosingReplies() override { SetFileCallInterceptor(nullptr); }
  int Sync(int, absl::FunctionRef<int()> call) override { return call(); }
  int Rename(absl::FunctionRef<int()> call) override {
    if (calls_++ < ways_) return calls_ == 1 ? ENOSYS : EOPNOTSUPP;
    const int result = call();
    return result == 0 ? error_ : result;
  }

 private:
  const int ways_, error_;
  int calls_ = 0;
};

TEST_P(RenameNameIfFreeTest, ARenameWhoseReplyWasLostHasSucceeded) {
  for (const int error : {EEXIST, ENOENT}) {
    SCOPED_TRACE(error);
    Write("from", "x");
    Write("other", "y");
    const LosingReplies losing(GetParam(), error);
    const auto move = [&](const char* from, const char* to) {
      return RenameNameIfFree(directory_, from, directory_, to).code();
    };
    EXPECT_EQ(move("from", "to"), absl::StatusCode::kOk);
    EXPECT_EQ(Read("to"), "x");
    EXPECT_FALSE(fs::exists(root_ / "from"));
    EXPECT_EQ(move("to", "other"), absl::StatusCode::kAlreadyExists) << "another file";
    EXPECT_EQ(Read("to"), "x");
    EXPECT_EQ(move("none", "to"), absl::StatusCode::kNotFound);
    fs::remove(root_ / "to");
    fs::create_directory(root_ / "folder");
    EXPECT_EQ(move("folder", "moved"), absl::StatusCode::kOk);
    EXPECT_TRUE(fs::exists(root_ / "moved"));
    fs::remove(root_ / "moved");
  }
}

TEST_P(RenameNameIfFreeTest, NeverDeletesTheOnlyNameOfAFile) {
  Write("file", "x");
  fs::create_hard_link(root_ / "file", root_ / "other");
  fs::create_directory_symlink(root_, root_ / "here");
  EXPECT_EQ(Move("file", "file"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Move("here/file", "file"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Move("file", "other"), absl::StatusCode::kAlreadyExists) << "its name from before";
  EXPECT_EQ(Read("file"), "x");
  EXPECT_EQ(Read("other"), "x");
}

INSTANTIATE_TEST_SUITE_P(Ways, RenameNameIfFreeTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace tessera
