#include "base/program.h"

#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/cpu_level.h"
#include "base/invocation_dir.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {

int Main(const std::vector<std::string>& arguments) {
  if (const absl::Status level = CheckCpuLevel(); !level.ok()) {
    PrintError("ckpt", std::string(level.message()));
    return kExitUsage;
  }
  ChdirToInvocationDir();
  return RunCkpt(arguments,
                 {std::cout, std::cerr, isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr});
}

}  // namespace tessera::ckpt
