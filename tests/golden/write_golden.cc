// Writes a golden checkpoint: write_golden DIRECTORY. Run once for each released format version and
// committed; its output is never written again.

#include <cstdio>

#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "tests/golden/golden_state.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_golden DIRECTORY\n");
    return 2;
  }
  const auto folder = tessera::ckpt::CheckpointFolder::Open(argv[1], {.create_root = true});
  if (!folder.ok()) {
    std::fprintf(stderr, "%s\n", folder.status().ToString().c_str());
    return 1;
  }
  tessera::GoldenState state(/*fill=*/true, /*cuts=*/2);
  tessera::ckpt::SaveOptions options;
  options.checksum_chunk_bytes = 1024;
  const auto report = folder->Save(
      {.step = 7, .metadata = tessera::ckpt::ToMetadata(tessera::GoldenState::Metadata())},
      state.dict(), options);
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.status().ToString().c_str());
    return 1;
  }
  return 0;
}
