#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/cpu_level.h"
#include "base/invocation_dir.h"
#include "tools/ckpt/commands.h"

int main(int argc, char** argv) {
  if (const absl::Status level = tessera::CheckCpuLevel(); !level.ok()) {
    std::cerr << "ckpt: " << level.message() << "\n";
    return tessera::ckpt::kExitUsage;
  }
  tessera::ChdirToInvocationDir();
  const int exit_code = tessera::ckpt::RunCkpt(
      std::vector<std::string>(argv + 1, argv + argc),
      {std::cout, std::cerr, isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr});
  // Output may still be in a buffer: a full disk or a closed stdout is detected here.
  errno = 0;
  std::cout.flush();
  if (std::cout.good()) return exit_code;
  std::cerr << "ckpt: the output is lost: cannot write to stdout"
            << (errno != 0 ? std::string(": ") + std::strerror(errno) : "") << "\n";
  return tessera::ckpt::kExitUsage;
}
