// Preloaded into a program to emulate an in-process profiler: SIGPROF runs a handler, which needs
// stack.

#include <csignal>

namespace {

volatile char touched;

void OnSample(int) {
  volatile char frame[512];
  for (volatile char& byte : frame) byte = 0x5a;
  touched = frame[0];
}

__attribute__((constructor)) void Start() {
  struct sigaction action = {};
  action.sa_handler = OnSample;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
}

}  // namespace
