#include "trainer/app/stop_signal.h"

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace tessera {
namespace {

// The handler runs on one thread while the main thread reads it.
std::atomic<int> stop_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not wait for a lock");

void SetHandler(void (*handler)(int), std::initializer_list<int> signals) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // Restarting system calls lets a save in progress complete.
  action.sa_flags = SA_RESTART;
  for (const int signal : signals) sigaddset(&action.sa_mask, signal);
  for (const int signal : signals) sigaction(signal, &action, nullptr);
}

// The second signal, whichever of the two it is, has the default action.
void OnSignal(int signal) {
  stop_signal = signal;
  SetHandler(SIG_DFL, {SIGINT, SIGTERM});
}

// A launcher repeats these, for ranks that it may not have reached before.
void OnForwardedSignal(int signal) { stop_signal = signal == SIGUSR1 ? SIGINT : SIGTERM; }

}  // namespace

void CatchStopSignals() {
  SetHandler(OnSignal, {SIGINT, SIGTERM});
  SetHandler(OnForwardedSignal, {SIGUSR1, SIGUSR2});
}

int StopSignal() { return stop_signal; }

}  // namespace tessera
