// What it costs to resume under another topology: four MPI ranks load GPT-2 124M's training state
// (bf16 weights; fp32 master weights and two moments). For pairs of topologies A and B, checkpoints
// of both are loaded under both, in turns, past the page cache. For each direction
//   figure reshard_load.<A>.<B>.ratio       A's checkpoint under B / B's own checkpoint under B
//   figure reshard_load.<A>.<B>.over_saved  A's checkpoint under B / A's own checkpoint under A
// each of them the median over rounds of ratios within a round. The first compares two loads that
// fill the same memory with the same elements and differ only in how they were saved: the cost of
// resharding for a run under B. The second includes what the run cannot choose: where the
// topologies hold different amounts (four ranks of dp4 hold 7 GB, four of tp4 less than 2), the
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
//   figure reshard_load.naive.<A>.<B>.ratio, .over_saved  of a checkpoint of private files, one for
//                                         each rank, from which ranks pick what they want
//
// Started without --rank_of, it starts mpirun and itself, for one pair after the other. Takes about
// 11 GB of memory and 20 GB of disk.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "compute/comm/mpi/mpi_world.h"
#include "tests/perf/raw_disk.h"
#include "tests/perf/reshard_load_naive.h"
#include "tests/perf/reshard_load_state.h"
#include "trainer/state/communicator_group.h"

ABSL_FLAG(std::string, rank_of, "", "Be a rank that measures this pair of topologies: A:B.");
ABSL_FLAG(std::vector<std::string>, pairs,
          std::vector<std::string>({"dp4:tp4", "dp4_zero2:pp4", "tp4:dp2_tp2"}),
          "What to measure, in both directions: topologies of four ranks, A:B.");
ABSL_FLAG(int, rounds, 3, "Rounds behind each median.");
ABSL_FLAG(int, naive_rounds, 1, "How many of them measure the naive checkpoint, too.");
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
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      // Each destination loads both checkpoints in direct succession, in alternating order.
      for (int i = 0; i < 4; ++i) {
        const int to = (i / 2 + round) % 2, from = (i + round / 2) % 2;
        TESSERA_RETURN_IF_ERROR(from == to ? LoadBetweenRawReads(sides_[to])
                                           : Load(sides_[from], sides_[to]));
      }
      if (round >= absl::GetFlag(FLAGS_naive_rounds)) continue;
      for (const Side& from : sides_) {
        for (Side& to : sides_) TESSERA_RETURN_IF_ERROR(LoadPrivateFiles(from, to));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Side {
    std::unique_ptr<ReshardLoadState> state;
    std::string directory;  // of the naive checkpoint; Tessera's is below it
    std::unique_ptr<ckpt::Storage> storage;
    std::string checkpoint;  // in the storage
  };

  explicit Pair(Communicator& world) : world_(world), group_(MakeProcessGroup(&world)) {}

  absl::StatusOr<Side> Open(const std::string& topology) {
    Side side;
    TESSERA_ASSIGN_OR_RETURN(side.state, ReshardLoadState::Create(topology, world_));
    side.directory = absl::StrCat(absl::GetFlag(FLAGS_directory), "/", topology);
    std::filesystem::create_directory(side.directory);
    TESSERA_ASSIGN_OR_RETURN(side.storage, ckpt::OpenPosixStorage(side.directory));
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    return side;
  }

  absl::Status Save(Side& side) {
    TESSERA_ASSIGN_OR_RETURN(
        const ckpt::SaveReport saved,
        ckpt::Save(*side.storage, "", 1, side.state->dict(), {.group = &*group_}));
    side.checkpoint = saved.directory;
    if (absl::GetFlag(FLAGS_naive_rounds) > 0) {
      TESSERA_RETURN_IF_ERROR(WriteNaive(side.directory, world_.rank(), side.state->dict()));
    }
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    if (world_.rank() != 0) return absl::OkStatus();
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(
             absl::StrCat(side.directory, "/", saved.directory))) {
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

  // The slowest rank's `seconds`, returned on every rank.
  absl::StatusOr<double> Slowest(double seconds) {
    TESSERA_RETURN_IF_ERROR(world_.AllReduce(std::span(&seconds, 1), ReduceOp::kMax));
    return seconds;
  }
  absl::StatusOr<int64_t> Sum(uint64_t value) {
    auto sum = static_cast<int64_t>(value);
    TESSERA_RETURN_IF_ERROR(world_.AllReduce(std::span(&sum, 1), ReduceOp::kSum));
    return sum;
  }

  // As many threads as the load uses or fewer, whichever read fastest.
  absl::Status ChooseRawThreads() {
    double best = 0;
    int best_threads = 0;
    for (int threads = absl::GetFlag(FLAGS_io_threads); threads >= 1; threads /= 2) {
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
                             Slowest(static_cast<double>(raw_->bytes()) / rate));
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
    const absl::Time start = absl::Now();
    TESSERA_ASSIGN_OR_RETURN(
        const ckpt::LoadReport report,
        ckpt::Load(*from.storage, from.checkpoint, to.state->dict(),
                   {.group = &*group_, .io_threads = absl::GetFlag(FLAGS_io_threads)}));
    TESSERA_ASSIGN_OR_RETURN(const double seconds,
                             Slowest(absl::ToDoubleSeconds(absl::Now() - start)));
    TESSERA_RETURN_IF_ERROR(to.state->Check());
    TESSERA_ASSIGN_OR_RETURN(const int64_t read, Sum(report.bytes_read));
    TESSERA_ASSIGN_OR_RETURN(const int64_t received, Sum(report.bytes_received));
    return Tell("ours", from, to, seconds, read, received);
  }

  absl::Status LoadPrivateFiles(const Side& from, Side& to) {
    to.state->Spoil();
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    const absl::Time start = absl::Now();
    TESSERA_ASSIGN_OR_RETURN(const NaiveLoad load,
                             LoadNaive(*from.storage, from.directory, world_.rank(), kRanks,
                                       absl::GetFlag(FLAGS_io_threads), to.state->dict()));
    TESSERA_ASSIGN_OR_RETURN(const double seconds,
                             Slowest(absl::ToDoubleSeconds(absl::Now() - start)));
    TESSERA_RETURN_IF_ERROR(to.state->Check());
    TESSERA_ASSIGN_OR_RETURN(const int64_t read, Sum(load.bytes_read));
    return Tell("naive", from, to, seconds, read, 0);
  }

  absl::Status Tell(const char* kind, const Side& from, const Side& to, double seconds,
                    int64_t read, int64_t received) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t wanted, Sum(to.state->local_bytes()));
    if (world_.rank() != 0) return absl::OkStatus();
    std::printf("load %s %s %s %.4f %ld %ld %ld\n", kind, from.state->topology().c_str(),
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
  std::map<std::tuple<std::string, std::string, std::string>, Loads> loads;  // kind, from, to
  std::map<std::string, std::vector<double>> raw;  // bytes/s around loads of the same topology
};

struct Worst {
  double ratio = 0, over_saved = 0, bytes_over_state = 0;
  static constexpr double kNone = 1e9;
  double disk_ratio = kNone, sharded_disk_ratio = kNone;
};

void Read(const std::string& line, PairTimes& times, Worst& worst) {
  std::array<char, 32> kind{}, from{}, to{};
  double seconds = 0, wanted = 0, read = 0, received = 0;
  if (std::sscanf(line.c_str(), "load %31s %31s %31s %lf %lf %lf %lf", kind.data(), from.data(),
                  to.data(), &seconds, &wanted, &read, &received) == 7) {
    Loads& loads = times.loads[{kind.data(), from.data(), to.data()}];
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
  std::array<char, 4096> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) {
    return absl::InternalError("/proc/self/exe cannot be read");
  }
  const std::string command = absl::StrCat(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to ",
      "none -n ", kRanks, " '", self.data(), "' --rank_of=", pair, " --directory='", directory,
      "' --rounds=", absl::GetFlag(FLAGS_rounds),
      " --naive_rounds=", absl::GetFlag(FLAGS_naive_rounds),
      " --io_threads=", absl::GetFlag(FLAGS_io_threads));
  std::FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return absl::InternalError("no process for mpirun");
  PairTimes times;
  std::string text;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    text += line.data();
    Read(line.data(), times, worst);
    std::fflush(stdout);
  }
  if (pclose(output) == 0) return times;
  return absl::InternalError(absl::StrCat(pair, " failed: ", text));
}

double MedianRatio(const Loads& over, const Loads& under) {
  std::vector<double> ratios;
  for (size_t r = 0; r < over.seconds.size(); ++r) {
    ratios.push_back(over.seconds[r] / under.seconds[r]);
  }
  return Median(ratios);
}

void PrintSame(const std::string& topology, PairTimes& times, Worst& worst) {
  const Loads& same = times.loads[{"ours", topology, topology}];
  const std::vector<double>& raw = times.raw[topology];
  std::vector<double> ratios;
  for (size_t r = 0; r < same.seconds.size(); ++r) {
    ratios.push_back(same.read / same.seconds[r] / raw[r]);
  }
  const double ratio = Median(ratios);
  std::printf("raw disk around loads of %s: %.0f MB/s\n", topology.c_str(), Median(raw) / 1e6);
  std::printf("figure reshard_load.same.%s.disk_ratio %.3f ratio\n", topology.c_str(), ratio);
  worst.disk_ratio = std::min(worst.disk_ratio, ratio);
  if (same.wanted < same.read * 1.5) {
    worst.sharded_disk_ratio = std::min(worst.sharded_disk_ratio, ratio);
  }
}

void PrintChange(const std::string& from, const std::string& to, PairTimes& times, Worst& worst) {
  for (const std::string kind : {"ours", "naive"}) {
    const Loads& changed = times.loads[{kind, from, to}];
    if (changed.seconds.empty()) continue;
    const double ratio = MedianRatio(changed, times.loads[{kind, to, to}]);
    const double over_saved = MedianRatio(changed, times.loads[{kind, from, from}]);
    const std::string name =
        absl::StrCat("reshard_load.", kind == "naive" ? "naive." : "", from, ".", to);
    std::printf("figure %s.ratio %.3f ratio\nfigure %s.over_saved %.3f ratio\n", name.c_str(),
                ratio, name.c_str(), over_saved);
    if (kind == "naive") continue;
    worst.ratio = std::max(worst.ratio, ratio);
    worst.over_saved = std::max(worst.over_saved, over_saved);
  }
}

void Print(const std::vector<std::string>& topologies, PairTimes& times, Worst& worst) {
  for (const auto& [key, loads] : times.loads) {
    const auto& [kind, from, to] = key;
    std::printf("%s: %s under %s: %.3f s; MB: %.0f wanted by the ranks, %.0f read, %.0f received\n",
                kind.c_str(), from.c_str(), to.c_str(), Median(loads.seconds), loads.wanted / 1e6,
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
  std::printf("figure reshard_load.worst_ratio %.3f ratio\n", worst.ratio);
  std::printf("figure reshard_load.worst_over_saved %.3f ratio\n", worst.over_saved);
  std::printf("figure reshard_load.same.disk_ratio %.3f ratio\n", worst.disk_ratio);
  if (worst.sharded_disk_ratio < Worst::kNone) {
    std::printf("figure reshard_load.same.sharded.disk_ratio %.3f ratio\n",
                worst.sharded_disk_ratio);
  }
  std::printf("figure reshard_load.bytes_over_state %.5f ratio\n", worst.bytes_over_state);
  return absl::OkStatus();
}

absl::Status Start() {
  const std::string given = absl::GetFlag(FLAGS_directory);
  if (!given.empty()) return MeasureAll(given);
  std::string directory = "/tmp/tessera_reshard_load_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return absl::UnavailableError(directory);
  const absl::Status status = MeasureAll(directory);
  std::filesystem::remove_all(directory);
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_rank_of).empty()) return tessera::RunMpiRank({}, tessera::BeRank);
  const absl::Status status = tessera::Start();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
