// Saving, loading and verifying the full training state of GPT-2 124M (bf16 weights; fp32 master
// weights and two moments), against what the same disk does with direct I/O and nothing else. Each
// round measures all of it, so that a disk that changes its mind changes both sides of a ratio.
// Prints
//   figure save.disk_ratio <value> ratio     and likewise load.disk_ratio, verify.disk_ratio
//   figure save.same_depth_ratio <value> ratio, likewise: over a disk with as many transfers, of as
//                                         many bytes, in flight, and not over its best shape
//   figure save.naive_ratio <value> ratio    and load.naive_ratio
// and the rates behind them. Medians over the rounds.
//
// The naive ratios compare with the simplest format of its own for each rank: the rank writes its
// buffers as they are into one file and syncs that, and reads them back into the same memory. It
// has no checksums, no digests, no index, and fits no other topology.

#include <cstddef>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "storage/storage.h"
#include "tests/perf/gpt2_run.h"
#include "tests/perf/harness.h"
#include "tests/perf/naive_file.h"
#include "tests/perf/raw_disk.h"

ABSL_FLAG(std::string, directory, "", "where to write about 5.3 GB; default: a new one under /tmp");
ABSL_FLAG(int, rounds, 4, "how often everything is measured");
ABSL_FLAG(int, io_threads, 4, "of the checkpoint engine");

namespace tessera {
namespace {

void PrintNaive(const char* name, const Pairs& pairs) {
  std::printf("%s: a naive file %.0f MB/s\n", name, pairs.theirs() / 1e6);
  PrintFigure(absl::StrCat(name, ".naive_ratio"), pairs.Ratio());
}

absl::Status Measure(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(Gpt2State state, Gpt2State::Create());
  std::printf("state: %zu tensors, %.1f MB\n", state.dict.tensors.size(), state.bytes / 1e6);
  TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder folder,
                           ckpt::CheckpointFolder::Open(directory));
  TESSERA_ASSIGN_OR_RETURN(const RawDiskShapes shapes, FindRawDiskShapes(directory, state.bytes));
  TESSERA_ASSIGN_OR_RETURN(RawDiskFile raw, RawDiskFile::Create(directory, state.bytes));
  const NaiveFile naive(directory + "/naive", state.run->Buffers());
  const int io_threads = absl::GetFlag(FLAGS_io_threads);
  const RawDiskShape same = {.block_bytes = size_t{4} << 20, .threads = io_threads};
  Pairs save, load, verify, naive_save, naive_load, same_save, same_load, same_verify;
  TESSERA_RETURN_IF_ERROR(ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int round) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const double raw_write, raw.WriteOnce(shapes.write));
    TESSERA_ASSIGN_OR_RETURN(const double naive_write, naive.Save());
    TESSERA_ASSIGN_OR_RETURN(const double same_write, raw.WriteOnce(same));
    const double begin = ProcessorSeconds();
    TESSERA_ASSIGN_OR_RETURN(const ckpt::SaveReport saved,
                             folder.Save(round + 1, state.dict, {.io_threads = io_threads}));
    const double processors = ProcessorSeconds() - begin;
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, folder.At(round + 1));
    TESSERA_ASSIGN_OR_RETURN(const double raw_read, raw.ReadOnce(shapes.read));
    TESSERA_ASSIGN_OR_RETURN(const double naive_read, naive.Load());
    TESSERA_ASSIGN_OR_RETURN(const double same_read, raw.ReadOnce(same));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::LoadReport loaded,
                             checkpoint.Load(state.dict, {.io_threads = io_threads}));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::VerifyReport verified,
                             checkpoint.Verify({.digests = true, .io_threads = io_threads}));
    if (!verified.damage.empty()) return absl::DataLossError(verified.damage[0].message);
    save.Add(saved.bytes_written / absl::ToDoubleSeconds(saved.duration), raw_write);
    load.Add(loaded.bytes_read / absl::ToDoubleSeconds(loaded.duration), raw_read);
    same_save.Add(saved.bytes_written / absl::ToDoubleSeconds(saved.duration), same_write);
    same_load.Add(loaded.bytes_read / absl::ToDoubleSeconds(loaded.duration), same_read);
    same_verify.Add(verified.bytes_read / absl::ToDoubleSeconds(verified.duration), same_read);
    naive_save.Add(saved.bytes_written / absl::ToDoubleSeconds(saved.duration), naive_write);
    naive_load.Add(loaded.bytes_read / absl::ToDoubleSeconds(loaded.duration), naive_read);
    verify.Add(verified.bytes_read / absl::ToDoubleSeconds(verified.duration), raw_read);
    std::printf("the save took %.2f s of processors\n", processors);
    return folder.storage().DeleteTree(saved.directory);
  }));
  save.PrintRates("save", "disk_ratio", "raw disk");
  load.PrintRates("load", "disk_ratio", "raw disk");
  verify.PrintRates("verify", "disk_ratio", "raw disk");
  PrintFigure("save.same_depth_ratio", same_save.Ratio());
  PrintFigure("load.same_depth_ratio", same_load.Ratio());
  PrintFigure("verify.same_depth_ratio", same_verify.Ratio());
  PrintNaive("save", naive_save);
  PrintNaive("load", naive_load);
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
