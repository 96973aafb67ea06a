#include <string>
#include <vector>

#include "base/program.h"
#include "tools/ckpt/commands.h"

// The command `ckpt`, for `python -m tessera_ckpt`: takes what main() does, and returns the exit
// code. It sets signals, as a program does.
extern "C" __attribute__((visibility("default"))) int tessera_command(int argc,
                                                                      const char* const* argv) {
  return tessera::RunProgram(tessera::ckpt::kProgram, [&] {
    return tessera::ckpt::Main(std::vector<std::string>(argv + 1, argv + argc));
  });
}
