#include "comm/mpi/mpi_world.h"

#include <mpi/mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/no_memory.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "comm/endpoint.h"
#include "comm/mpi/monitor.h"
#include "comm/mpi/mpi_transport.h"

namespace tessera {
namespace {

// Gives ranks that fail at the same time the chance to learn of each other.
constexpr std::chrono::milliseconds kElection(300);
// Time limit for MPI_Abort to end the other ranks, and for MPI_Finalize.
constexpr absl::Duration kAbortTime = absl::Seconds(5);
constexpr absl::Duration kFinalizeTime = absl::Seconds(30);

// Returns "rank 3: " according to the launcher's environment, for messages printed before MPI is
// initialised; empty where the launcher does not provide the rank.
std::string LaunchedAs() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(name);
    if (rank != nullptr) return absl::StrCat("rank ", rank, ": ");
  }
  return "";
}

// Adds "rank 3: " to messages that do not begin with their rank, such as "ranks 0, 2: no such
// file".
std::string WithRank(int rank, const std::string& message) {
  const std::string speaker = message.substr(0, message.find(':'));
  const bool names_ranks = speaker.rfind("rank", 0) == 0 && speaker.size() < message.size() &&
                           speaker.find_first_not_of("ranks, 0123456789andmore") == speaker.npos;
  return names_ranks ? message : absl::StrCat("rank ", rank, ": ", message);
}

}  // namespace

class MpiWorld::Impl {
 public:
  Impl(CommOptions options, std::unique_ptr<Monitor> monitor, MPI_Comm comm)
      : monitor_(std::move(monitor)),
        comm_(comm),
        transport_(comm, monitor_.get(), options.part_bytes),
        endpoint_(&transport_, std::move(options)),
        world_(&endpoint_) {}

  // Connects all ranks. Has no timeout of its own: the monitor's watchdog limits it.
  absl::Status Connect() {
    uint64_t secret = transport_.rank() == 0 ? RandomBits() : 0;
    MPI_Bcast(&secret, 1, MPI_UINT64_T, 0, comm_);
    std::vector<MonitorAddress> peers(transport_.size());
    MPI_Allgather(&monitor_->address(), sizeof(MonitorAddress), MPI_BYTE, peers.data(),
                  sizeof(MonitorAddress), MPI_BYTE, comm_);
    monitor_->Start(transport_.rank(), std::move(peers), secret,
                    [this] { return endpoint_.Activity(); });
    return absl::OkStatus();
  }

  Communicator& world() { return world_; }

  int Finish(const absl::Status& status) {
    if (!status.ok()) world_.Abort(status);
    // A rank that is done still waits for the others, because they may fail.
    if (transport_.failed() || !world_.Barrier({.what = "end of the run"}).ok()) Die();
    monitor_->Watch(kFinalizeTime,
                    absl::StrCat("rank ", transport_.rank(),
                                 ": MPI_Finalize does not return; the run itself is complete"));
    MPI_Comm_free(&comm_);
    MPI_Finalize();
    monitor_->Watch(std::nullopt, "");
    monitor_->Stop();
    return 0;
  }

 private:
  [[noreturn]] void Die() {
    const int rank = transport_.rank();
    std::this_thread::sleep_for(kElection);
    const Failure failure = transport_.failure();
    const std::string message = absl::StrCat(WithRank(failure.rank, failure.message), "\n");
    // The watchdog also covers streams that block.
    monitor_->Watch(kAbortTime, "");
    if (failure.rank == rank) {
      // A stderr that blocks must not keep its lock, which the end of the process may take.
      WriteBounded(STDERR_FILENO, Printable(message), kLastMessageTime);
      std::fflush(nullptr);
      // User errors have an exit code of their own.
      MPI_Abort(MPI_COMM_WORLD, failure.code == absl::StatusCode::kInvalidArgument ? 2 : 1);
    } else {
      // The elected rank ends the job, and this process with it. Otherwise this process ends
      // itself:
      std::fflush(nullptr);
      std::this_thread::sleep_for(absl::ToChronoMilliseconds(kAbortTime));
    }
    _exit(1);
  }

  std::unique_ptr<Monitor> monitor_;
  MPI_Comm comm_;
  MpiTransport transport_;
  Endpoint endpoint_;
  Communicator world_;
};

MpiWorld::MpiWorld(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MpiWorld::~MpiWorld() = default;

absl::StatusOr<std::unique_ptr<MpiWorld>> MpiWorld::Create(CommOptions options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Monitor> monitor, Monitor::Create());
  monitor->Watch(
      options.start_timeout,
      absl::StrCat(LaunchedAs(), "MPI_Init did not complete: some rank has not arrived after ",
                   absl::FormatDuration(options.start_timeout)));
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    return absl::UnavailableError("MPI_Init failed");
  }
  int* highest_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest_tag, &known);
  if (provided < MPI_THREAD_SERIALIZED || !known ||
      *highest_tag < static_cast<int64_t>(kMatchLimit) - 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this MPI has thread level ", provided, " and tags up to ", known ? *highest_tag : 0,
        "; needed are ", MPI_THREAD_SERIALIZED, " and ", kMatchLimit - 1));
  }
  MPI_Comm comm = MPI_COMM_NULL;
  if (MPI_Comm_dup(MPI_COMM_WORLD, &comm) != MPI_SUCCESS) {
    return absl::UnavailableError("MPI_Comm_dup failed");
  }
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  Monitor* const watch = monitor.get();
  auto impl = std::make_unique<Impl>(std::move(options), std::move(monitor), comm);
  TESSERA_RETURN_IF_ERROR(impl->Connect());
  watch->Watch(std::nullopt, "");
  return std::unique_ptr<MpiWorld>(new MpiWorld(std::move(impl)));
}

Communicator& MpiWorld::world() { return impl_->world(); }

int MpiWorld::Finish(const absl::Status& status) { return impl_->Finish(status); }

int RunMpiRank(CommOptions options, const std::function<absl::Status(Communicator&)>& rank_main) {
  absl::StatusOr<std::unique_ptr<MpiWorld>> world = MpiWorld::Create(std::move(options));
  if (!world.ok()) {
    Print(absl::StrCat(world.status().message(), "\n"), stderr);
    return 1;
  }
  return (*world)->Finish(CatchExceptions("go on", [&] { return rank_main((*world)->world()); }));
}

}  // namespace tessera

// LeakSanitizer calls this where a program is built with it. Suppressions by name do not work for
// leaks of Open MPI's plugins, which are unloaded before leaks are searched.
extern "C" int __lsan_is_turned_off();  // NOLINT(bugprone-reserved-identifier)
extern "C" int __lsan_is_turned_off() {
  int started = 0;
  MPI_Initialized(&started);
  return started;
}
