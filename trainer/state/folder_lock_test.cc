#include "trainer/state/folder_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string NewFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(FolderLockTest, OneHolderAtATime) {
  const std::string folder = NewFolder("one-holder");
  auto first = FolderLock::Acquire(folder);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = FolderLock::Acquire(folder).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), ::testing::HasSubstr(folder + " is in use"));
  EXPECT_TRUE(FolderLock::Acquire(NewFolder("another")).ok());
  first->reset();
  EXPECT_TRUE(FolderLock::Acquire(folder).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(FolderLockTest, EndsWithItsProcess) {
  const std::string folder = NewFolder("dead-holder");
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = FolderLock::Acquire(folder);
    _exit(lock.ok() ? 0 : 1);  // nothing is destroyed
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(FolderLock::Acquire(folder).ok());
}

TEST(FolderLockTest, AMissingFolderIsNamed) {
  const absl::Status status = FolderLock::Acquire("/no/such/folder").status();
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace tessera
