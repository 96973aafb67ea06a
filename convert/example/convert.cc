// Reads a checkpoint of any framework in place, and writes it in Hugging Face's format.
//
// convert FROM TO: both are folders; TO must not exist.

#include <iostream>

#include "checkpoint/include/checkpoint.h"
#include "convert/open_foreign.h"
#include "convert/write_foreign.h"

int main(int argc, char** argv) {
  namespace ckpt = tessera::ckpt;
  if (argc != 3) {
    std::cerr << "usage: convert FROM TO\n";
    return 2;
  }
  const auto storage = ckpt::convert::OpenForeign(argv[1], {});
  const auto source = storage.ok() ? ckpt::Checkpoint::Open(**storage, "") : storage.status();
  const auto report = source.ok() ? ckpt::convert::WriteForeign(*source, argv[2], {.format = "hf"})
                                  : source.status();
  if (!report.ok()) {
    std::cerr << report.status() << "\n";
    return 1;
  }
  std::cout << report->tensors << " tensors in " << report->files.size() << " files\n";
}
