#include "comm/mpi/monitor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "base/threads.h"

namespace tessera {
namespace {

constexpr uint64_t kSecret = 1234;
// Far longer than a loaded machine needs.
constexpr std::chrono::seconds kPatience(60);

// Returns true once `condition` holds, or false if it does not within kPatience.
bool Eventually(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// Runs all monitors in one process. As ranks of one machine they query each other over loopback.
class MonitorTest : public testing::Test {
 protected:
  void Create(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_OK_AND_ASSIGN(auto monitor, Monitor::Create());
      addresses_.push_back(monitor->address());
      monitors_.push_back(std::move(monitor));
    }
  }
  void Start() {
    for (int rank = 0; rank < static_cast<int>(monitors_.size()); ++rank) {
      monitors_[rank]->Start(rank, addresses_, kSecret, [rank] {
        return PeerState{PeerState::kAnswers, absl::StrCat("is rank ", rank), {}};
      });
    }
  }
  PeerState Ask(int from, int about) {
    const std::array<int, 1> ranks = {about};
    return monitors_[from]->Ask(ranks)[0];
  }

  std::vector<MonitorAddress> addresses_;
  std::vector<std::unique_ptr<Monitor>> monitors_;
};

TEST_F(MonitorTest, AnswersFromItsOwnThread) {
  Create(3);
  Start();
  EXPECT_TRUE(Eventually([&] { return Ask(0, 2).text == "is rank 2"; }));
  EXPECT_TRUE(Eventually([&] { return Ask(2, 1).text == "is rank 1"; }));
}

TEST_F(MonitorTest, ARankThatHasAnsweredBeforeHasGoneWhenItsPortIsClosed) {
  Create(3);
  Start();
  ASSERT_TRUE(Eventually([&] { return Ask(0, 1).kind == PeerState::kAnswers; }));
  monitors_[1] = nullptr;
  EXPECT_TRUE(Eventually([&] { return Ask(0, 1).kind == PeerState::kGone; }));
}

// An address that leads to another machine, as a bridge of containers does, refuses everything.
TEST_F(MonitorTest, ARefusalFromAnAddressThatHasNeverAnsweredMeansNothing) {
  Create(2);
  ASSERT_OK_AND_ASSIGN(auto elsewhere, DatagramSocket::Open(/*hear_refusals=*/false));
  addresses_[1].port = elsewhere->port();
  elsewhere.reset();
  Start();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Ask(0, 1).kind, PeerState::kSilent);
}

TEST_F(MonitorTest, FindsTheAddressThatLeadsToARank) {
  Create(2);
  // Looks like another machine that has the same addresses as this one and one of its own.
  addresses_[1].machine ^= 1;
  HostAddress loopback = LoopbackAddresses()[0];
  loopback[15] = 77;
  addresses_[1].addresses[addresses_[1].address_count++] = loopback;
  Start();
  EXPECT_TRUE(Eventually([&] { return Ask(0, 1).text == "is rank 1"; }));
  monitors_[1] = nullptr;
  EXPECT_TRUE(Eventually([&] { return Ask(0, 1).kind == PeerState::kGone; }));
}

TEST_F(MonitorTest, ReachesRanksByIpv6Alone) {
  Create(2);
  addresses_[1].machine ^= 1;
  addresses_[1].address_count = 1;
  addresses_[1].addresses[0] = LoopbackAddresses()[1];
  if (std::ifstream("/proc/net/if_inet6").peek() == EOF) GTEST_SKIP() << "no IPv6 (needs: ipv6)";
  Start();
  EXPECT_TRUE(Eventually([&] { return Ask(0, 1).text == "is rank 1"; }));
  monitors_[1] = nullptr;
  EXPECT_TRUE(Eventually([&] { return Ask(0, 1).kind == PeerState::kGone; }));
}

TEST_F(MonitorTest, FailuresReachEveryRank) {
  Create(3);
  Start();
  monitors_[1]->Fail({absl::StatusCode::kDataLoss, "shard 'x' is damaged", 1, true});
  for (const auto& monitor : monitors_) {
    ASSERT_TRUE(Eventually([&] { return monitor->failed(); }));
    EXPECT_EQ(monitor->failure().message, "shard 'x' is damaged");
  }
}

// Exit status of a process that starts only a watchdog and then hangs; -1 if it does not end.
int EndOfWatchedProcess(int stderr_fd, const std::string& message) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(stderr_fd, STDERR_FILENO);
    auto monitor = Monitor::Create();
    if (!monitor.ok()) _exit(77);
    (*monitor)->Watch(absl::Milliseconds(10), message);
    while (true) pause();
  }
  int status = 0;
  if (!Eventually([&] { return waitpid(child, &status, WNOHANG) == child; })) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

TEST(MonitorWatchTest, EndsAProcessThatHangs) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  EXPECT_EQ(EndOfWatchedProcess(ends[1], "rank 0: too late"), 1);
  close(ends[1]);
  std::string text(100, ' ');
  text.resize(std::max<ssize_t>(read(ends[0], text.data(), text.size()), 0));
  EXPECT_EQ(text, "rank 0: too late\n");
  close(ends[0]);
}

TEST(MonitorWatchTest, EndsAProcessWhoseStderrNobodyReads) {
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string some(4096, '.');
  while (write(ends[1], some.data(), some.size()) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  EXPECT_EQ(EndOfWatchedProcess(ends[1], "rank 0: too late"), 1);
  close(ends[0]);
  close(ends[1]);
}

// Such a rank could neither be monitored nor monitor others.
TEST(MonitorStartTest, WithoutAThreadIsAnError) {
  LimitThreads(0);
  const absl::Status status = Monitor::Create().status();
  LimitThreads(-1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace tessera
