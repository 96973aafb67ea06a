#include "trainer/metrics/record_file.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/parse_json.h"
#include "base/replace_file.h"
#include "base/status_macros.h"

namespace tessera {

double SecondsSince1970() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

absl::StatusOr<std::unique_ptr<RecordFile>> RecordFile::Replace(const std::string& path,
                                                                std::string_view contents) {
  TESSERA_RETURN_IF_ERROR(ReplaceFile(path, contents));
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, FileDescriptor::OpenForAppending(path));
  return std::unique_ptr<RecordFile>(new RecordFile(std::move(file), path));
}

absl::StatusOr<std::unique_ptr<RecordFile>> RecordFile::Continue(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string log, ReadRecordFile(path));
  std::string kept;
  bool is_damaged = false;
  const size_t whole_bytes = ForEachLine(log, [&](const RecordLine& line) {
    is_damaged |= line.damaged;
    if (line.value.is_object()) kept.append(line.text).append("\n");
  });
  if (is_damaged || whole_bytes < log.size()) return Replace(path, kept);
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, FileDescriptor::OpenForAppending(path));
  return std::unique_ptr<RecordFile>(new RecordFile(std::move(file), path));
}

absl::Status RecordFile::Write(std::string_view text) {
  const MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  status_ = file_.IsAtItsPath()
                ? file_.Append(text)
                : absl::FailedPreconditionError(absl::StrCat(
                      path_,
                      " is not this run's file any more: another program has deleted, moved "
                      "or replaced it"));
  return status_;
}

absl::Status RecordFile::Sync() {
  TESSERA_RETURN_IF_ERROR(status());
  // Writers do not wait for the disk.
  absl::Status synced = file_.SyncContents();
  const MutexLock lock(&mutex_);
  status_.Update(synced);
  return status_;
}

absl::Status RecordFile::status() const {
  const MutexLock lock(&mutex_);
  return status_;
}

absl::StatusOr<std::string> ReadRecordFile(const std::string& path) {
  absl::StatusOr<std::string> log = ReadFile(path, std::numeric_limits<int64_t>::max());
  if (absl::IsNotFound(log.status())) return std::string();
  return log;
}

RecordLine ParseRecordLine(std::string_view text) {
  const size_t zeros_end = text.rfind('\0') + 1;  // 0 without any
  text.remove_prefix(zeros_end);
  RecordLine line{.text = text, .value = ParseJson(text)};
  line.damaged = zeros_end > 0 || !line.value.is_object();
  return line;
}

size_t ForEachLine(std::string_view log, absl::FunctionRef<void(const RecordLine&)> take) {
  size_t begin = 0;
  size_t end = 0;
  for (int64_t number = 1; (end = log.find('\n', begin)) != log.npos; ++number) {
    RecordLine line = ParseRecordLine(log.substr(begin, end - begin));
    line.number = number;
    begin = end + 1;
    take(line);
  }
  return begin;
}

}  // namespace tessera
