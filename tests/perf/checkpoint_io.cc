// Saving, loading and verifying the full training state of GPT-2 124M (bf16 weights; fp32 master
// weights and two moments), against what the same disk does with direct I/O and nothing else. Each
// round measures all of it, so that a disk that changes its mind changes both sides of a ratio.
// Prints
//   figure save.disk_ratio <value> ratio     and likewise load.disk_ratio, verify.disk_ratio
// and the rates behind them. Medians over the rounds.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/storage.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"
#include "tests/perf/raw_disk.h"

ABSL_FLAG(std::string, directory, "", "where to write about 3.5 GB; default: a new one under /tmp");
ABSL_FLAG(int, rounds, 4, "how often everything is measured");
ABSL_FLAG(int, io_threads, 4, "of the checkpoint engine");

namespace tessera {
namespace {

absl::Status Measure(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(Gpt2State state, Gpt2State::Create());
  std::printf("state: %zu tensors, %.1f MB\n", state.dict.tensors.size(), state.bytes / 1e6);
  TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder folder,
                           ckpt::CheckpointFolder::Open(directory));
  TESSERA_ASSIGN_OR_RETURN(const RawDiskShapes shapes, FindRawDiskShapes(directory, state.bytes));
  TESSERA_ASSIGN_OR_RETURN(RawDiskFile raw, RawDiskFile::Create(directory, state.bytes));
  const int io_threads = absl::GetFlag(FLAGS_io_threads);
  Pairs save, load, verify;
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int round) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const double raw_write, raw.WriteOnce(shapes.write));
    const double begin = ProcessorSeconds();
    TESSERA_ASSIGN_OR_RETURN(const ckpt::SaveReport saved,
                             folder.Save(round + 1, state.dict, {.io_threads = io_threads}));
    const double processors = ProcessorSeconds() - begin;
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, folder.At(round + 1));
    TESSERA_ASSIGN_OR_RETURN(const double raw_read, raw.ReadOnce(shapes.read));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::LoadReport loaded,
                             checkpoint.Load(state.dict, {.io_threads = io_threads}));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::VerifyReport verified,
                             checkpoint.Verify({.digests = true, .io_threads = io_threads}));
    if (!verified.damage.empty()) return absl::DataLossError(verified.damage[0].message);
    save.Add(saved.bytes_written / saved.seconds, raw_write);
    load.Add(loaded.bytes_read / loaded.seconds, raw_read);
    verify.Add(verified.bytes_read / verified.seconds, raw_read);
    std::printf("the save took %.2f s of processors\n", processors);
    return folder.storage().DeleteTree(saved.directory);
  }));
  save.PrintRates("save", "disk_ratio", "raw disk");
  load.PrintRates("load", "disk_ratio", "raw disk");
  verify.PrintRates("verify", "disk_ratio", "raw disk");
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram("checkpoint_io", [] {
    return tessera::WithFolder(absl::GetFlag(FLAGS_directory), tessera::Measure);
  });
}
