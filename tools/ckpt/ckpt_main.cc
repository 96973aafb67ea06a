#include <string>
#include <vector>

#include "base/program.h"
#include "tools/ckpt/commands.h"

int main(int argc, char** argv) {
  return tessera::RunProgram(tessera::ckpt::kProgram, [&] {
    return tessera::ckpt::Main(std::vector<std::string>(argv + 1, argv + argc));
  });
}
