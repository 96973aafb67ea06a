#ifndef TESSERA_TRAINER_APP_RANK_OUTPUT_H_
#define TESSERA_TRAINER_APP_RANK_OUTPUT_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Where other ranks write what rank 0 prints on the terminal: RUN_DIR/rank-00003.log, or, without a
// run_dir, nowhere. Only one rank prints for the user; LOG(ERROR) messages reach the terminal from
// any rank.
class RankOutput {
 public:
  // Creates the folder; appends to an existing file. InvalidArgument naming run_dir where it cannot
  // be written. From here on, until the end of the process, glog's messages go there.
  static absl::StatusOr<std::unique_ptr<RankOutput>> Open(const std::string& run_dir, int rank);

  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;
  ~RankOutput();

  std::FILE* file() { return file_; }

 private:
  class LogFile;
  explicit RankOutput(std::FILE* file);

  std::FILE* const file_;
  std::unique_ptr<LogFile> log_file_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_RANK_OUTPUT_H_
