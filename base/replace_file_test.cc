#include "base/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "base/file_calls.h"
#include "base/files.h"
#include "base/testing.h"
#include "base/text.h"
#include "gtest/gtest.h"
#include "tests/worlds/power/power_loss.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string Contents(const std::string& path) { return ReadWholeFile(path).value_or(""); }

class ReplaceFileTest : public testing::Test {
 protected:
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  const TestFolder own_;
  const std::string folder_ = own_.path(), path_ = folder_ + "/file";
};

using NameSet = std::set<std::string>;

TEST_F(ReplaceFileTest, AppearsOnCommitOnlyAndLeavesNothingOtherwise) {
  std::ofstream(path_) << "old";
  {
    ASSERT_OK_AND_ASSIGN(auto file, FileReplacement::Create(path_));
    ASSERT_OK(file->Append(AsBytes("new")));
    EXPECT_EQ(Contents(path_), "old");
    EXPECT_EQ(Names().size(), 2);
  }
  EXPECT_EQ(Names(), NameSet({"file"}));

  ASSERT_OK_AND_ASSIGN(auto file, FileReplacement::Create(path_));
  ASSERT_OK(file->Append(AsBytes("new ")));
  ASSERT_OK(file->WriteAt(0, AsBytes("N")));
  ASSERT_OK(file->Append(AsBytes("contents")));
  ASSERT_OK(file->Commit());
  EXPECT_EQ(Contents(path_), "New contents");
  EXPECT_EQ(Names(), NameSet({"file"}));
}

TEST_F(ReplaceFileTest, NamesOfAnyKindAndTheUsersMask) {
  const mode_t mask = umask(027);
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const std::string longest(255, 'n');
  for (const std::string& path : {std::string("relative"), folder_ + "/" + longest,
                                  std::string("./here"), folder_ + "//twice"}) {
    EXPECT_EQ(ReplaceFile(path, path), absl::OkStatus());
    EXPECT_EQ(Contents(path), path);
  }
  fs::current_path(before);
  umask(mask);
  EXPECT_EQ(Names(), NameSet({"relative", longest, "here", "twice"}));
  EXPECT_EQ(static_cast<int>(fs::status(folder_ + "/here").permissions()), 0640);
}

TEST_F(ReplaceFileTest, ALinkIsReplacedItself) {
  std::ofstream(folder_ + "/target") << "precious";
  fs::create_symlink("target", path_);
  ASSERT_OK(ReplaceFile(path_, "new"));
  EXPECT_EQ(Contents(path_), "new");
  EXPECT_EQ(Contents(folder_ + "/target"), "precious");
}

TEST_F(ReplaceFileTest, ErrorsNameThePathAndTheReason) {
  std::ofstream(path_) << "old";
  const auto expect = [](const std::string& path, absl::StatusCode code, const char* reason) {
    const absl::Status status = ReplaceFile(path, "new");
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(path), std::string::npos) << status;
    EXPECT_NE(std::string(status.message()).find(reason), std::string::npos) << status;
  };
  expect(folder_ + "/none/file", absl::StatusCode::kNotFound, "No such file or directory");
  expect(path_ + "/file", absl::StatusCode::kNotFound, "Not a directory");
  expect(folder_ + "/", absl::StatusCode::kInvalidArgument, "Is a directory");
  fs::create_directory(folder_ + "/full");
  fs::create_directory(folder_ + "/full/inner");
  expect(folder_ + "/full", absl::StatusCode::kInvalidArgument, "Is a directory");
  EXPECT_EQ(Names(), NameSet({"file", "full"}));
}

TEST_F(ReplaceFileTest, TwoAtOnceDoNotMeet) {
  auto first = FileReplacement::Create(path_), second = FileReplacement::Create(path_);
  ASSERT_OK(first);
  ASSERT_OK(second);
  ASSERT_OK((*first)->Append(AsBytes("first")));
  ASSERT_OK((*second)->Append(AsBytes("second")));
  ASSERT_OK((*first)->Commit());
  EXPECT_EQ(Contents(path_), "first");
  EXPECT_EQ(Names().size(), 2);
  ASSERT_OK((*second)->Commit());
  EXPECT_EQ(Contents(path_), "second");
  EXPECT_EQ(Names(), NameSet({"file"}));
}

// Writers of one file, on threads or on different machines, never share a temporary file.
TEST_F(ReplaceFileTest, WritersOfOneFileDoNotMeet) {
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (char letter : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([&, letter] {
      for (int i = 0; i < 50; ++i) {
        failures += !ReplaceFile(path_, std::string(10'000, letter)).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  const std::string found = Contents(path_);
  ASSERT_EQ(found.size(), 10'000);
  EXPECT_EQ(found, std::string(10'000, found[0]));
  EXPECT_EQ(Names(), NameSet({"file"}));
}

// Makes the n-th call fail.
class FailingCalls final : public FileCallInterceptor {
 public:
  FailingCalls(int number, int error) : left_(number), error_(error) {
    SetFileCallInterceptor(this);
  }
  ~FailingCalls() override { SetFileCallInterceptor(nullptr); }
  int Sync(int, absl::FunctionRef<int()> call) override { return Call(call); }
  int Rename(absl::FunctionRef<int()> call) override { return Call(call); }

 private:
  int Call(absl::FunctionRef<int()> call) { return left_-- == 0 ? error_ : call(); }
  int left_;
  const int error_;
};

TEST_F(ReplaceFileTest, AFailureLeavesNoTemporaryFile) {
  for (int call = 0; call < 3; ++call) {
    std::ofstream(path_) << "old";
    const FailingCalls failing(call, EDQUOT);
    const absl::Status status = ReplaceFile(path_, "new");
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(std::string(status.message()).find(path_), std::string::npos) << status;
    // The last call is the directory's sync: the file has been replaced, but not durably.
    EXPECT_EQ(Contents(path_), call == 2 ? "new" : "old");
    EXPECT_EQ(Names(), NameSet({"file"}));
  }
}

TEST_F(ReplaceFileTest, ALossOfPowerLeavesTheOldFileOrTheNewAndEachSyncIsNeeded) {
  for (const bool there : {false, true}) {
    PowerLossScenario scenario;
    if (there) {
      scenario.prepare = [](const std::string& root) { std::ofstream(root + "/file") << "old"; };
    }
    scenario.run = [](const std::string& root) { return ReplaceFile(root + "/file", "new"); };
    scenario.check = [there](const FileImage& image, bool finished) -> std::string {
      const auto at = image.find("file");
      if (at == image.end()) return there || finished ? "the file is gone" : "";
      const bool is_good = at->second == "new" || (at->second == "old" && !finished);
      return is_good ? "" : "the file holds \"" + at->second + "\"";
    };
    std::vector<std::string> syncs;
    EXPECT_EQ(CheckEverySync(scenario, folder_ + "/root", &syncs), "");
    EXPECT_EQ(syncs, std::vector<std::string>({"", "file.tmp"}));
  }
}

}  // namespace
}  // namespace tessera
