// Prints one tensor of the newest checkpoint in a folder, whatever sharding it was saved under.
//   load_tensor FOLDER NAME

#include <iostream>

#include "checkpoint/include/checkpoint.h"

namespace ckpt = tessera::ckpt;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  // value() ends the program with the error where there is one.
  const auto checkpoint = ckpt::CheckpointFolder::Open(argv[1]).value().Latest().value();
  const auto elements = checkpoint.LoadTensor<float>(argv[2]).value();
  for (const float element : elements) std::cout << element << "\n";
}
