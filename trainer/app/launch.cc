#include "trainer/app/launch.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/errno_status.h"
#include "base/files.h"
#include "glog/logging.h"

namespace tessera {
namespace {

std::optional<int> NumberFrom(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

}  // namespace

Launch DetectLaunch() {
  Launch launch;
  // Variables of Open MPI's own launcher, then of srun's ways to offer its processes to MPI.
  for (const char* rank : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const std::optional<int> number = NumberFrom(rank); number.has_value()) {
      launch.in_world = true;
      launch.rank = *number;
      break;
    }
  }
  // srun without PMI: MPI would not see the other processes, and the world's size would be wrong.
  if (!launch.in_world && NumberFrom("SLURM_STEP_NUM_TASKS").value_or(1) > 1) {
    launch.in_world = true;
    launch.rank = NumberFrom("SLURM_PROCID").value_or(0);
  }
  // A rank's own stdout may be a pseudo-terminal whatever the launcher's stdout is.
  if (launch.in_world) launch.terminal_columns = NumberFrom("TESSERA_TERMINAL_COLUMNS").value_or(0);
  return launch;
}

absl::Status CheckWorldSize(const Topology& topology, int processes) {
  if (processes == topology.world_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data_parallel_size=", topology.data, " * tensor_model_parallel_size=", topology.tensor,
      " * pipeline_model_parallel_size=", topology.pipeline, " needs ", topology.world_size(),
      topology.world_size() == 1 ? " process, but " : " processes, but ", processes,
      processes == 1 ? " was started: " : " were started: ",
      topology.world_size() == 1 ? "start it without mpirun"
                                 : absl::StrCat("use mpirun -n ", topology.world_size())));
}

// glog's messages, to the rank's file.
class RankOutput::LogFile : public google::LogSink {
 public:
  explicit LogFile(std::FILE* file) : file_(file) {
    FLAGS_logtostderr = false;
    FLAGS_stderrthreshold = google::GLOG_ERROR;
    // Otherwise glog would create files of its own.
    for (const google::LogSeverity severity :
         {google::GLOG_INFO, google::GLOG_WARNING, google::GLOG_ERROR, google::GLOG_FATAL}) {
      google::SetLogDestination(severity, "");
    }
    google::AddLogSink(this);
  }
  ~LogFile() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char* base_filename, int line,
            const google::LogMessageTime& time, const char* message, size_t length) override {
    const std::string text = ToString(severity, base_filename, line, time, message, length) + "\n";
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
  }

 private:
  std::FILE* const file_;
};

RankOutput::RankOutput(std::FILE* file) : file_(file), log_file_(std::make_unique<LogFile>(file)) {}

RankOutput::~RankOutput() {
  log_file_.reset();
  std::fclose(file_);
}

absl::StatusOr<std::unique_ptr<RankOutput>> RankOutput::Open(const std::string& run_dir, int rank) {
  if (run_dir.empty()) {
    std::FILE* const nowhere = std::fopen("/dev/null", "ae");
    if (nowhere == nullptr) {
      const absl::Status reason = ErrnoStatus(errno);
      return absl::Status(reason.code(), absl::StrCat("cannot open /dev/null: ", reason.message()));
    }
    return std::unique_ptr<RankOutput>(new RankOutput(nowhere));
  }
  std::error_code error;
  std::filesystem::create_directories(run_dir, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("run_dir=", run_dir, ": cannot create the folder: ", error.message()));
  }
  const std::string path = absl::StrFormat("%s/rank-%05d.log", run_dir, rank);
  absl::StatusOr<ScopedFd> fd = OpenRegularFile(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND);
  std::FILE* const file = fd.ok() ? fdopen(fd->get(), "a") : nullptr;
  if (file == nullptr) {
    const absl::Status reason = fd.ok() ? ErrnoStatus(errno) : fd.status();
    return absl::InvalidArgumentError(
        absl::StrCat("run_dir: cannot write ", path, ": ", reason.message()));
  }
  fd->release();
  return std::unique_ptr<RankOutput>(new RankOutput(file));
}

}  // namespace tessera
