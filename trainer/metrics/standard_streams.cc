#include "trainer/metrics/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace tessera {

bool OpenMissingStandardStreams() {
  // The lowest free descriptor is taken each time, so that those below the first one above stderr
  // are all open at the end.
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd < 0) return false;
  ::close(fd);
  return true;
}

}  // namespace tessera
