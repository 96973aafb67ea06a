#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/app/signals.h"

namespace tessera {
namespace {

// fork(); a child ends with the test, even if it has lost the signal that it waits for.
pid_t ForkChild() {
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

// The exit code of a child process that runs `work`; 128 + the signal that ends it.
int InAChild(const std::function<int()>& work) {
  const pid_t child = ForkChild();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::set<int> BlockedHere() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  std::set<int> blocked;
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    if (sigismember(&mask, signal) == 1) blocked.insert(signal);
  }
  return blocked;
}

// Waits for the signal that ends the process, however slow the machine is.
[[noreturn]] void WaitForTheEnd() {
  while (true) pause();
}

TEST(SignalThreadTest, WhatAThreadDoesItselfIsNotBlocked) {
  const auto blocked = [] {
    if (!StartSignalThread().ok()) return 1;
    std::set<int> expected;
    for (int signal = 1; signal <= SIGRTMAX; ++signal) {
      if (signal != SIGKILL && signal != SIGSTOP) expected.insert(signal);
    }
    // Reserved by the C library, between the two ranges.
    for (int signal = 32; signal < SIGRTMIN; ++signal) expected.erase(signal);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE,
                          SIGXFSZ, SIGTTIN, SIGTTOU}) {
      expected.erase(own);
    }
    std::set<int> in_thread;
    std::thread([&in_thread] { in_thread = BlockedHere(); }).join();
    return BlockedHere() == expected && in_thread == expected ? 0 : 2;
  };
  EXPECT_EQ(InAChild(blocked), 0);
  for (const int signal : {SIGSEGV, SIGABRT, SIGPIPE}) {
    const auto raise_it = [signal] {
      if (!StartSignalThread().ok()) return 1;
      std::signal(signal, SIG_DFL);  // a sanitizer has its own
      raise(signal);
      return 2;
    };
    EXPECT_EQ(InAChild(raise_it), 128 + signal);
  }
}

TEST(SignalThreadTest, DefaultActionsAreThoseOfTheProcess) {
  for (const int signal : {SIGTERM, SIGHUP, SIGALRM, SIGPROF}) {
    const auto end = [signal] {
      if (!StartSignalThread().ok()) return 1;
      kill(getpid(), signal);
      WaitForTheEnd();
    };
    EXPECT_EQ(InAChild(end), 128 + signal);
  }
  // Ctrl-Z and fg, which a group of processes without a shell does not obey.
  const pid_t child = ForkChild();
  if (child == 0) {
    setpgid(0, 0);
    if (!StartSignalThread().ok()) _exit(1);
    kill(getpid(), SIGTSTP);
    WaitForTheEnd();
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, WCONTINUED), child);
  EXPECT_TRUE(WIFCONTINUED(status));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

TEST(SignalThreadTest, ChildrenAreForkedWithTheOriginalMask) {
  const auto fork_again = [] {
    sigset_t hang_up;
    sigemptyset(&hang_up);
    sigaddset(&hang_up, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &hang_up, nullptr);
    const std::set<int> original = BlockedHere();
    if (!StartSignalThread().ok()) return 1;
    if (BlockedHere() == original) return 2;
    return InAChild([&original] { return BlockedHere() == original ? 0 : 3; });
  };
  EXPECT_EQ(InAChild(fork_again), 0);
}

struct StopCase {
  int first, meant;
  int second;  // 0: the first one repeated, which does not count
};

int Stop(const StopCase& signals) {
  if (!StartSignalThread().ok()) return 1;
  CatchStopSignals();
  kill(getpid(), signals.first);
  while (StopSignal() != signals.meant) std::this_thread::yield();
  if (signals.second != 0) {
    kill(getpid(), signals.second);
    WaitForTheEnd();
  }
  kill(getpid(), signals.first);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return StopSignal() == signals.meant ? 0 : 2;
}

TEST(StopSignalTest, TheFirstAsksAndTheSecondEnds) {
  for (const StopCase& signals : std::vector<StopCase>{{SIGINT, SIGINT, SIGINT},
                                                       {SIGINT, SIGINT, SIGTERM},
                                                       {SIGTERM, SIGTERM, SIGINT},
                                                       {SIGUSR1, SIGINT, 0},
                                                       {SIGUSR2, SIGTERM, 0},
                                                       {SIGHUP, SIGTERM, 0}}) {
    EXPECT_EQ(InAChild([&signals] { return Stop(signals); }),
              signals.second == 0 ? 0 : 128 + signals.second);
  }
  // As after nohup.
  EXPECT_EQ(InAChild([] {
              std::signal(SIGHUP, SIG_IGN);
              if (!StartSignalThread().ok()) return 1;
              CatchStopSignals();
              kill(getpid(), SIGHUP);
              std::this_thread::sleep_for(std::chrono::milliseconds(50));
              return StopSignal();
            }),
            0);
}

}  // namespace
}  // namespace tessera
