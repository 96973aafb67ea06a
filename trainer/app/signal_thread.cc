#include "trainer/app/signal_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

sigset_t original_mask;  // constant once the second thread exists

void RestoreMask() { pthread_sigmask(SIG_SETMASK, &original_mask, nullptr); }

void* ReceiveSignals(void*) {
  RestoreMask();
  while (true) pause();
}

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

}  // namespace tessera
