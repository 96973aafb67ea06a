#include "trainer/app/stop_signal.h"

#include <csignal>

namespace tessera {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

void OnSignal(int signal) { stop_signal = signal; }

}  // namespace

void CatchStopSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  // The second signal meets the default handler. Restarting system calls keeps a save in progress
  // whole.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int StopSignal() { return stop_signal; }

}  // namespace tessera
