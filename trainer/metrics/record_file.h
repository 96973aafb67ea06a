#ifndef TESSERA_TRAINER_METRICS_RECORD_FILE_H_
#define TESSERA_TRAINER_METRICS_RECORD_FILE_H_

// Files to which records are added during a run, and logs of JSON lines.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "base/mutex.h"
#include "nlohmann/json.hpp"

namespace tessera {

// Returns the time of a record that is made now.
double SecondsSince1970();

// An open file to which only this process, the holder of the run's folder, adds. If somebody else
// has deleted, moved or replaced the file, the next write returns an error.
//
// Records have reached the operating system when the call returns: a killed process loses none, and
// a power loss only those after the last Sync(). Thread-safe.
class RecordFile {
 public:
  // Opens a file with these contents, which replace an existing file by rename.
  static absl::StatusOr<std::unique_ptr<RecordFile>> Replace(const std::string& path,
                                                             std::string_view contents);
  // Opens a log of JSON lines to continue it, or begins one. Lines that are damaged or torn are
  // dropped.
  static absl::StatusOr<std::unique_ptr<RecordFile>> Continue(const std::string& path);

  // Add records, and make them durable. After an error nothing more is written: these methods and
  // status() return the first one. FailedPrecondition: the file is no longer this process's.
  // ResourceExhausted: no room.
  absl::Status Write(std::string_view text);
  absl::Status Sync();
  absl::Status status() const;

 private:
  RecordFile(FileDescriptor file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  const FileDescriptor file_;
  const std::string path_;
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Returns the bytes of a log; empty if there is no such file.
absl::StatusOr<std::string> ReadRecordFile(const std::string& path);

// A line of a log, which is one JSON object unless it is damaged.
struct RecordLine {
  int64_t number = 0;     // from 1
  std::string_view text;  // without the line break, and without what is damaged before it
  nlohmann::json value;   // an object if the line is a record
  // Whether the line, or a part of it, is not an object. After a power loss, a file system may
  // leave zero bytes; the text after the last of them may be a record.
  bool damaged = false;
};

// Parses a line; `text` has no line break.
RecordLine ParseRecordLine(std::string_view text);

// Calls `take` with each line of a log, except a torn one at its end, left by a process that died.
// No content of a log is an error. Returns the size of the whole lines.
size_t ForEachLine(std::string_view log, absl::FunctionRef<void(const RecordLine&)> take);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_RECORD_FILE_H_
