#include "trainer/metrics/standard_streams.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// Starts a process with the `closed` streams closed. Returns the descriptor of the first file that
// it opens, and tests whether its stdout is writable. -1 on failure.
int FirstFileWithout(const std::string& closed) {
  const pid_t child = fork();
  if (child == 0) {
    for (const char stream : closed) close(stream - '0');
    if (!OpenMissingStandardStreams() || write(STDOUT_FILENO, "", 1) != 1) _exit(255);
    _exit(open("/dev/zero", O_RDONLY));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 255 ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreamsTest, AFileNeverTakesTheirPlace) {
  const int usual = FirstFileWithout("");
  ASSERT_GT(usual, STDERR_FILENO);
  for (const char* closed : {"0", "1", "2", "01", "12", "02", "012"}) {
    EXPECT_EQ(FirstFileWithout(closed), usual) << "closed: " << closed;
  }
}

}  // namespace
}  // namespace tessera
