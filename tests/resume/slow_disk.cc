// Preloaded into a program to simulate a slow disk: syncs of a checkpoint's files and of the log of
// its steps block until the file that SLOW_DISK_GATE names exists; other syncs do not block.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace {

bool IsOfASave(int fd) {
  char buffer[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(link.c_str(), buffer, sizeof(buffer) - 1) <= 0) return false;
  const std::string_view path = buffer;
  return path.find("/step-") != path.npos || path.ends_with("/metrics.jsonl");
}

}  // namespace

extern "C" int fdatasync(int fd) {
  const char* const gate = std::getenv("SLOW_DISK_GATE");
  if (gate != nullptr && IsOfASave(fd)) {
    while (access(gate, F_OK) != 0) usleep(1000);
  }
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
