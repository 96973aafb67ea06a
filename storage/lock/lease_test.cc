#include "storage/lock/lease.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "base/threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera {
namespace {

using s3::FaultKind;
using s3::S3Server;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPeriod = absl::Milliseconds(200);
constexpr char kKey[] = "run/.lease";

class LeaseTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(const FolderLock::Options& options) {
    auto storage = OrFail(OpenS3Storage({.client = server_.ForClient(), .prefix = "run"}));
    return FolderLock::Acquire(std::move(storage), options);
  }
  absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(absl::Duration period = kPeriod) {
    return Acquire({.on_wait = [this](const std::string& note) { notes_.push_back(note); },
                    .lease_period = period});
  }
  // As a job on another machine leaves it.
  void PutForeignLease(const std::string& state, absl::Duration period = kPeriod) {
    server_.PutObject(kKey, absl::StrCat("state ", state, "\nholder far, pid 7, attempt x\n",
                                         "process other/ns/7/1\nperiod_ms ",
                                         absl::ToInt64Milliseconds(period), "\n"));
  }
  int64_t Renewals() const { return std::ranges::count(server_.requests(), "PUT run/.lease"); }
  // Readers of the lease wait until its holder has renewed it, so that a slow holder keeps it.
  void ReadAfterRenewals() {
    server_.AddFault(
        {.method = "GET", .key_part = ".lease", .times = 1'000'000, .meanwhile = [this] {
           for (const int64_t before = Renewals(); Renewals() == before;) Pause();
         }});
  }
  // Until the lease is known to be lost.
  static absl::Status Lost(FolderLock& lock) {
    while (lock.Check().ok()) Pause();
    return lock.Check();
  }
  static void Pause() { absl::SleepFor(absl::Milliseconds(1)); }

  S3Server server_;
  std::vector<std::string> notes_;
};

TEST_F(LeaseTest, OneHolderAtATime) {
  ASSERT_OK_AND_ASSIGN(auto first, Acquire());
  EXPECT_EQ(first->warning(), "");
  ReadAfterRenewals();
  const absl::Status second = Acquire().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()),
              HasSubstr(absl::StrCat("s3://bucket/run is in use: another job saves there (")));
  EXPECT_THAT(std::string(second.message()), HasSubstr(absl::StrCat(", pid ", getpid())));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("whether another job still saves to s3://bucket/run")));
  EXPECT_TRUE(absl::IsFailedPrecondition(Acquire({.wait = absl::ZeroDuration()}).status()));
  EXPECT_TRUE(first->Check().ok() && first->Confirm().ok());
  server_.ClearFaults();
  first.reset();
  EXPECT_THAT(server_.contents(kKey), HasSubstr("state free"));
  EXPECT_OK(Acquire(absl::Hours(1))) << "what is free is taken at once";
}

// No two clocks are compared: the watcher sees nothing but that the object does not change.
TEST_F(LeaseTest, AHolderThatIsSilentForItsPeriodIsTakenOverAndNothingIsDeleted) {
  PutForeignLease("held");
  server_.PutObject("run/step-00000004/manifest.pb", "theirs");
  const absl::Time start = absl::Now();
  ASSERT_OK_AND_ASSIGN(const auto lock, Acquire(absl::Milliseconds(100)));
  EXPECT_GE(absl::Now() - start, kPeriod) << "the holder's, not the watcher's";
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("(far, pid 7, attempt x)")));
  EXPECT_THAT(server_.keys(), ElementsAre(kKey, "run/step-00000004/manifest.pb"));
}

// It may have been on its way when its sender died.
TEST_F(LeaseTest, OneRenewalIsNoSignOfLife) {
  PutForeignLease("held");
  EXPECT_OK(
      Acquire({.on_wait = [this](const std::string&) { PutForeignLease("held", kPeriod / 2); },
               .lease_period = absl::Milliseconds(100)}));
}

TEST_F(LeaseTest, AHolderLearnsThatItsLeaseIsTakenAndLeavesItAlone) {
  ASSERT_OK_AND_ASSIGN(auto lock, Acquire());
  PutForeignLease("held");
  const absl::Status lost = Lost(*lock);
  EXPECT_TRUE(absl::IsFailedPrecondition(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()),
              HasSubstr("another job has taken over s3://bucket/run (far, pid 7, attempt x)"));
  EXPECT_FALSE(lock->Confirm().ok());
  lock.reset();
  EXPECT_THAT(server_.contents(kKey), HasSubstr("far, pid 7"));
}

// Runs `body` in a forked process, which exits with its result. Returns its wait status.
int RunForked(const std::function<bool()>& body) {
  absl::SleepFor(absl::Milliseconds(100));  // until the thread that renews a lease waits
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// What a process that stood still finds out in the middle of its commit.
TEST_F(LeaseTest, AForkedProcessKnowsThatItDoesNotHaveTheLease) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<FolderLock> lock, Acquire());
  const auto has_none = [&] {
    const bool is_told =
        absl::IsFailedPrecondition(lock->Check()) && absl::IsFailedPrecondition(lock->Confirm());
    lock.reset();
    return is_told;
  };
  EXPECT_EQ(RunForked(has_none), 0);
  EXPECT_OK(lock->Confirm());
}

// They have the stacks and the ids of threads that exist in its parent alone.
TEST_F(LeaseTest, AForkedProcessThatReleasesItsCopyKeepsItsOwnThreads) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<FolderLock> lock, Acquire());
  const auto keeps_threads = [&] {
    std::vector<std::thread> threads(16);
    for (std::thread& thread : threads) thread = std::thread([] {});
    lock.reset();
    for (std::thread& thread : threads) thread.join();
    return true;
  };
  EXPECT_EQ(RunForked(keeps_threads), 0);
}

TEST_F(LeaseTest, BeforeACommitAnOldLeaseIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(auto lock, Acquire());
  server_.AddFault(
      {.kind = FaultKind::kRefuse, .status = 503, .key_part = ".lease", .times = 1'000'000});
  absl::SleepFor(kPeriod * 1.5);
  EXPECT_OK(lock->Check()) << "a store that does not answer has not said no";
  PutForeignLease("held");
  server_.ClearFaults();
  EXPECT_TRUE(absl::IsFailedPrecondition(lock->Confirm()));
}

TEST_F(LeaseTest, LostAnswersAndFailuresThatPassLoseNoLease) {
  ASSERT_OK_AND_ASSIGN(auto lock, Acquire(absl::Milliseconds(100)));
  for (const FaultKind kind : {FaultKind::kLoseAnswer, FaultKind::kDrop, FaultKind::kRefuse}) {
    server_.AddFault({.kind = kind, .key_part = ".lease", .period = 3, .times = 4});
  }
  while (server_.fault_count() < 12) Pause();
  EXPECT_OK(lock->Confirm());
}

// A dead process of this machine is recognised without waiting for the period.
TEST_F(LeaseTest, AProcessOfThisMachineThatIsGoneIsKnownToBeDead) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const std::string identity = ProcessIdentity(child);
  ASSERT_NE(identity, "") << "no /proc?";
  PutForeignLease("held", absl::Hours(1));
  const std::string foreign = server_.contents(kKey);
  server_.PutObject(kKey, absl::StrReplaceAll(foreign, {{"other/ns/7/1", identity}}));
  EXPECT_TRUE(absl::IsFailedPrecondition(Acquire({.wait = absl::ZeroDuration()}).status()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_OK(Acquire({.wait = absl::ZeroDuration()}));
}

// As where /proc is mounted with hidepid.
TEST_F(LeaseTest, AProcessThatProcDoesNotShowIsAliveUnlessTheSystemKnowsNone) {
  const TestFolder empty;
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const std::string identity = ProcessIdentity(child);
  EXPECT_FALSE(IsKnownToBeDead(identity, "/proc"));
  EXPECT_FALSE(IsKnownToBeDead(identity, empty.path()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(IsKnownToBeDead(identity, "/proc"));
  EXPECT_TRUE(IsKnownToBeDead(identity, empty.path()));
  EXPECT_FALSE(IsKnownToBeDead(identity + "/1", empty.path()));
  EXPECT_FALSE(
      IsKnownToBeDead(absl::StrReplaceAll(identity, {{absl::StrCat(child), "-1"}}), empty.path()));
}

TEST_F(LeaseTest, ARefusalThatPassesIsNoReasonToDoWithoutALease) {
  for (const int answered : {0, 1, 2}) {  // requests before it
    server_.AddFault({.status = 403,
                      .code = "AccessDenied",
                      .key_part = ".lease",
                      .skip = answered,
                      .times = 2});
    ASSERT_OK_AND_ASSIGN(const auto lock, Acquire());
    EXPECT_EQ(lock->warning(), "") << answered;
    server_.ClearFaults();
  }
  server_.AddFault({.status = 403, .code = "AccessDenied", .key_part = ".lease", .times = 3});
  ASSERT_OK_AND_ASSIGN(const auto lock, Acquire());
  EXPECT_THAT(lock->warning(), HasSubstr("only one run at a time"));
}

TEST_F(LeaseTest, ALeaseThatNoThreadCanRenewIsAnErrorAndIsFreed) {
  LimitThreads(0);
  const absl::Status refused = Acquire().status();
  LimitThreads(-1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(server_.contents(kKey), HasSubstr("state free"));
  EXPECT_OK(Acquire({.wait = absl::ZeroDuration()}));
}

TEST_F(LeaseTest, AnyContentsAreALeaseOfSomebody) {
  for (const std::string& contents : {std::string(), std::string("\n\n state\0", 9),
                                      std::string(100'000, 'x'), std::string("period_ms -1\n")}) {
    server_.PutObject(kKey, contents);
    EXPECT_OK(Acquire(absl::Milliseconds(100)));
  }
}

TEST(LeaseWarningTest, AStoreWithoutConditionsIsWarnedOf) {
  struct {
    s3::S3ServerOptions options;
    const char* cause;
  } cases[] = {{{.ignores_matches = true}, "replaces objects although If-Match forbids it"},
               {{.vendor = s3::Vendor::kVolcano}, "replaces objects although If-Match forbids it"},
               {{.vendor = s3::Vendor::kAliyun}, "it has no condition under which it replaces"}};
  for (const auto& [options, cause] : cases) {
    S3Server server(options);
    auto storage = OpenS3Storage({.client = server.ForClient(), .prefix = "run"});
    ASSERT_OK_AND_ASSIGN(const auto lock, FolderLock::Acquire(*std::move(storage), {}));
    EXPECT_THAT(lock->warning(), HasSubstr("the store cannot lock s3://bucket/run ("));
    EXPECT_THAT(lock->warning(), HasSubstr(cause));
    EXPECT_THAT(lock->warning(), HasSubstr("only one run at a time"));
    EXPECT_TRUE(lock->Check().ok() && lock->Confirm().ok());
    EXPECT_TRUE(server.keys().empty()) << "the next run does not wait";
  }
}

TEST(LeaseWarningTest, GenerationsAreConditionsToo) {
  const S3Server server({.vendor = s3::Vendor::kGoogle});
  const auto acquire = [&] {
    auto storage = OpenS3Storage({.client = server.ForClient(), .prefix = "run"});
    return FolderLock::Acquire(*std::move(storage), {.wait = absl::ZeroDuration()});
  };
  ASSERT_OK_AND_ASSIGN(const auto first, acquire());
  EXPECT_EQ(first->warning(), "");
  EXPECT_TRUE(absl::IsFailedPrecondition(acquire().status()));
  EXPECT_OK(first->Confirm());
}

}  // namespace
}  // namespace tessera
