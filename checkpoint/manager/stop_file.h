#ifndef TESSERA_CHECKPOINT_MANAGER_STOP_FILE_H_
#define TESSERA_CHECKPOINT_MANAGER_STOP_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::ckpt {

// A request in a stop file, by which a person asks a job to save and to end.
struct StopRequest {
  // N > 0: save at step N and end the run. N < 0: save at step -N and continue. 0: nothing.
  int64_t step = 0;
  // Counts the changes of the file, so that one value is acted upon once. 1: the contents that the
  // file had when the run began; 0: never read.
  int64_t version = 0;
};

// Parses the contents of a stop file: one integer, with white space around it. Returns 0 for an
// empty file; InvalidArgument for anything else.
absl::StatusOr<int64_t> ParseStopFile(std::string_view contents);

// A file by which a person, or another program, asks a run to save and to end; see StopRequest.
//
// A separate thread reads the file, because a file server that does not answer must not delay
// training. Only the constructor waits for a read, for `first_read` at most. Not thread-safe.
class StopFile {
 public:
  // `acted_upon` is the identity of a request that has ended an earlier run. If the file is still
  // the same, it requests nothing.
  explicit StopFile(const std::string& path, const std::string& acted_upon = "",
                    absl::Duration first_read = absl::Seconds(2));
  // Does not wait for a read in progress.
  ~StopFile();
  StopFile(const StopFile&) = delete;
  StopFile& operator=(const StopFile&) = delete;

  // Returns the request that the newest finished read has found, and lets the thread read again. A
  // missing file is the same as an empty one.
  StopRequest Poll();

  // Returns a short text, for the constructor, that distinguishes the request of this version from
  // others of the same path, at any time and in other processes. Empty if the file has changed
  // since.
  std::string Identity(int64_t version) const;

  // Returns a sentence about contents that are not an integer, about a file that cannot be read, or
  // about a path that leads to another folder than the one where the file is, once for each. Empty
  // if there is nothing to report.
  std::string TakeNote();

 private:
  struct Shared;
  static void Read(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this object
  bool has_thread_ = false;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_STOP_FILE_H_
