// What a job of sixteen processes waits for its checkpoints: the full training state of a GPT-2
// (bf16 weights; fp32 master weights and two moments) at dp4_zero2_tp2_pp2. MPI ranks save it with
// a new CheckpointManager, again with the plan of the first save, and in the background, and load
// it under the same and five other topologies, each in a job of its own. Such a job also saves the
// state itself, and loads both checkpoints, turn about. Beside that, the naive format: each rank
// writes all that it has, replicas included, into a file of its own and syncs it, and reads it
// back. The state is generated (generated_state.h), so that it may be larger than the memory; every
// element that was loaded is compared. For each ROW of the table
//   figure job_times.ROW.seconds      until the slowest rank is done
//   figure job_times.ROW.disk_ratio   rate in bytes of files, over that of direct writes, or of
//                                     direct reads of the checkpoint's files, by as many processes
//                                     and nothing else, right before it
// and for each load
//   figure job_times.ROW.over_own     seconds over those of the same job's load of its own
//                                     checkpoint: what the other topology costs. In the first load,
//                                     both topologies are the same
// Medians over the rounds, of ratios within a round. Files take three times the state's bytes.
//
// Started without --rank_of, it starts mpirun and itself, for one job after the other. --into
// replaces the table in a document.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/system_memory.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/job_saves.h"
#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "tests/perf/generated_state.h"
#include "tests/perf/harness.h"
#include "tests/perf/naive_file.h"
#include "tests/perf/raw_disk.h"
#include "trainer/state/communicator_group.h"

ABSL_FLAG(std::string, rank_of, "", "Be a rank of the job that saves, \"save\", or that loads.");
ABSL_FLAG(std::string, topology, "", "Of a rank.");
ABSL_FLAG(std::string, size, "gpt2-124m", "A named size of GPT-2.");
ABSL_FLAG(std::vector<std::string>, topologies,
          std::vector<std::string>({"dp4_zero2_tp2_pp2", "single", "dp2_tp4_pp2", "dp8_zero2_tp2",
                                    "tp4_pp4", "dp3_zero2_tp2_pp4"}),
          "The first one saves; all load.");
ABSL_FLAG(int, rounds, 3, "Rounds behind each median.");
ABSL_FLAG(int, io_threads, 4, "Of each rank.");
ABSL_FLAG(std::string, directory, "", "Where to write; default: a new one under /tmp.");
ABSL_FLAG(std::string, into, "", "A file in which the table is replaced.");

namespace tessera {
namespace {

constexpr int kRawTransfers = 16;                       // of all ranks that read
constexpr uint64_t kStagingBytes = uint64_t{64} << 20;  // of each rank
constexpr RawDiskShape kRaw = {.threads = 1};           // of each rank that saves

// ---- The ranks, which print "row NAME SECONDS FILE_BYTES MEMORY_BYTES RAW_BYTES_PER_SECOND".

// GPT-2 XL has 25 heads, which no tensor axis divides. With 20, all shapes are the same.
std::string ModelText() {
  const std::string size = absl::GetFlag(FLAGS_size);
  return absl::StrCat("size: '", size, "'", size == "gpt2-1558m" ? " num_attention_heads: 20" : "");
}

// Returns the slowest rank's `seconds`, on every rank.
absl::StatusOr<double> Slowest(Communicator& world, double seconds) {
  TESSERA_RETURN_IF_ERROR(world.AllReduce(std::span(&seconds, 1), ReduceOp::kMax));
  return seconds;
}

// Returns the sum of all ranks' values, on every rank.
absl::StatusOr<int64_t> Sum(Communicator& world, uint64_t value) {
  auto sum = static_cast<int64_t>(value);
  TESSERA_RETURN_IF_ERROR(world.AllReduce(std::span(&sum, 1), ReduceOp::kSum));
  return sum;
}

class JobRank {
 public:
  static absl::StatusOr<std::unique_ptr<JobRank>> Create(Communicator& world) {
    std::unique_ptr<JobRank> rank(new JobRank(world));
    TESSERA_ASSIGN_OR_RETURN(
        rank->state_, GeneratedState::Create(ModelText(), absl::GetFlag(FLAGS_topology), world));
    uint64_t bytes = 0;
    for (const std::span<std::byte> buffer : rank->state_->Buffers()) bytes += buffer.size();
    TESSERA_ASSIGN_OR_RETURN(rank->memory_bytes_, Sum(world, bytes));
    TESSERA_ASSIGN_OR_RETURN(rank->folder_,
                             ckpt::CheckpointFolder::Open(Folder(), {.create_root = true}));
    return rank;
  }

  static std::string Folder() { return absl::GetFlag(FLAGS_directory) + "/checkpoints"; }
  // Holds the checkpoint that a job which loads has saved itself.
  static std::string OwnFolder() { return absl::GetFlag(FLAGS_directory) + "/own"; }

  absl::Status Save() {
    TESSERA_RETURN_IF_ERROR(SaveNaively());
    TESSERA_RETURN_IF_ERROR(SaveInForeground());
    return SaveInBackground();
  }

  // Loads the other job's checkpoint and this job's own, turn about.
  absl::Status Load(int round) {
    TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder own,
                             ckpt::CheckpointFolder::Open(OwnFolder(), {.create_root = true}));
    if (round == 0) {
      TESSERA_RETURN_IF_ERROR(own.Save(1, state_->dict(), SaveOptions(*group_)).status());
      TESSERA_RETURN_IF_ERROR(world_.Barrier());
    }
    for (const bool is_own : {round % 2 == 1, round % 2 == 0}) {
      TESSERA_RETURN_IF_ERROR(is_own ? LoadFrom(own, OwnFolder(), "own_")
                                     : LoadFrom(*folder_, Folder(), "load_"));
    }
    return absl::OkStatus();
  }

 private:
  explicit JobRank(Communicator& world) : world_(world), group_(MakeProcessGroup(&world)) {}

  static ckpt::SaveOptions SaveOptions(ckpt::ProcessGroup& group) {
    return {.group = &group,
            .io_threads = absl::GetFlag(FLAGS_io_threads),
            .staging_bytes = kStagingBytes};
  }

  // Loads the newest checkpoint in `folder`, whose path is `place`, as the row of this kind.
  absl::Status LoadFrom(const ckpt::CheckpointFolder& folder, const std::string& place,
                        const std::string& kind) {
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, folder.Latest());
    TESSERA_ASSIGN_OR_RETURN(std::vector<RawDiskFile> files, FilesOf(checkpoint, place));
    const RawDiskShape shape = {.threads = std::max(1, kRawTransfers / world_.size())};
    TESSERA_ASSIGN_OR_RETURN(const double raw_rate, RawRate(files, [&](RawDiskFile& file) {
                               return file.ReadOnce(shape);
                             }));
    ckpt::LoadReport report;
    TESSERA_ASSIGN_OR_RETURN(
        const double seconds, Timed([&]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              report,
              checkpoint.Load(state_->dict(), {.group = &*group_,
                                               .io_threads = absl::GetFlag(FLAGS_io_threads),
                                               .staging_bytes = kStagingBytes}));
          return absl::OkStatus();
        }));
    TESSERA_RETURN_IF_ERROR(state_->CheckLoaded());
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, Sum(world_, report.bytes_read));
    Print(kind + absl::GetFlag(FLAGS_topology), seconds, bytes, raw_rate);
    return absl::OkStatus();
  }

  // Returns the seconds of the slowest rank, from a moment at which all begin.
  absl::StatusOr<double> Timed(absl::FunctionRef<absl::Status()> work) {
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    const double begin = Now();
    TESSERA_RETURN_IF_ERROR(work());
    return Slowest(world_, Now() - begin);
  }

  // Returns the bytes per second of all ranks that transfer their files, one after the other.
  absl::StatusOr<double> RawRate(std::span<RawDiskFile> files,
                                 absl::FunctionRef<absl::StatusOr<double>(RawDiskFile&)> transfer) {
    TESSERA_RETURN_IF_ERROR(world_.Barrier());
    double seconds = 0;
    uint64_t bytes = 0;
    for (RawDiskFile& file : files) {
      TESSERA_ASSIGN_OR_RETURN(const double rate, transfer(file));
      seconds += static_cast<double>(file.bytes()) / rate;
      bytes += file.bytes();
    }
    TESSERA_ASSIGN_OR_RETURN(seconds, Slowest(world_, seconds));
    TESSERA_ASSIGN_OR_RETURN(const int64_t of_all, Sum(world_, bytes));
    return static_cast<double>(of_all) / seconds;
  }

  void Print(const std::string& row, double seconds, int64_t file_bytes, double raw_rate) const {
    if (world_.rank() != 0) return;
    std::printf("row %s %.6f %ld %ld %.0f\n", row.c_str(), seconds, file_bytes, memory_bytes_,
                raw_rate);
    std::fflush(stdout);
  }

  // The naive format, beside the raw disk, whose rate of writes the saves compare with.
  absl::Status SaveNaively() {
    const std::string directory = absl::GetFlag(FLAGS_directory);
    double raw_read_rate = 0;
    {
      TESSERA_ASSIGN_OR_RETURN(RawDiskFile raw,
                               RawDiskFile::Create(directory, memory_bytes_ / world_.size()));
      const std::span<RawDiskFile> file(&raw, 1);
      TESSERA_ASSIGN_OR_RETURN(raw_write_rate_,
                               RawRate(file, [](RawDiskFile& raw) { return raw.WriteOnce(kRaw); }));
      TESSERA_ASSIGN_OR_RETURN(raw_read_rate,
                               RawRate(file, [](RawDiskFile& raw) { return raw.ReadOnce(kRaw); }));
    }
    const NaiveFile naive(absl::StrCat(directory, "/naive-", world_.rank()), state_->Buffers());
    TESSERA_ASSIGN_OR_RETURN(const double save, Timed([&] { return naive.Save().status(); }));
    Print("naive_save", save, memory_bytes_, raw_write_rate_);
    TESSERA_ASSIGN_OR_RETURN(const double load, Timed([&] { return naive.Load().status(); }));
    Print("naive_load", load, memory_bytes_, raw_read_rate);
    return absl::OkStatus();
  }

  // Saves with a new manager, and again with its plan.
  absl::Status SaveInForeground() {
    int64_t bytes = 0;
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<ckpt::JobSaves> manager,
        ckpt::JobSaves::Open(Folder(), {.save = SaveOptions(*group_),
                                        .on_commit = [&](const ckpt::SaveReport& report) {
                                          bytes = static_cast<int64_t>(report.bytes_written);
                                        }}));
    for (const char* row : {"first_save", "later_save"}) {
      TESSERA_ASSIGN_OR_RETURN(const double seconds, Timed([&] {
                                 return manager->Save({.step = ++step_}, state_->dict());
                               }));
      Print(row, seconds, bytes, raw_write_rate_);
      TESSERA_RETURN_IF_ERROR(DeleteOlder());
    }
    return absl::OkStatus();
  }

  absl::Status SaveInBackground() {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> background,
                             world_.Split(0, world_.rank(), "saves"));
    const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&*background);
    ckpt::AsyncSaver saver(folder_->storage(), {.save = SaveOptions(*group)});
    TESSERA_ASSIGN_OR_RETURN(const double planned, Timed([&] {
                               saver.Prepare(state_->dict());
                               saver.Finish();
                               return absl::OkStatus();
                             }));
    Print("plan", planned, 0, raw_write_rate_);
    double started = 0;
    int64_t bytes = 0;
    TESSERA_ASSIGN_OR_RETURN(const double seconds, Timed([&]() -> absl::Status {
                               const double begin = Now();
                               saver.Start(++step_, state_->dict());
                               started = Now() - begin;
                               for (const ckpt::SaveOutcome& outcome : saver.Finish()) {
                                 TESSERA_RETURN_IF_ERROR(outcome.report.status());
                                 bytes = static_cast<int64_t>(outcome.report->bytes_written);
                               }
                               return absl::OkStatus();
                             }));
    TESSERA_ASSIGN_OR_RETURN(started, Slowest(world_, started));
    Print("start", started, 0, raw_write_rate_);
    Print("background_save", seconds, bytes, raw_write_rate_);
    return DeleteOlder();
  }

  absl::Status DeleteOlder() {
    if (world_.rank() == 0) TESSERA_RETURN_IF_ERROR(folder_->Prune(1));
    return world_.Barrier();
  }

  // The data files as this rank reads them in RawRate(): those of its turn.
  absl::StatusOr<std::vector<RawDiskFile>> FilesOf(const ckpt::Checkpoint& checkpoint,
                                                   const std::string& place) {
    std::vector<RawDiskFile> files;
    for (int i = world_.rank(); i < checkpoint.manifest().files_size(); i += world_.size()) {
      TESSERA_ASSIGN_OR_RETURN(
          RawDiskFile file, RawDiskFile::Open(absl::StrCat(place, "/", checkpoint.directory(), "/",
                                                           checkpoint.manifest().files(i).path())));
      files.push_back(std::move(file));
    }
    return files;
  }

  Communicator& world_;
  const std::unique_ptr<ckpt::ProcessGroup> group_;
  std::unique_ptr<GeneratedState> state_;
  int64_t memory_bytes_ = 0;  // of all ranks, replicas included
  std::optional<ckpt::CheckpointFolder> folder_;
  int64_t step_ = 0;
  double raw_write_rate_ = 0;
};

absl::Status BeRankOfJob(Communicator& world) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<JobRank> rank, JobRank::Create(world));
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    TESSERA_RETURN_IF_ERROR(absl::GetFlag(FLAGS_rank_of) == "save" ? rank->Save()
                                                                   : rank->Load(round));
  }
  return absl::OkStatus();
}

// ---- The table.

struct Row {
  std::vector<double> seconds, ratios;  // by round
  double file_bytes = 0, memory_bytes = 0;
};

struct Table {
  std::map<std::string, Row> rows;
  double parameters = 0, state_bytes = 0;
  double peak_bytes = 0;  // memory of a job
};

void ReadLine(const std::string& line, Table& table) {
  std::array<char, 64> name{};
  double seconds = 0, file_bytes = 0, memory_bytes = 0, raw = 0;
  if (std::sscanf(line.c_str(), "row %63s %lf %lf %lf %lf", name.data(), &seconds, &file_bytes,
                  &memory_bytes, &raw) != 5) {
    return;
  }
  Row& row = table.rows[name.data()];
  row.seconds.push_back(seconds);
  row.ratios.push_back(file_bytes / seconds / raw);
  row.file_bytes = file_bytes;
  row.memory_bytes = memory_bytes;
}

// By how much the available memory of the machine is less than when this object was made, at most.
class MemoryOfJob {
 public:
  ~MemoryOfJob() { Stop(); }
  double Stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    return static_cast<double>(before_ - std::min(before_, least_));
  }

 private:
  void Watch() {
    while (!stopped_) {
      least_ = std::min(least_, AvailableMemoryBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  const uint64_t before_ = AvailableMemoryBytes();
  uint64_t least_ = before_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_{[this] { Watch(); }};
};

absl::Status RunJob(const std::string& what, const std::string& topology,
                    const std::string& directory, Table& table) {
  std::fprintf(stderr, "%s %s\n", what.c_str(), topology.c_str());
  TESSERA_ASSIGN_OR_RETURN(const Topology sizes, ParseTopology(topology));
  MemoryOfJob memory;
  TESSERA_RETURN_IF_ERROR(RunRanks(
      sizes.world_size(),
      absl::StrCat("--rank_of=", what, " --topology=", topology, " --directory='", directory,
                   "' --size=", absl::GetFlag(FLAGS_size), " --rounds=",
                   absl::GetFlag(FLAGS_rounds), " --io_threads=", absl::GetFlag(FLAGS_io_threads)),
      [&](const std::string& line) { ReadLine(line, table); }));
  table.peak_bytes = std::max(table.peak_bytes, memory.Stop());
  return absl::OkStatus();
}

// Adds up the logical tensors of the checkpoint.
absl::Status ReadSizes(Table& table) {
  TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder folder,
                           ckpt::CheckpointFolder::Open(JobRank::Folder()));
  TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, folder.Latest());
  for (const ckpt::TensorInfo& tensor : checkpoint.tensors()) {
    if (!tensor.alias_of.empty()) continue;
    const auto elements = static_cast<double>(ElementCount(tensor.global_shape));
    table.state_bytes += elements * static_cast<double>(ElementSize(tensor.dtype));
    if (tensor.role == ckpt::TensorRole::kWeight) table.parameters += elements;
  }
  return absl::OkStatus();
}

// Llama-2's 7B. Its state has as many bytes for each parameter, and fewer tensors than GPT-2 XL.
constexpr double kParameters7B = 6738415616;

std::string TableLine(const std::string& label, const std::string& name, int processes,
                      Table& table) {
  const Row& row = table.rows[name];
  const double seconds = Median(row.seconds), ratio = Median(row.ratios);
  PrintFigure(absl::StrCat("job_times.", name, ".seconds"), seconds, "s");
  PrintFigure(absl::StrCat("job_times.", name, ".disk_ratio"), ratio);
  return absl::StrFormat("| %s | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %.0f |\n", label,
                         processes, row.memory_bytes / 1e9, row.file_bytes / 1e9, seconds,
                         row.file_bytes / seconds / 1e9, ratio,
                         seconds * kParameters7B / table.parameters);
}

std::string TableText(const std::vector<std::string>& topologies, double load, Table& table) {
  std::string text =
      "| | processes | GB in memory | GB in files | s | GB/s | of raw disk | 7B, computed, s |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  const std::pair<const char*, const char*> of_the_job[] = {
      {"naive save", "naive_save"},
      {"first save", "first_save"},
      {"later save", "later_save"},
      {"later save, in the background", "background_save"},
      {"naive load", "naive_load"}};
  const int savers = ParseTopology(topologies.front())->world_size();
  for (const auto& [label, name] : of_the_job) text += TableLine(label, name, savers, table);
  for (const std::string& topology : topologies) {
    const std::string name = absl::StrCat("load_", topology);
    text += TableLine(
        topology == topologies.front() ? "load, unchanged" : absl::StrCat("load under ", topology),
        name, ParseTopology(topology)->world_size(), table);
    std::vector<double> ratios = table.rows[name].seconds;
    const std::vector<double>& own = table.rows["own_" + topology].seconds;
    for (size_t round = 0; round < ratios.size(); ++round) ratios[round] /= own[round];
    PrintFigure(absl::StrCat("job_times.", name, ".over_own"), Median(ratios));
  }
  const auto milliseconds = [&](const char* name) {
    return Median(table.rows[name].seconds) * 1e3;
  };
  absl::StrAppendFormat(
      &text,
      "\n%s, %.0f M parameters, a state of %.2f GB; medians; rounds: %d. The plan of a save took\n"
      "%.0f ms; `Start()` of the save in the background returned after %.1f ms. A job took at "
      "most\n"
      "%.1f GB of memory. %u cores, with a load of %.1f from other programs at the beginning.\n",
      absl::GetFlag(FLAGS_size), table.parameters / 1e6, table.state_bytes / 1e9,
      absl::GetFlag(FLAGS_rounds), milliseconds("plan"), milliseconds("start"),
      table.peak_bytes / 1e9, std::thread::hardware_concurrency(), load);
  return text;
}

// ---- All jobs.

absl::Status ReplaceTable(const std::string& path, const std::string& table) {
  constexpr std::string_view kBegin = "<!-- tests/perf:job_times -->\n";
  constexpr std::string_view kEnd = "<!-- end of tests/perf:job_times -->\n";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string document = text.str();
  const size_t begin = document.find(kBegin), end = document.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos) {
    return absl::NotFoundError(absl::StrCat(path, " has no place for the table"));
  }
  document.replace(begin + kBegin.size(), end - begin - kBegin.size(), table);
  std::ofstream file(path, std::ios::trunc);
  file << document;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(path);
}

absl::Status MeasureJobs(const std::string& directory) {
  const std::vector<std::string> topologies = absl::GetFlag(FLAGS_topologies);
  absl::SetFlag(&FLAGS_directory, directory);
  double load = 0;
  if (getloadavg(&load, 1) != 1) return absl::UnavailableError("getloadavg");
  Table table;
  TESSERA_RETURN_IF_ERROR(RunJob("save", topologies.front(), directory, table));
  TESSERA_RETURN_IF_ERROR(ReadSizes(table));
  for (const std::string& topology : topologies) {
    TESSERA_RETURN_IF_ERROR(RunJob("load", topology, directory, table));
    std::filesystem::remove_all(JobRank::OwnFolder());
  }
  const std::string text = TableText(topologies, load, table);
  std::printf("%s", text.c_str());
  const std::string into = absl::GetFlag(FLAGS_into);
  return into.empty() ? absl::OkStatus() : ReplaceTable(into, text);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_rank_of).empty()) return tessera::RunMpiRank({}, tessera::BeRankOfJob);
  return tessera::RunProgram("job_times", [] {
    return tessera::WithFolder(absl::GetFlag(FLAGS_directory), tessera::MeasureJobs);
  });
}
