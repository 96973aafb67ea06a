#include "trainer/metrics/event_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/byte_order.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/replace_file.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using tensorboard::Event;

constexpr size_t kFooterBytes = 4;
constexpr int kStringType = 7;

template <typename Word>
std::string LittleEndian(Word word) {
  std::string bytes;
  AppendLittleEndian(word, bytes);
  return bytes;
}

// The checksum of a record, which may itself contain checksums.
std::string MaskedCrc(std::string_view data) {
  return LittleEndian<uint32_t>(std::rotr(Crc32c(data), 15) + 0xA282EAD8u);
}

double SecondsSince1970() { return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()); }

// The numbers of a record of metrics.jsonl; nullopt where the line is not one.
std::optional<Event> EventOfRecord(std::string_view line) {
  const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return std::nullopt;
  const auto step = record.find("step"), kind = record.find("kind");
  if (step == record.end() || !step->is_number_integer()) return std::nullopt;
  if (kind == record.end() || (*kind != "step" && *kind != "eval")) return std::nullopt;
  const bool trains = *kind == "step";
  Event event;
  event.set_step(step->get<int64_t>());
  const nlohmann::json fields = record.flatten();
  for (const auto& [path, value] : fields.items()) {
    if (path == "/step" || !(value.is_number() || value.is_null())) continue;
    tensorboard::Summary::Value& scalar = *event.mutable_summary()->add_value();
    scalar.set_tag(trains                 ? absl::StrCat("train", path)
                   : path == "/eval_loss" ? "validation/loss"
                                          : absl::StrCat("validation", path));
    scalar.set_simple_value(value.is_null() ? std::numeric_limits<float>::quiet_NaN()
                                            : static_cast<float>(value.get<double>()));
  }
  return event;
}

// Calls `add` for each whole line that `file` has from its position on. `line` is the beginning of
// an incomplete one, from the last call and for the next.
void ReadNewLines(std::FILE* file, std::string& line, const std::function<void(Event)>& add) {
  std::clearerr(file);  // an end that was reached once may have moved
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) {
    line.append(buffer, size);
    size_t start = 0;
    for (size_t end; (end = line.find('\n', start)) != line.npos; start = end + 1) {
      std::optional<Event> event = EventOfRecord(std::string_view(line).substr(start, end - start));
      if (event.has_value()) add(*std::move(event));
    }
    line.erase(0, start);
  }
}

// Two events of one step differ in the tags that they have.
std::pair<int64_t, std::string> KeyOf(const Event& event) {
  return {event.step(), event.summary().value().empty() ? "" : event.summary().value(0).tag()};
}

// Added by a call, and not from metrics.jsonl.
bool IsAdded(const Event& event) {
  if (event.summary().value().empty()) return false;
  const tensorboard::Summary::Value& value = event.summary().value(0);
  return value.has_tensor() || absl::StartsWith(value.tag(), "save/") ||
         absl::StartsWith(value.tag(), "resume/");
}

absl::Status EventFileError(const std::string& what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write events for TensorBoard: ", what));
}

}  // namespace

std::string EventRecord(const Event& event) {
  const std::string data = event.SerializeAsString();
  const std::string length = LittleEndian<uint64_t>(data.size());
  return absl::StrCat(length, MaskedCrc(length), data, MaskedCrc(data));
}

std::optional<uint64_t> EventRecordBytes(std::string_view header) {
  if (header.size() < kEventHeaderBytes) return std::nullopt;
  const std::string_view length = header.substr(0, sizeof(uint64_t));
  const auto size = LoadLittleEndian<uint64_t>(length.data());
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();  // of a message of protobuf
  if (header.substr(sizeof(size), kFooterBytes) != MaskedCrc(length) || size > kMost) {
    return std::nullopt;
  }
  return kEventHeaderBytes + size + kFooterBytes;
}

std::optional<Event> ParseEventRecord(std::string_view record) {
  if (record.size() < kEventHeaderBytes + kFooterBytes) return std::nullopt;
  record.remove_prefix(kEventHeaderBytes);
  const std::string_view data = record.substr(0, record.size() - kFooterBytes);
  Event event;
  if (record.substr(data.size()) != MaskedCrc(data) ||
      !event.ParseFromArray(data.data(), static_cast<int>(data.size()))) {
    return std::nullopt;
  }
  return event;
}

std::vector<Event> ReadEvents(std::string_view file, bool* damaged) {
  std::vector<Event> events;
  while (true) {
    const std::optional<uint64_t> bytes = EventRecordBytes(file);
    if (!bytes.has_value() || *bytes > file.size()) break;
    std::optional<Event> event = ParseEventRecord(file.substr(0, *bytes));
    if (!event.has_value()) break;
    events.push_back(*std::move(event));
    file.remove_prefix(*bytes);
  }
  if (damaged != nullptr) *damaged = !file.empty();
  return events;
}

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Open(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kEventFileName);
  const std::vector<Event> old = ReadEvents(ReadWholeFile(path).value_or(""));
  std::map<std::pair<int64_t, std::string>, double> times;
  for (const Event& event : old) times[KeyOf(event)] = event.wall_time();

  std::FILE* records = std::fopen(absl::StrCat(folder, "/metrics.jsonl").c_str(), "rb");
  if (records == nullptr) return EventFileError(folder);
  Event version;
  version.set_wall_time(old.empty() ? SecondsSince1970() : old[0].wall_time());
  version.set_file_version("brain.Event:2");
  std::string contents = EventRecord(version), line;
  int64_t last_step = -1;
  ReadNewLines(records, line, [&](Event event) {
    const auto time = times.find(KeyOf(event));
    event.set_wall_time(time == times.end() ? SecondsSince1970() : time->second);
    last_step = std::max(last_step, event.step());
    contents += EventRecord(event);
  });
  for (const Event& event : old) {
    if (IsAdded(event) && event.step() <= last_step) contents += EventRecord(event);
  }
  absl::Status status = ReplaceFile(path, contents);
  std::FILE* file = status.ok() ? std::fopen(path.c_str(), "ab") : nullptr;
  if (file == nullptr) {
    if (status.ok()) status = EventFileError(path);
    std::fclose(records);
    return status;
  }
  std::unique_ptr<EventFile> events(new EventFile(records, file));
  events->line_ = std::move(line);
  return events;
}

EventFile::~EventFile() {
  std::fclose(records_);
  std::fclose(file_);
}

absl::Status EventFile::Write(const std::string& bytes) {
  if (failed_) return absl::FailedPreconditionError("the event file has failed before");
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size() &&
      std::fflush(file_) == 0) {
    return absl::OkStatus();
  }
  failed_ = true;
  return EventFileError(kEventFileName);
}

absl::Status EventFile::Follow() {
  std::string bytes;
  ReadNewLines(records_, line_, [&bytes](Event event) {
    event.set_wall_time(SecondsSince1970());
    bytes += EventRecord(event);
  });
  return Write(bytes);
}

absl::Status EventFile::AddScalars(int64_t step, const std::map<std::string, double>& by_tag) {
  Event event;
  event.set_wall_time(SecondsSince1970());
  event.set_step(step);
  for (const auto& [tag, number] : by_tag) {
    tensorboard::Summary::Value& scalar = *event.mutable_summary()->add_value();
    scalar.set_tag(tag);
    scalar.set_simple_value(static_cast<float>(number));
  }
  return Write(EventRecord(event));
}

absl::Status EventFile::AddText(int64_t step, const std::string& tag, const std::string& text) {
  Event event;
  event.set_wall_time(SecondsSince1970());
  event.set_step(step);
  tensorboard::Summary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(tag);
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value.mutable_tensor()->set_dtype(kStringType);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(1);
  // TensorBoard shows UTF-8 only, and a sample may end inside of a character.
  value.mutable_tensor()->add_string_val(
      nlohmann::json::parse(
          nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .get<std::string>());
  return Write(EventRecord(event));
}

}  // namespace tessera
