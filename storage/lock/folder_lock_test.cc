#include "storage/lock/folder_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "base/wall_clock_jump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/lock/locked_fd.h"
#include "storage/posix_storage.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder,
                                                 const FolderLock::Options& options = {}) {
  TESSERA_ASSIGN_OR_RETURN(auto storage, OpenPosixStorage(folder));
  return FolderLock::Acquire(std::move(storage), options);
}

std::string NewFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(FolderLockTest, OneHolderAtATime) {
  const std::string folder = NewFolder("one-holder");
  ASSERT_OK_AND_ASSIGN(auto first, Lock(folder));
  EXPECT_EQ(first->warning(), "");
  const absl::Status second = Lock(folder, {.wait = absl::ZeroDuration()}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(folder + " is in use"));
  EXPECT_OK(Lock(NewFolder("another")));
  first.reset();
  EXPECT_OK(Lock(folder));
}

TEST(FolderLockTest, WaitsForAHolderThatEnds) {
  const std::string folder = NewFolder("orphan");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = Lock(folder);
    const char byte = lock.ok() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  std::vector<std::string> said;
  // The holder is killed only once the wait has begun.
  const auto lock =
      Lock(folder, {.wait = absl::Seconds(60), .on_wait = [&](const std::string& sentence) {
                      said.push_back(sentence);
                      kill(child, SIGKILL);
                      waitpid(child, nullptr, 0);
                    }});
  EXPECT_OK(lock);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("waiting up to 1m for another process that saves to " + folder));
  close(ready[0]);
  close(ready[1]);
}

TEST(FolderLockTest, TheWaitIsBounded) {
  const std::string folder = NewFolder("held");
  ASSERT_OK_AND_ASSIGN(const auto first, Lock(folder));
  const absl::Time start = absl::Now();
  EXPECT_FALSE(Lock(folder, {.wait = absl::Milliseconds(120)}).ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(120));
}

TEST(FolderLockTest, AClockThatIsSetDoesNotEndTheWait) {
  const std::string folder = NewFolder("clock");
  ASSERT_OK_AND_ASSIGN(auto holder, Lock(folder));
  std::thread ends;
  const auto lock = Lock(folder, {.wait = absl::Seconds(60), .on_wait = [&](const std::string&) {
                                    wall_clock_jump_s = 3600;
                                    ends = std::thread([&] {
                                      absl::SleepFor(kWallClockIsReadAgainAfter);
                                      holder.reset();
                                    });
                                  }});
  ends.join();
  wall_clock_jump_s = 0;
  EXPECT_OK(lock);
}

TEST(FolderLockTest, AMissingFolderIsNamed) {
  const absl::Status status = Lock("/no/such/folder").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder"));
}

TEST(FolderLockTest, ADeletedLockFileFreesNothingAndIsCreatedAgain) {
  const TestFolder folder;
  const std::string file = folder.File(FolderLock::kFileName);
  ASSERT_OK_AND_ASSIGN(const auto holder, Lock(folder.path()));
  const std::vector<std::function<void()>> losses = {[&] { std::filesystem::remove(file); },
                                                     [&] {
                                                       std::filesystem::remove(file);
                                                       folder.Write(FolderLock::kFileName, "");
                                                     }};
  for (const auto& lose : losses) {
    lose();
    const absl::Status second = Lock(folder.path(), {.wait = absl::ZeroDuration()}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
    EXPECT_OK(holder->Confirm());
    EXPECT_TRUE(std::filesystem::exists(file));
  }
}

// On a file system that does not lock folders, or by a program that does not.
TEST(FolderLockTest, ALockFileThatSomebodyElseHasIsNoticed) {
  const TestFolder folder;
  const std::string file = folder.File(FolderLock::kFileName);
  ASSERT_OK_AND_ASSIGN(const auto holder, Lock(folder.path()));
  std::filesystem::remove(file);
  const int other = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_OK(holder->Check()) << "it has asked the file system";
  for (const absl::Status& status : {holder->Confirm(), holder->Check()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(file + " was deleted or replaced, and " + folder.path() + " is in use"));
  }
  close(other);
  EXPECT_OK(holder->Confirm());
  EXPECT_OK(holder->Check());
}

TEST(FolderLockTest, AFileThatIsDeletedWhileItIsWaitedForIsNotTheFoldersLock) {
  const TestFolder folder;
  const std::string file = folder.File(FolderLock::kFileName);
  const auto lock_file = [&] {
    const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    EXPECT_EQ(flock(fd, LOCK_EX), 0);
    return fd;
  };
  const int first = lock_file();
  int second = -1;
  const absl::Status status = Lock(folder.path(), {.wait = absl::Milliseconds(300),
                                                   .on_wait =
                                                       [&](const std::string&) {
                                                         std::filesystem::remove(file);
                                                         second = lock_file();
                                                         close(first);
                                                       }})
                                  .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  close(second);
  EXPECT_OK(Lock(folder.path()));
}

TEST(FolderLockTest, APipeInPlaceOfTheLockFileIsNamed) {
  const TestFolder folder;
  ASSERT_EQ(mkfifo(folder.File(FolderLock::kFileName).c_str(), 0600), 0);
  EXPECT_THAT(std::string(Lock(folder.path()).status().message()),
              HasSubstr("/.lock: not a regular file"));
}

// The lock file keeps the name of a process that was killed until the next holder writes its own.
TEST(FolderLockTest, ADeadProcessIsNotNamedAsTheHolder) {
  const TestFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = Lock(folder.path());
    if (write(ready[1], "y", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto refused = [&] {
    return std::string(Lock(folder.path(), {.wait = absl::ZeroDuration()}).status().message());
  };
  const std::string name = absl::StrCat(", pid ", child, ")");
  EXPECT_THAT(refused(), HasSubstr(name));
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  const int next = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(next, LOCK_EX), 0);
  EXPECT_THAT(refused(), AllOf(HasSubstr("is in use"), Not(HasSubstr(name))));
  close(next);
}

// While a machine was suspended, its steady clocks stood still, and another job took the lease.
TEST(FolderLockTest, BeforeACommitALeaseIsAskedForThatIsOldByTheTimeSinceBoot) {
  s3::S3Server server;
  auto storage = OrFail(OpenS3Storage({.client = server.ForClient(), .prefix = "run"}));
  ASSERT_OK_AND_ASSIGN(const auto lock,
                       FolderLock::Acquire(std::move(storage), {.lease_period = absl::Hours(1)}));
  server.PutObject("run/.lease", "state held\nholder another\n");
  EXPECT_OK(lock->Confirm());
  suspended_s = 2 * 3600;
  EXPECT_TRUE(absl::IsFailedPrecondition(lock->Confirm()));
  suspended_s = 0;
}

// A worker of the job, as a loader of data is, lives on when the job is killed.
TEST(FolderLockTest, AForkedProcessDoesNotKeepTheLock) {
  const std::string folder = NewFolder("forked");
  const auto lock = [&] { return Lock(folder, {.wait = absl::ZeroDuration()}).status(); };
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t job = fork();
  if (job == 0) {
    const auto held = Lock(folder);
    const pid_t worker = fork() == 0 ? getpid() : 0;
    if (worker == 0 || write(ready[1], &worker, sizeof(worker)) == sizeof(worker)) pause();
    _exit(1);
  }
  pid_t worker = 0;
  ASSERT_EQ(read(ready[0], &worker, sizeof(worker)), sizeof(worker));
  EXPECT_THAT(std::string(lock().message()), HasSubstr(absl::StrCat(", pid ", job, ")")));
  kill(job, SIGKILL);
  waitpid(job, nullptr, 0);
  EXPECT_OK(lock());
  kill(worker, SIGKILL);
}

// Returns what the code of a forked process returns.
bool InChild(const std::function<bool()>& code) {
  const pid_t child = fork();
  if (child == 0) _exit(code() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A program may open its manager, and then continue as a daemon.
TEST(FolderLockTest, AForkedProcessKnowsThatItDoesNotHaveTheLock) {
  const TestFolder folder;
  ASSERT_OK_AND_ASSIGN(const auto lock, Lock(folder.path()));
  for (const auto& check : std::vector<std::function<absl::Status()>>{
           [&] { return lock->Check(); }, [&] { return lock->Confirm(); }}) {
    EXPECT_OK(check());
    EXPECT_TRUE(InChild([&] { return absl::IsFailedPrecondition(check()); }));
  }
}

ScopedFd OpenFolder(const std::string& folder) {
  return ScopedFd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

TEST(LockedFdTest, AForkDuringTheOpeningKeepsNoLock) {
  const TestFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = -1;
  std::thread forks;
  LockedFd fd([&] {
    ScopedFd opened = OpenFolder(folder.path());
    if (forks.joinable()) return opened;
    forks = std::thread([&] {
      child = fork();
      if (child == 0) {
        const char byte = 'y';
        if (write(ready[1], &byte, 1) == 1) pause();
        _exit(1);
      }
    });
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    return opened;
  });
  forks.join();
  ASSERT_EQ(flock(fd.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_TRUE(InChild([&] { return fcntl(fd.get(), F_GETFD) < 0; }));
  { const LockedFd closed = std::move(fd); }
  EXPECT_EQ(flock(OpenFolder(folder.path()).get(), LOCK_EX | LOCK_NB), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// As a loader of data that starts its workers while a file server does not answer.
TEST(LockedFdTest, AForkDoesNotWaitForAnOpeningThatTakesLong) {
  const TestFolder folder;
  absl::Notification begun, forked;
  int openings = 0;
  std::thread opener([&] {
    const LockedFd fd([&] {
      ++openings;
      ScopedFd opened = OpenFolder(folder.path());
      if (openings == 1) {
        begun.Notify();
        forked.WaitForNotification();
      }
      return opened;
    });
    EXPECT_TRUE(fd.valid());
  });
  begun.WaitForNotification();
  EXPECT_TRUE(InChild([] { return true; }));
  forked.Notify();
  opener.join();
  EXPECT_EQ(openings, 2) << "the child has a copy of the first descriptor";
}

// The number of the parent's descriptor may be that of another file in the child.
TEST(LockedFdTest, InAForkedProcessAnAssignmentClosesOnlyItsOwn) {
  const TestFolder folder;
  const auto open_it = [&] { return OpenFolder(folder.path()); };
  LockedFd fd(open_it);
  EXPECT_TRUE(InChild([&] {
    const int number = fd.get();
    if (fd.valid() || dup2(STDERR_FILENO, number) != number) return false;
    {
      LockedFd own(open_it);
      fd = std::move(own);
    }
    return fd.valid() && fcntl(number, F_GETFD) >= 0;
  }));
  EXPECT_TRUE(fd.valid());
}

}  // namespace
}  // namespace tessera
