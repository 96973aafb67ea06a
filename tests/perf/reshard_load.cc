// What it costs to resume under another topology: four MPI ranks load the training state of a third
// of GPT-2 124M (bf16 weights; fp32 master weights and two moments). For pairs of topologies A and
// B, checkpoints of both are loaded under both, in turns, past the page cache. For each direction
//   figure reshard_load.<A>.<B>.ratio       A's checkpoint under B / B's own checkpoint under B
//   figure reshard_load.<A>.<B>.over_saved  A's checkpoint under B / A's own checkpoint under A
// each of them the median over rounds of ratios within a round. The first compares two loads that
// fill the same memory with the same elements and differ only in how they were saved: the cost of
// resharding for a run under B. The second includes what the run cannot choose: where the
// topologies hold different amounts (four ranks of dp4 hold four times what four of tp4 do), the
// difference is not caused by resharding. Either way a load reads each stored byte once. Then
//   figure reshard_load.worst_ratio, .worst_over_saved   over all of them
//   figure reshard_load.same.<A>.disk_ratio   rate of a load under the topology that was saved, in
//                                         stored bytes, over raw direct reads of as many bytes by
//                                         four processes right before and right after it
//   figure reshard_load.same.disk_ratio   the worst of them; .same.sharded.disk_ratio: the worst
//                                         without topologies whose ranks together hold half as
//                                         much again as the checkpoint, or more
//   figure reshard_load.bytes_over_state  bytes of all of a checkpoint's files over those of the
//                                         logical state: the worst over the topologies
//
// Started without --rank_of, it starts mpirun and itself, for one pair after the other.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "comm/mpi/mpi_world.h"
#include "tests/perf/harness.h"
#include "tests/perf/ranks.h"
#include "tests/perf/raw_disk.h"
#include "tests/perf/reshard_load_state.h"
#include "trainer/state/communicator_group.h"

ABSL_FLAG(std::string, rank_of, "", "Be a rank that measures this pair of topologies: A:B.");
ABSL_FLAG(std::vector<std::string>, pairs,
          std::vector<std::string>({"dp4:tp4", "dp4_zero2:pp4", "tp4:dp2_tp2"}),
          "What to measure, in both directions: topologies of four ranks, A:B.");
ABSL_FLAG(int, rounds, 3, "Rounds behind each median.");
ABSL_FLAG(int, layers, 4, "Of GPT-2's twelve, with as much of its vocabulary.");
ABSL_FLAG(int, io_threads, 4, "Of each rank.");
ABSL_FLAG(std::string, directory, "", "Where to write; default: a new one under /tmp.");

namespace tessera {
namespace {

constexpr int kRanks = 4;

// ---- A rank of one pair.

class Pair {
 public:
  static absl::StatusOr<std::unique_ptr<Pair>> Create(const std::vector<std::string>& topologies,
                                                      Communicator& world) {
    std::unique_ptr<Pair> pair(new Pair(world));
    for (const std::string& topology : topologies) {
      TESSERA_ASSIGN_OR_RETURN(Side side, pair->Open(topology));
      pair->sides_.push_back(std::move(side));
      TESSERA_RETURN_IF_ERROR(pair->Save(pair->sides_.back()));
    }
    TESSERA_RETURN_IF_ERROR(pair->OpenRaw());
    return pair;
  }

  absl::Status Measure() {
    return ForEachRound(absl::GetFlag(FLAGS_rounds), [&](int round) -> absl::Status {
      // Each destination loads both checkpoints in direct succession, in alternating order.
      for (int i = 0; i < 4; ++i) {
        const int to = (i / 2 + round) % 2, from = (i + round / 2) % 2;
        TESSERA_RETURN_IF_ERROR(from == to ? LoadBetweenRawReads(sides_[to])
                                           : Load(sides_[from], sides_[to]));
      }
      return absl::OkStatus();
    });
  }

 private:
  struct Side {
    std::unique_ptr<ReshardLoadState> state;
    std::optional<ckpt::CheckpointFolder> folder;
    std::optional<ckpt::Checkpoint> checkpoint;
  };

  explicit Pair(Communicator& world) : world_(world), group_(MakeProcessGroup(&world)) {}

  static std::string DirectoryOf(const std::string& topology) {
    return absl::StrCat(absl::GetFlag(FLAGS_directory), "/", topology);
  }

  absl::StatusOr<Side> Open(const std::string& topology) {
    Side side;
    TESSERA_ASSIGN_OR_RETURN(
        side.state, ReshardLoadState::Create(topology, absl::GetFlag(FLAGS_layers), world_));
    const std::string directory = DirectoryOf(topology);
    std::filesystem::create_directory(directory);
    TESSERA_ASSIGN_OR_RETURN(side.folder, ckpt::CheckpointFolder::Open(directory));
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    return side;
  }

  absl::Status Save(Side& side) {
    TESSERA_ASSIGN_OR_RETURN(const ckpt::SaveReport saved,
                             side.folder->Save(1, side.state->dict(), {.group = &*group_}));
    TESSERA_ASSIGN_OR_RETURN(side.checkpoint, side.folder->At(1));
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    if (world_.rank() != 0) return absl::OkStatus();
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(
             absl::StrCat(DirectoryOf(side.state->topology()), "/", saved.directory))) {
      if (file.is_regular_file()) bytes += file.file_size();
    }
    std::printf("saved %s %lu %lu\n", side.state->topology().c_str(), bytes,
                side.state->logical_bytes());
    return absl::OkStatus();
  }

  absl::Status OpenRaw() {
    TESSERA_ASSIGN_OR_RETURN(RawDiskFile raw,
                             RawDiskFile::Create(absl::GetFlag(FLAGS_directory),
                                                 sides_[0].state->logical_bytes() / kRanks));
    raw_ = std::make_unique<RawDiskFile>(std::move(raw));
    TESSERA_RETURN_IF_ERROR(raw_->WriteOnce(raw_shape_).status());
    return ChooseRawThreads();
  }

  // As many at a time as the load has in flight or fewer, whichever read fastest.
  absl::Status ChooseRawThreads() {
    double best = 0;
    int best_threads = 0;
    for (int threads = 2 * absl::GetFlag(FLAGS_io_threads); threads >= 1; threads /= 2) {
      raw_shape_.threads = threads;
      TESSERA_ASSIGN_OR_RETURN(const double rate, RawRead());
      if (rate > best) {
        best = rate;
        best_threads = threads;
      }
    }
    raw_shape_.threads = best_threads;
    return absl::OkStatus();
  }

  // Bytes per second of all ranks together, the same value on each.
  absl::StatusOr<double> RawRead() {
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    TESSERA_ASSIGN_OR_RETURN(const double rate, raw_->ReadOnce(raw_shape_));
    TESSERA_ASSIGN_OR_RETURN(const double seconds,
                             Slowest(world_, static_cast<double>(raw_->bytes()) / rate));
    return kRanks * static_cast<double>(raw_->bytes()) / seconds;
  }

  // Disks slow down after bursts: the raw rate is measured before and after the load.
  absl::Status LoadBetweenRawReads(Side& side) {
    TESSERA_ASSIGN_OR_RETURN(const double before, RawRead());
    TESSERA_RETURN_IF_ERROR(Load(side, side));
    TESSERA_ASSIGN_OR_RETURN(const double after, RawRead());
    if (world_.rank() == 0) {
      std::printf("raw %s %.0f\n", side.state->topology().c_str(), 2 / (1 / before + 1 / after));
    }
    return absl::OkStatus();
  }

  absl::Status Load(const Side& from, Side& to) {
    to.state->Spoil();
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    const double start = Now();
    TESSERA_ASSIGN_OR_RETURN(
        const ckpt::LoadReport report,
        from.checkpoint->Load(to.state->dict(),
                              {.group = &*group_, .io_threads = absl::GetFlag(FLAGS_io_threads)}));
    TESSERA_ASSIGN_OR_RETURN(const double seconds, Slowest(world_, Now() - start));
    TESSERA_RETURN_IF_ERROR(to.state->Check());
    TESSERA_ASSIGN_OR_RETURN(const int64_t read, Sum(world_, report.bytes_read));
    TESSERA_ASSIGN_OR_RETURN(const int64_t received, Sum(world_, report.bytes_received));
    TESSERA_ASSIGN_OR_RETURN(const int64_t wanted, Sum(world_, to.state->local_bytes()));
    if (world_.rank() != 0) return absl::OkStatus();
    std::printf("load %s %s %.4f %ld %ld %ld\n", from.state->topology().c_str(),
                to.state->topology().c_str(), seconds, wanted, read, received);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  Communicator& world_;
  const std::unique_ptr<ckpt::ProcessGroup> group_;
  std::vector<Side> sides_;
  std::unique_ptr<RawDiskFile> raw_;  // this rank's part of as many bytes
  RawDiskShape raw_shape_;
};

absl::Status BeRank(Communicator& world) {
  const std::vector<std::string> topologies = absl::StrSplit(absl::GetFlag(FLAGS_rank_of), ':');
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Pair> pair, Pair::Create(topologies, world));
  return pair->Measure();
}

// ---- The results that ranks reported.

struct Loads {
  std::vector<double> seconds;  // by round
  double wanted = 0, read = 0, received = 0;
};

struct PairTimes {
  std::map<std::pair<std::string, std::string>, Loads> loads;  // from, to
  std::map<std::string, std::vector<double>> raw;  // bytes/s around loads of the same topology
};

struct Worst {
  double ratio = 0, over_saved = 0, bytes_over_state = 0;
  static constexpr double kNone = 1e9;
  double disk_ratio = kNone, sharded_disk_ratio = kNone;
};

void Read(const std::string& line, PairTimes& times, Worst& worst) {
  std::array<char, 32> from{}, to{};
  double seconds = 0, wanted = 0, read = 0, received = 0;
  if (std::sscanf(line.c_str(), "load %31s %31s %lf %lf %lf %lf", from.data(), to.data(), &seconds,
                  &wanted, &read, &received) == 6) {
    Loads& loads = times.loads[{from.data(), to.data()}];
    loads.seconds.push_back(seconds);
    loads.wanted = wanted;
    loads.read = read;
    loads.received = received;
  } else if (std::sscanf(line.c_str(), "raw %31s %lf", from.data(), &read) == 2) {
    times.raw[from.data()].push_back(read);
  } else if (std::sscanf(line.c_str(), "saved %31s %lf %lf", from.data(), &read, &wanted) == 3) {
    std::printf("%s: a checkpoint of %.1f MB, state of %.1f MB: %.5f\n", from.data(), read / 1e6,
                wanted / 1e6, read / wanted);
    worst.bytes_over_state = std::max(worst.bytes_over_state, read / wanted);
  }
}

absl::StatusOr<PairTimes> Run(const std::string& pair, const std::string& directory, Worst& worst) {
  PairTimes times;
  TESSERA_RETURN_IF_ERROR(RunRanks(kRanks,
                                   absl::StrCat("--rank_of=", pair, " --directory='", directory,
                                                "' --layers=", absl::GetFlag(FLAGS_layers),
                                                " --rounds=", absl::GetFlag(FLAGS_rounds),
                                                " --io_threads=", absl::GetFlag(FLAGS_io_threads)),
                                   [&](const std::string& line) { Read(line, times, worst); }));
  return times;
}

double MedianRatio(const Loads& over, const Loads& under) {
  std::vector<double> ratios;
  for (size_t r = 0; r < over.seconds.size(); ++r) {
    ratios.push_back(over.seconds[r] / under.seconds[r]);
  }
  return Median(ratios);
}

void PrintSame(const std::string& topology, PairTimes& times, Worst& worst) {
  const Loads& same = times.loads[{topology, topology}];
  const std::vector<double>& raw = times.raw[topology];
  std::vector<double> ratios;
  for (size_t r = 0; r < same.seconds.size(); ++r) {
    ratios.push_back(same.read / same.seconds[r] / raw[r]);
  }
  const double ratio = Median(ratios);
  std::printf("raw disk around loads of %s: %.0f MB/s\n", topology.c_str(), Median(raw) / 1e6);
  PrintFigure(absl::StrCat("reshard_load.same.", topology, ".disk_ratio"), ratio);
  worst.disk_ratio = std::min(worst.disk_ratio, ratio);
  if (same.wanted < same.read * 1.5) {
    worst.sharded_disk_ratio = std::min(worst.sharded_disk_ratio, ratio);
  }
}

void PrintChange(const std::string& from, const std::string& to, PairTimes& times, Worst& worst) {
  const Loads& changed = times.loads[{from, to}];
  const double ratio = MedianRatio(changed, times.loads[{to, to}]);
  const double over_saved = MedianRatio(changed, times.loads[{from, from}]);
  const std::string name = absl::StrCat("reshard_load.", from, ".", to);
  PrintFigure(name + ".ratio", ratio);
  PrintFigure(name + ".over_saved", over_saved);
  worst.ratio = std::max(worst.ratio, ratio);
  worst.over_saved = std::max(worst.over_saved, over_saved);
}

void Print(const std::vector<std::string>& topologies, PairTimes& times, Worst& worst) {
  for (const auto& [key, loads] : times.loads) {
    const auto& [from, to] = key;
    std::printf("%s under %s: %.3f s; MB: %.0f wanted by the ranks, %.0f read, %.0f received\n",
                from.c_str(), to.c_str(), Median(loads.seconds), loads.wanted / 1e6,
                loads.read / 1e6, loads.received / 1e6);
  }
  for (const std::string& topology : topologies) PrintSame(topology, times, worst);
  PrintChange(topologies[0], topologies[1], times, worst);
  PrintChange(topologies[1], topologies[0], times, worst);
  std::fflush(stdout);
}

absl::Status MeasureAll(const std::string& directory) {
  Worst worst;
  for (const std::string& pair : absl::GetFlag(FLAGS_pairs)) {
    const std::vector<std::string> topologies = absl::StrSplit(pair, ':');
    if (topologies.size() != 2) return absl::InvalidArgumentError(absl::StrCat("no pair: ", pair));
    std::fprintf(stderr, "%s\n", pair.c_str());
    absl::StatusOr<PairTimes> times = Run(pair, directory, worst);
    for (const std::string& t : topologies) {
      std::filesystem::remove_all(absl::StrCat(directory, "/", t));
    }
    TESSERA_RETURN_IF_ERROR(times.status());
    Print(topologies, *times, worst);
  }
  PrintFigure("reshard_load.worst_ratio", worst.ratio);
  PrintFigure("reshard_load.worst_over_saved", worst.over_saved);
  PrintFigure("reshard_load.same.disk_ratio", worst.disk_ratio);
  if (worst.sharded_disk_ratio < Worst::kNone) {
    PrintFigure("reshard_load.same.sharded.disk_ratio", worst.sharded_disk_ratio);
  }
  PrintFigure("reshard_load.bytes_over_state", worst.bytes_over_state);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_rank_of).empty()) return tessera::RunMpiRank({}, tessera::BeRank);
  return tessera::RunProgram("reshard_load", [] {
    return tessera::WithFolder(absl::GetFlag(FLAGS_directory), tessera::MeasureAll);
  });
}
