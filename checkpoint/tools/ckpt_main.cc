#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "checkpoint/tools/commands.h"

int main(int argc, char** argv) {
  return tessera::ckpt::RunCkpt(
      std::vector<std::string>(argv + 1, argv + argc),
      {std::cout, std::cerr, isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr});
}
