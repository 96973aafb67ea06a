#include "trainer/metrics/event_file.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status_macros.h"
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

// Returns the checksum of a record, which may itself contain checksums.
std::string MaskedCrc(std::string_view data) {
  return LittleEndian<uint32_t>(std::rotr(Crc32c(data), 15) + 0xA282EAD8u);
}

// Returns the numbers of a record of metrics.jsonl; nullopt if it is not about a step.
std::optional<Event> EventOfRecord(const nlohmann::json& record) {
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

// Calls `add` for each whole line of `file` from `offset` on, and moves `offset` behind the last
// one.
absl::Status ReadNewLines(const FileDescriptor& file, int64_t& offset,
                          const std::function<void(Event)>& add) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t size, file.SizeBytes());
  std::string text(std::max<int64_t>(size - offset, 0), '\0');
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t read,
      file.ReadAt(offset, std::span(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  text.resize(read);
  offset += static_cast<int64_t>(ForEachLine(text, [&](const RecordLine& line) {
    std::optional<Event> event = EventOfRecord(line.value);
    if (event.has_value()) add(*std::move(event));
  }));
  return absl::OkStatus();
}

// Two events of one step differ in the tags that they have.
std::pair<int64_t, std::string> KeyOf(const Event& event) {
  return {event.step(), event.summary().value().empty() ? "" : event.summary().value(0).tag()};
}

// Returns whether the event was added by a call, and not from metrics.jsonl.
bool IsAdded(const Event& event) {
  if (event.summary().value().empty()) return false;
  const tensorboard::Summary::Value& value = event.summary().value(0);
  return value.has_tensor() || absl::StartsWith(value.tag(), "save/") ||
         absl::StartsWith(value.tag(), "resume/") || absl::StartsWith(value.tag(), "replica/");
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

  TESSERA_ASSIGN_OR_RETURN(FileDescriptor records,
                           FileDescriptor::OpenForReading(absl::StrCat(folder, "/metrics.jsonl")));
  Event version;
  version.set_wall_time(old.empty() ? SecondsSince1970() : old[0].wall_time());
  version.set_file_version("brain.Event:2");
  std::string contents = EventRecord(version);
  int64_t last_step = -1, offset = 0;
  TESSERA_RETURN_IF_ERROR(ReadNewLines(records, offset, [&](Event event) {
    const auto time = times.find(KeyOf(event));
    event.set_wall_time(time == times.end() ? SecondsSince1970() : time->second);
    last_step = std::max(last_step, event.step());
    contents += EventRecord(event);
  }));
  for (const Event& event : old) {
    if (IsAdded(event) && event.step() <= last_step) contents += EventRecord(event);
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<RecordFile> file, RecordFile::Replace(path, contents));
  return std::unique_ptr<EventFile>(new EventFile(std::move(records), offset, std::move(file)));
}

absl::Status EventFile::Follow() {
  std::string bytes;
  TESSERA_RETURN_IF_ERROR(ReadNewLines(records_, offset_, [&bytes](Event event) {
    event.set_wall_time(SecondsSince1970());
    bytes += EventRecord(event);
  }));
  return file_->Write(bytes);
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
  return file_->Write(EventRecord(event));
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
  return file_->Write(EventRecord(event));
}

}  // namespace tessera
