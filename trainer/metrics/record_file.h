#ifndef TESSERA_TRAINER_METRICS_RECORD_FILE_H_
#define TESSERA_TRAINER_METRICS_RECORD_FILE_H_

// Files of a run to which records are added as long as it goes on, and logs of JSON lines.

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

// An open file, to which this process alone adds: whoever holds the run's folder. That the file was
// deleted, moved or replaced by somebody else is an error of the next write.
//
// What is written has reached the operating system before the call returns: a killed process loses
// none of it, a power loss what came after the last Sync(). Thread-safe.
class RecordFile {
 public:
  // Begins with these contents, which replace an existing file by rename.
  static absl::StatusOr<std::unique_ptr<RecordFile>> Replace(const std::string& path,
                                                             std::string_view contents);
  // Continues a log of JSON lines, or begins one. Lines that are damaged or torn are dropped.
  static absl::StatusOr<std::unique_ptr<RecordFile>> Continue(const std::string& path);

  // After an error nothing more is written: these and status() return the first one.
  // FailedPrecondition: the file is no longer this process's. ResourceExhausted: no room.
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

// The bytes of a log; empty where there is no such file.
absl::StatusOr<std::string> ReadRecordFile(const std::string& path);

// A line of a log: one JSON object, as far as it is whole.
struct RecordLine {
  int64_t number = 0;     // from 1
  std::string_view text;  // without the line break, and without what is damaged before it
  nlohmann::json value;   // an object if the line is a record
  // It is not an object, or only a part of it is. After a power loss, a file system may leave zero
  // bytes; the text after the last of them may be a record.
  bool damaged = false;
};

// `text` without its line break.
RecordLine ParseRecordLine(std::string_view text);

// Calls `take` with each line of a log, except a torn one at its end, which a process that died has
// left. No content of a log is an error. Returns the size of the whole lines.
size_t ForEachLine(std::string_view log, absl::FunctionRef<void(const RecordLine&)> take);

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_RECORD_FILE_H_
