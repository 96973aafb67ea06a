// Preloaded into a program: its disk takes its time. Files become durable once the one that
// SLOW_DISK_GATE names is there.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int fdatasync(int fd) {
  const char* const gate = std::getenv("SLOW_DISK_GATE");
  while (gate != nullptr && access(gate, F_OK) != 0) usleep(1000);
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
