#include "trainer/metrics/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace tessera {

bool OpenMissingStandardStreams() {
  // open() returns the lowest free descriptor, so that all descriptors below the first one above
  // stderr are open at the end.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd < 0) return false;
  ::close(fd);
  return true;
}

}  // namespace tessera
