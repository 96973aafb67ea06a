// Saving, loading and verifying the full training state of GPT-2 124M (bf16 weights; fp32 master
// weights and two moments), against what the same disk does with direct I/O and nothing else. Each
// round measures all of it, so that a disk that changes its mind changes both sides of a ratio.
// Prints
//   figure save.disk_ratio <value> ratio     and likewise load.disk_ratio, verify.disk_ratio
// and the rates behind them. Medians over the rounds.

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "tests/perf/gpt2_state.h"
#include "tests/perf/raw_disk.h"

ABSL_FLAG(std::string, directory, "", "where to write about 3.5 GB; default: a new one under /tmp");
ABSL_FLAG(int, rounds, 5, "how often everything is measured");
ABSL_FLAG(int, io_threads, 4, "of the checkpoint engine");

namespace tessera {
namespace {

// Processor time of this process, which is independent of other load on the machine.
double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Series {
  std::vector<double> ours, raw, ratio, cpu;
  void Add(double our_rate, double raw_rate, double cpu_seconds) {
    ours.push_back(our_rate);
    raw.push_back(raw_rate);
    ratio.push_back(our_rate / raw_rate);
    cpu.push_back(cpu_seconds);
  }
  void Print(const char* name) const {
    std::printf("%s: %.0f MB/s, raw disk %.0f MB/s, %.2f s of CPU; ratios", name,
                Median(ours) / 1e6, Median(raw) / 1e6, Median(cpu));
    for (double r : ratio) std::printf(" %.3f", r);
    std::printf("\nfigure %s.disk_ratio %.3f ratio\n", name, Median(ratio));
    std::printf("figure %s.rate %.0f MB/s\n", name, Median(ours) / 1e6);
  }
};

absl::Status Measure(const std::string& directory) {
  Gpt2State state;
  std::printf("state: %zu tensors, %.1f MB; %d rounds\n", state.dict().tensors.size(),
              state.bytes() / 1e6, absl::GetFlag(FLAGS_rounds));
  const absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage = ckpt::OpenPosixStorage(directory);
  if (!storage.ok()) return storage.status();
  RawDiskOptions raw_options;
  raw_options.directory = directory;
  raw_options.bytes = state.bytes();
  raw_options.repeats = 1;
  const absl::StatusOr<RawDiskRates> best = MeasureRawDisk(raw_options);
  if (!best.ok()) return best.status();
  absl::StatusOr<RawDiskFile> raw = RawDiskFile::Create(directory, state.bytes());
  if (!raw.ok()) return raw.status();

  ckpt::SaveOptions save_options;
  ckpt::LoadOptions load_options;
  save_options.io_threads = load_options.io_threads = absl::GetFlag(FLAGS_io_threads);
  Series save, load, verify;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    const auto raw_write = raw->WriteOnce(best->write.shape);
    if (!raw_write.ok()) return raw_write.status();
    const double before_save = CpuSeconds();
    const auto saved = ckpt::Save(**storage, "", round + 1, state.dict(), save_options);
    if (!saved.ok()) return saved.status();
    const double after_save = CpuSeconds();
    const auto raw_read = raw->ReadOnce(best->read.shape);
    if (!raw_read.ok()) return raw_read.status();
    const double before_load = CpuSeconds();
    const auto loaded = ckpt::Load(**storage, saved->directory, state.dict(), load_options);
    if (!loaded.ok()) return loaded.status();
    const double before_verify = CpuSeconds();
    const auto verified = ckpt::Verify(**storage, saved->directory,
                                       {.digests = true, .io_threads = save_options.io_threads});
    if (!verified.ok()) return verified.status();
    if (!verified->damage.empty()) return absl::DataLossError(verified->damage[0].message);
    const double after_verify = CpuSeconds();
    save.Add(saved->bytes_written / saved->seconds, *raw_write, after_save - before_save);
    load.Add(loaded->bytes_read / loaded->seconds, *raw_read, before_verify - before_load);
    verify.Add(verified->bytes_read / verified->seconds, *raw_read, after_verify - before_verify);
    if (absl::Status deleted = (*storage)->DeleteTree(saved->directory); !deleted.ok()) {
      return deleted;
    }
  }
  save.Print("save");
  load.Print("load");
  verify.Print("verify");
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  std::string directory = absl::GetFlag(FLAGS_directory);
  const bool own_directory = directory.empty();
  if (own_directory) {
    directory = "/tmp/tessera_checkpoint_io_XXXXXX";
    if (mkdtemp(directory.data()) == nullptr) {
      std::perror(directory.c_str());
      return 1;
    }
  }
  const absl::Status status = tessera::Measure(directory);
  if (own_directory) std::remove(directory.c_str());
  if (!status.ok()) {
    std::fprintf(stderr, "checkpoint_io: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
