#include "trainer/app/rank_output.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"

namespace tessera {

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
  std::string path = "/dev/null";
  if (!run_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(run_dir, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("run_dir=", run_dir, ": cannot create the folder: ", error.message()));
    }
    path = absl::StrFormat("%s/rank-%05d.log", run_dir, rank);
  }
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("run_dir: cannot write ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<RankOutput>(new RankOutput(file));
}

}  // namespace tessera
