#include "trainer/app/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

sigset_t original_mask;  // constant once the second thread exists

void RestoreMask() { pthread_sigmask(SIG_SETMASK, &original_mask, nullptr); }

void* ReceiveSignals(void*) {
  RestoreMask();
  while (true) sleep(UINT_MAX);  // ThreadSanitizer runs no handler of a thread in pause()
}

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

// A launcher repeats these, for ranks that it may not have reached before, and a shell repeats the
// SIGHUP of a terminal that is closed.
void OnRepeatedSignal(int signal) { stop_signal = signal == SIGUSR1 ? SIGINT : SIGTERM; }

}  // namespace

sigset_t AsynchronousSignals() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE, SIGXFSZ,
                        SIGTTIN, SIGTTOU}) {
    sigdelset(&signals, own);
  }
  return signals;
}

absl::Status StartSignalThread() {
  const sigset_t signals = AsynchronousSignals();
  pthread_sigmask(SIG_BLOCK, &signals, &original_mask);
  pthread_t thread;
  if (const int error = pthread_create(&thread, nullptr, ReceiveSignals, nullptr); error != 0) {
    RestoreMask();
    return absl::UnavailableError(
        absl::StrCat("the thread that receives signals cannot be created: ", std::strerror(error),
                     "; raise the limit of processes and threads (ulimit -u)"));
  }
  pthread_detach(thread);
  pthread_atfork(nullptr, nullptr, RestoreMask);
  return absl::OkStatus();
}

void CatchStopSignals() {
  SetHandler(OnSignal, {SIGINT, SIGTERM});
  SetHandler(OnRepeatedSignal, {SIGUSR1, SIGUSR2});
  struct sigaction hang_up = {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) SetHandler(OnRepeatedSignal, {SIGHUP});
}

int StopSignal() { return stop_signal; }

}  // namespace tessera
