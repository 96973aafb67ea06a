#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/manifest.h"

namespace tessera::ckpt {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr absl::string_view kMetadataKey = "__metadata__";

// Precondition: valid UTF-8, because dump throws otherwise.
std::string Quoted(const std::string& text) { return Json(text).dump(); }

// Escapes and truncates a name from an untrusted header, which may contain any bytes and have any
// length, for a message.
std::string Shown(const std::string& name) { return absl::CHexEscape(name.substr(0, 200)); }

// Returns whether a text has the form of "F8_E8M0", "C64", and other names of dtypes.
bool IsDTypeName(std::string_view text) {
  return !text.empty() && text.size() <= 16 && std::ranges::all_of(text, [](char c) {
    return ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_';
  });
}

absl::Status CheckEntry(SafetensorsEntry& entry) {
  if (!IsValidUtf8(entry.key)) return absl::InvalidArgumentError("a key is not valid UTF-8");
  const absl::Status wrong =
      absl::InvalidArgumentError(absl::StrCat("key ", Quoted(entry.key), " is not allowed"));
  if (entry.key.empty() || entry.key == kMetadataKey) return wrong;
  const size_t element_bytes = ElementSize(entry.dtype);
  if (element_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("key ", entry.key, ": unknown dtype"));
  }
  const absl::StatusOr<int64_t> length =
      CheckedByteCount(entry.shape, static_cast<int64_t>(element_bytes));
  if (!length.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", entry.key, ": ", length.status().message()));
  }
  entry.length_bytes = *length;
  return absl::OkStatus();
}

// Returns the entries in the order of their data. Larger elements come first, which keeps tensors
// aligned: the data begins aligned, and a tensor's length is a multiple of its element size.
std::vector<SafetensorsEntry*> DataOrder(std::vector<SafetensorsEntry>& entries) {
  std::vector<SafetensorsEntry*> order;
  for (SafetensorsEntry& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(),
                   [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
                     return ElementSize(a->dtype) > ElementSize(b->dtype);
                   });
  return order;
}

absl::StatusOr<std::string> MetadataJson(const std::map<std::string, std::string>& metadata) {
  std::string json = absl::StrCat("\"", kMetadataKey, "\":{");
  for (const auto& [name, value] : metadata) {
    if (!IsValidUtf8(name) || !IsValidUtf8(value)) {
      return absl::InvalidArgumentError("__metadata__ is not valid UTF-8");
    }
    if (json.back() != '{') json += ',';
    absl::StrAppend(&json, Quoted(name), ":", Quoted(value));
  }
  return json += '}';
}

absl::Status DamagedHeader(uint64_t offset_bytes, absl::string_view message) {
  return absl::DataLossError(
      absl::StrCat("safetensors header: offset ", offset_bytes, ": ", message));
}

// Receives the events of the JSON parser and accepts only a header's structure. Builds no tree, so
// that a hostile header costs no more memory than its entries.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  const std::string& error() const { return error_; }
  size_t error_position() const { return error_position_; }

  bool null() override {
    const bool is_metadata = state_ == State::kTop && entry_.key == kMetadataKey;
    return is_metadata || Fail("null is not allowed");
  }
  bool boolean(bool) override { return Fail("a boolean is not allowed"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Fail("the number " + Shown(text) + " is not allowed");
  }
  bool binary(binary_t&) override { return Fail("binary data is not allowed"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      const std::optional<int64_t> extent = CheckedCast<int64_t>(value);
      if (!extent) return Fail("an extent is too large");
      if (entry_.shape.size() == kMaxDims) return Fail("too many dims");
      entry_.shape.push_back(*extent);
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_.size() == 2) return Fail("more than two data_offsets");
      offsets_.push_back(value);
      return true;
    }
    return Fail("a number is not allowed here");
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      if (!header_.metadata.emplace(field_, value).second) {
        return Fail("key \"" + Shown(field_) + "\" of __metadata__ occurs twice");
      }
      return true;
    }
    if (state_ == State::kEntry && field_ == "dtype") {
      // A dtype has the same name in a manifest and in safetensors.
      DTypeProto dtype = DTYPE_UNSPECIFIED;
      DTypeProto_Parse(value, &dtype);
      if (dtype == DTYPE_UNSPECIFIED && !IsDTypeName(value)) {
        return Fail("unknown dtype \"" + Shown(value) + "\"");
      }
      entry_.dtype = FromProto(dtype);
      return true;
    }
    return Fail("a string is not allowed here");
  }

  bool start_object(size_t) override {
    if (state_ == State::kBegin) {
      state_ = State::kTop;
      return true;
    }
    if (state_ != State::kTop) return Fail("an object is not allowed here");
    state_ = entry_.key == kMetadataKey ? State::kMetadata : State::kEntry;
    return true;
  }

  bool key(string_t& name) override {
    if (state_ == State::kTop) {
      if (!keys_.insert(name).second) return Fail("the key \"" + Shown(name) + "\" occurs twice");
      entry_ = SafetensorsEntry{};
      entry_.key = name;
      offsets_.clear();
      fields_seen_ = 0;
      return true;
    }
    field_ = name;
    if (state_ == State::kMetadata) return true;
    const int bit = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    if (bit == 0) return Fail("unknown field \"" + Shown(name) + "\"");
    if (fields_seen_ & bit) return Fail("field \"" + Shown(name) + "\" occurs twice");
    fields_seen_ |= bit;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      if (fields_seen_ != 7) return Fail("dtype, shape or data_offsets is missing");
      if (offsets_.size() != 2 || offsets_[1] < offsets_[0]) {
        return Fail("data_offsets is not a range");
      }
      entry_.file_offset = offsets_[0];
      entry_.length_bytes = offsets_[1] - offsets_[0];
      header_.entries.push_back(std::move(entry_));
      entry_ = SafetensorsEntry{};
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kEntry && field_ == "shape") {
      state_ = State::kShape;
    } else if (state_ == State::kEntry && field_ == "data_offsets") {
      state_ = State::kOffsets;
    } else {
      return Fail("an array is not allowed here");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    error_position_ = position;
    return Fail("no valid JSON near \"" + Shown(token.substr(0, 32)) + "\"");
  }

 private:
  enum class State { kBegin, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  bool Fail(const std::string& message) {
    error_ = entry_.key.empty() ? message : "key \"" + Shown(entry_.key) + "\": " + message;
    return false;
  }

  SafetensorsHeader& header_;
  State state_ = State::kBegin;
  std::set<std::string> keys_;
  SafetensorsEntry entry_;
  std::vector<uint64_t> offsets_;
  std::string field_;
  int fields_seen_ = 0;
  std::string error_;
  size_t error_position_ = 0;
};

// Checks the Rust reader's rules: no gaps in the data from the end of the header to the file's end.
absl::Status CheckData(SafetensorsHeader& header) {
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.file_offset, a.length_bytes) <
                            std::pair(b.file_offset, b.length_bytes);
                   });
  uint64_t end = 0;
  for (SafetensorsEntry& entry : header.entries) {
    const int64_t element_bytes = ElementSize(entry.dtype);
    const absl::StatusOr<int64_t> length =
        CheckedByteCount(entry.shape, std::max<int64_t>(element_bytes, 1));
    if (!length.ok()) {
      return DamagedHeader(kLengthBytes, absl::StrCat("key \"", Shown(entry.key),
                                                      "\": ", length.status().message()));
    }
    if (element_bytes > 0 && static_cast<uint64_t>(*length) != entry.length_bytes) {
      return DamagedHeader(kLengthBytes,
                           absl::StrCat("key \"", Shown(entry.key), "\": dtype and shape need ",
                                        *length, " bytes, data_offsets have ", entry.length_bytes));
    }
    if (entry.file_offset != end) {
      return DamagedHeader(kLengthBytes,
                           absl::StrCat("key \"", Shown(entry.key), "\": data begins at ",
                                        entry.file_offset, ", expected ", end));
    }
    end = entry.file_offset + entry.length_bytes;
    entry.file_offset += header.data_offset;
  }
  if (end != header.file_size_bytes - header.data_offset) {
    return DamagedHeader(header.data_offset,
                         absl::StrCat("the tensors end at offset ", header.data_offset + end,
                                      ", the file at ", header.file_size_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> BuildSafetensorsHeader(SafetensorsHeader& header) {
  std::set<std::string_view> keys;
  for (SafetensorsEntry& entry : header.entries) {
    TESSERA_RETURN_IF_ERROR(CheckEntry(entry));
    if (!keys.insert(entry.key).second) {
      return absl::InvalidArgumentError(absl::StrCat("key ", entry.key, " occurs twice"));
    }
  }
  std::string json = "{";
  if (!header.metadata.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string metadata, MetadataJson(header.metadata));
    json += metadata;
  }
  const std::vector<SafetensorsEntry*> order = DataOrder(header.entries);
  uint64_t end = 0;
  for (SafetensorsEntry* entry : order) {
    entry->file_offset = end;  // relative to the data; the header is added below
    const std::optional<uint64_t> next = CheckedAdd(end, entry->length_bytes);
    if (!next || *next > uint64_t{INT64_MAX}) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", entry->key, ": the file is too large"));
    }
    if (json.size() > 1) json += ',';
    absl::StrAppend(&json, Quoted(entry->key), ":{\"dtype\":\"", ProtoName(entry->dtype),
                    "\",\"shape\":", ShapeToString(entry->shape), ",\"data_offsets\":[", end, ",",
                    *next, "]}");
    end = *next;
  }
  json += '}';
  header.data_offset = RoundUp(kLengthBytes + json.size(), kSafetensorsDataAlignment);
  if (header.data_offset - kLengthBytes > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a safetensors header of ", json.size(),
                                                   " bytes, at most ", kMaxSafetensorsHeaderBytes,
                                                   " are allowed: use more files"));
  }
  json.resize(header.data_offset - kLengthBytes, ' ');
  for (SafetensorsEntry& entry : header.entries) entry.file_offset += header.data_offset;
  header.file_size_bytes = header.data_offset + end;
  std::string bytes;
  AppendLittleEndian(static_cast<uint64_t>(json.size()), bytes);
  return bytes += json;
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view first_8_bytes,
                                                uint64_t file_size_bytes) {
  if (first_8_bytes.size() < kLengthBytes || file_size_bytes < kLengthBytes) {
    return DamagedHeader(std::min<uint64_t>(first_8_bytes.size(), file_size_bytes),
                         "the file ends inside the header's length");
  }
  const auto length = LoadLittleEndian<uint64_t>(first_8_bytes.data());
  if (length > kMaxSafetensorsHeaderBytes) {
    return DamagedHeader(0, absl::StrCat("header length ", length, ", at most ",
                                         kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  if (length > file_size_bytes - kLengthBytes) {
    return DamagedHeader(
        0, absl::StrCat("header length ", length, " in a file of ", file_size_bytes, " bytes"));
  }
  return kLengthBytes + length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes,
                                                         uint64_t file_size_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t header_bytes,
                           SafetensorsHeaderBytes(bytes, file_size_bytes));
  if (bytes.size() < header_bytes) {
    return DamagedHeader(bytes.size(), absl::StrCat("the header ends early, expected ",
                                                    header_bytes, " bytes, found ", bytes.size()));
  }
  const std::string_view json = bytes.substr(kLengthBytes, header_bytes - kLengthBytes);
  if (json.empty() || json.front() != '{') {
    return DamagedHeader(kLengthBytes, "the header does not begin with '{'");
  }
  // The JSON library would treat a NUL as the end of the text and ignore the rest.
  if (const size_t at = json.find('\0'); at != json.npos) {
    return DamagedHeader(kLengthBytes + at, "a NUL byte");
  }
  SafetensorsHeader header;
  header.data_offset = header_bytes;
  header.file_size_bytes = file_size_bytes;
  HeaderReader reader(header);
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) {
    return DamagedHeader(kLengthBytes + reader.error_position(), reader.error());
  }
  TESSERA_RETURN_IF_ERROR(CheckData(header));
  return header;
}

std::string ShardKey(std::string_view tensor_name, const Shape& global_shape, const Box& box) {
  std::string key(tensor_name);
  if (box != WholeBox(global_shape)) key += "@" + ToString(box);
  return key;
}

}  // namespace tessera::ckpt
