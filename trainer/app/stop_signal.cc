#include "trainer/app/stop_signal.h"

#include <atomic>
#include <csignal>

namespace tessera {
namespace {

// Any thread may run the handler while the main thread looks.
std::atomic<int> stop_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not wait for a lock");

void OnSignal(int signal) {
  stop_signal = signal == SIGUSR1 ? SIGINT : signal == SIGUSR2 ? SIGTERM : signal;
}

}  // namespace

void CatchStopSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  // The second signal meets the default handler. Restarting system calls keeps a save in progress
  // whole.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A launcher repeats these, for ranks that it may not have reached.
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGUSR2, &action, nullptr);
}

int StopSignal() { return stop_signal; }

}  // namespace tessera
