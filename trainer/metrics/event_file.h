#ifndef TESSERA_TRAINER_METRICS_EVENT_FILE_H_
#define TESSERA_TRAINER_METRICS_EVENT_FILE_H_

// The event file that TensorBoard shows, a copy of metrics.jsonl in TensorBoard's format.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "trainer/metrics/event.pb.h"
#include "trainer/metrics/record_file.h"

namespace tessera {

inline constexpr char kEventFileName[] = "events.out.tfevents.tessera";

// Returns one record of an event file: length, data, and a checksum of each.
std::string EventRecord(const tensorboard::Event& event);

// Size of a record's length and its checksum.
inline constexpr size_t kEventHeaderBytes = 12;

// Returns the bytes of the record that begins with this header; nullopt if the header is damaged.
std::optional<uint64_t> EventRecordBytes(std::string_view header);

// Returns the event of a whole record; nullopt if its data are damaged.
std::optional<tensorboard::Event> ParseEventRecord(std::string_view record);

// Returns the events of a file up to the first record that is incomplete or damaged; sets `damaged`
// (may be null) to whether there is one.
std::vector<tensorboard::Event> ReadEvents(std::string_view file, bool* damaged = nullptr);

// The event file of a run folder. Has the scalars of metrics.jsonl, where each number of a "step"
// record has the tag "train/NAME" and of an "eval" record "validation/NAME", and the added scalars
// of saves and resumes.
class EventFile {
 public:
  // Begins the file anew, by rename, with the records that metrics.jsonl has at present. Steps that
  // the old file had keep their times. Added scalars and texts up to the last recorded step remain.
  static absl::StatusOr<std::unique_ptr<EventFile>> Open(const std::string& folder);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Adds the records that metrics.jsonl has received since the last call. After an error nothing
  // more is written.
  absl::Status Follow();
  // Adds numbers of a save, "save/NAME", or of a resume, "resume/NAME".
  absl::Status AddScalars(int64_t step, const std::map<std::string, double>& by_tag);
  // Adds a text, for the text plugin.
  absl::Status AddText(int64_t step, const std::string& tag, const std::string& text);

 private:
  EventFile(FileDescriptor records, int64_t offset, std::unique_ptr<RecordFile> file)
      : records_(std::move(records)), offset_(offset), file_(std::move(file)) {}

  const FileDescriptor records_;  // metrics.jsonl
  int64_t offset_;                // in it: what is before was copied
  const std::unique_ptr<RecordFile> file_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_METRICS_EVENT_FILE_H_
