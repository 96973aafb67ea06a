#include "convert/formats/infinitrain/state_file.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kMagic = "CKPT";
constexpr uint32_t kVersion = 1;
// A tensor without a name, dims and elements: two lengths, the dtype and the number of bytes.
constexpr uint64_t kLeastTensorBytes = 17;
constexpr uint32_t kMaxNameBytes = 4096;
constexpr uint64_t kWindowBytes = 4096;

// By the number in the file.
constexpr DType kDTypes[] = {DType::kBool, DType::kU8,  DType::kI8,  DType::kU16, DType::kI16,
                             DType::kU32,  DType::kI32, DType::kU64, DType::kI64, DType::kBF16,
                             DType::kF16,  DType::kF32, DType::kF64};

absl::StatusOr<std::string> ReadName(FileCursor& cursor) {
  TESSERA_ASSIGN_OR_RETURN(const uint32_t bytes, cursor.Number<uint32_t>());
  if (bytes == 0 || bytes > kMaxNameBytes) {
    return DataLoss("a name of ", bytes, " bytes; 1 to ", kMaxNameBytes, " are possible");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, cursor.Take(bytes));
  if (!IsValidUtf8(name)) return DataLoss("a name that is not valid UTF-8");
  return std::string(name);
}

// Reads what follows the name, and skips the elements.
absl::Status ReadContents(FileCursor& cursor, InfiniTrainTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(const uint8_t dtype, cursor.Number<uint8_t>());
  if (dtype >= std::size(kDTypes)) return DataLoss("unknown dtype ", dtype);
  tensor.dtype = kDTypes[dtype];
  TESSERA_ASSIGN_OR_RETURN(const uint32_t rank, cursor.Number<uint32_t>());
  if (rank > kMaxDims) return DataLoss(rank, " dims; at most ", kMaxDims, " are possible");
  for (uint32_t dim = 0; dim < rank; ++dim) {
    TESSERA_ASSIGN_OR_RETURN(const uint64_t extent, cursor.Number<uint64_t>());
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  const absl::StatusOr<int64_t> expected =
      CheckedByteCount(tensor.shape, ElementSize(tensor.dtype));
  if (!expected.ok()) return DataLoss(expected.status().message());
  TESSERA_ASSIGN_OR_RETURN(const uint64_t bytes, cursor.Number<uint64_t>());
  if (bytes != static_cast<uint64_t>(*expected)) {
    return DataLoss("expected ", *expected, " bytes for ", ShapeToString(tensor.shape), ", found ",
                    bytes);
  }
  tensor.offset_bytes = cursor.offset();
  return cursor.Skip(bytes);
}

using Json = nlohmann::json;

constexpr int64_t kMetadataVersion = 3;
constexpr size_t kMaxShardDims = 32;
constexpr int64_t kMaxShardExtent = int64_t{1} << 40;

// Returns a list of numbers, none negative; empty if it is missing or something else is in it.
std::vector<int64_t> NumbersOf(const Json& entry, const char* key, bool& ok) {
  std::vector<int64_t> numbers;
  const auto list = entry.find(key);
  ok = ok && list != entry.end() && list->is_array() && list->size() <= kMaxShardDims;
  if (!ok) return numbers;
  for (const Json& number : *list) {
    ok = ok && number.is_number_integer() && number >= 0 && number <= kMaxShardExtent;
    if (ok) numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

std::string TextOf(const Json& entry, const char* key) {
  const auto text = entry.find(key);
  return text != entry.end() && text->is_string() ? text->get<std::string>() : std::string();
}

// Returns the dim that is cut: the one of several fragments.
absl::StatusOr<size_t> CutDim(const std::vector<int64_t>& fragments) {
  size_t dim = 0, cut = 0;
  for (size_t d = 0; d < fragments.size(); ++d) {
    if (fragments[d] <= 1) continue;
    dim = d;
    ++cut;
  }
  if (cut > 1) return Unimplemented("cut in several dims");
  return dim;
}

absl::Status CheckShapes(const InfiniTrainShard& shard) {
  const size_t dims = shard.global_shape.size();
  if (shard.local_shape.size() != dims || shard.global_offset.size() != dims) {
    return DataLoss(shard.key, ": its shapes have different numbers of dims");
  }
  for (size_t d = 0; d < dims; ++d) {
    if (shard.global_offset[d] + shard.local_shape[d] <= shard.global_shape[d]) continue;
    // The segments of a part say where it belongs; its own offset does not.
    if (d == shard.dim && !shard.segments.empty()) continue;
    return DataLoss(shard.key, ": a part lies outside the tensor");
  }
  for (const InfiniTrainShard::Segment& segment : shard.segments) {
    if (dims == 0 || segment.local_offset + segment.length > shard.local_shape[shard.dim] ||
        segment.global_offset + segment.length > shard.global_shape[shard.dim]) {
      return DataLoss(shard.key, ": a segment lies outside the tensor or its part");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<InfiniTrainShard> ParseShard(const Json& entry) {
  InfiniTrainShard shard = {.key = TextOf(entry, "key"), .file = TextOf(entry, "file")};
  if (shard.key.empty()) return DataLoss("tensors: one has no key");
  if (shard.file.empty()) return DataLoss(shard.key, ": it has no file");
  bool ok = true;
  shard.global_shape = NumbersOf(entry, "global_shape", ok);
  shard.local_shape = NumbersOf(entry, "local_shape", ok);
  shard.global_offset = NumbersOf(entry, "global_offset", ok);
  const std::vector<int64_t> fragments = NumbersOf(entry, "axis_fragmentations", ok);
  const std::vector<int64_t> global = NumbersOf(entry, "segment_global_offsets", ok);
  const std::vector<int64_t> local = NumbersOf(entry, "segment_local_offsets", ok);
  const std::vector<int64_t> lengths = NumbersOf(entry, "segment_lengths", ok);
  const auto offset = entry.find("offset");
  ok = ok && offset != entry.end() && offset->is_number_unsigned();
  ok = ok && global.size() == lengths.size() && local.size() == lengths.size();
  ok = ok && fragments.size() == shard.global_shape.size();
  if (!ok) return DataLoss(shard.key, ": its shapes, segments and offset are not lists of numbers");
  shard.offset_bytes = offset->get<uint64_t>();
  TESSERA_ASSIGN_OR_RETURN(shard.dim, In(shard.key, CutDim(fragments)));
  for (size_t i = 0; i < lengths.size(); ++i) {
    shard.segments.push_back({global[i], local[i], lengths[i]});
  }
  TESSERA_RETURN_IF_ERROR(CheckShapes(shard));
  if (shard.segments.empty()) {
    shard.segments.emplace_back();
    if (!shard.local_shape.empty()) {
      shard.segments[0] = {shard.global_offset[shard.dim], 0, shard.local_shape[shard.dim]};
    }
  }
  return shard;
}

}  // namespace

absl::StatusOr<bool> IsInfiniTrainStateFile(const ReadableFile& file) {
  if (file.size_bytes() < kMagic.size()) return false;
  TESSERA_ASSIGN_OR_RETURN(const std::string magic, ReadPart(file, 0, kMagic.size()));
  return magic == kMagic;
}

absl::StatusOr<std::vector<InfiniTrainTensor>> ReadInfiniTrainStateFile(const ReadableFile& file) {
  FileCursor cursor(file, kWindowBytes);
  TESSERA_ASSIGN_OR_RETURN(const std::string_view magic, cursor.Take(kMagic.size()));
  if (magic != kMagic) return DataLoss("not a state dict of InfiniTrain");
  TESSERA_ASSIGN_OR_RETURN(const uint32_t version, cursor.Number<uint32_t>());
  if (version != kVersion) return Unimplemented("version ", version, " of InfiniTrain's files");
  TESSERA_ASSIGN_OR_RETURN(const uint32_t count, cursor.Number<uint32_t>());
  if (count > cursor.left() / kLeastTensorBytes) {
    return DataLoss(count, " tensors do not fit into ", file.size_bytes(), " bytes");
  }
  std::vector<InfiniTrainTensor> tensors;
  std::set<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    InfiniTrainTensor tensor;
    TESSERA_ASSIGN_OR_RETURN(tensor.name, In(absl::StrCat("tensor number ", i), ReadName(cursor)));
    if (!names.insert(tensor.name).second) {
      return DataLoss("tensor ", tensor.name, ": occurs twice");
    }
    TESSERA_RETURN_IF_ERROR(In(absl::StrCat("tensor ", tensor.name), ReadContents(cursor, tensor)));
    tensors.push_back(std::move(tensor));
  }
  if (cursor.left() > 0) return DataLoss(cursor.left(), " bytes after the last tensor");
  return tensors;
}

std::optional<int64_t> FindInfiniTrainNumber(std::string_view text, std::string_view key) {
  const std::string quoted = '"' + std::string(key) + '"';
  const size_t begin = text.find(quoted);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + quoted.size());
  if (text.find(quoted) != std::string_view::npos) return std::nullopt;
  text = text.substr(0, text.find_first_of(",\n}"));
  absl::string_view value = absl::StripAsciiWhitespace(View(text));
  int64_t number = 0;
  if (value.empty() || value.front() != ':') return std::nullopt;
  value.remove_prefix(1);
  if (!absl::SimpleAtoi(value, &number)) return std::nullopt;
  return number;
}

absl::StatusOr<std::vector<InfiniTrainShard>> ParseInfiniTrainMetadata(std::string_view text) {
  const Json json = ParseJson(std::string(text));
  const auto tensors = json.is_object() ? json.find("tensors") : json.end();
  if (!json.is_object() || tensors == json.end() || !tensors->is_array()) {
    return DataLoss("expected an object with a list of tensors");
  }
  const auto version = json.find("version");
  if (version == json.end() || *version != kMetadataVersion) {
    return Unimplemented("version ", version == json.end() ? "is missing" : version->dump(),
                         ", expected ", kMetadataVersion);
  }
  std::vector<InfiniTrainShard> shards;
  for (const Json& entry : *tensors) {
    if (!entry.is_object()) return DataLoss("tensors: one is not an object");
    TESSERA_ASSIGN_OR_RETURN(shards.emplace_back(), ParseShard(entry));
  }
  return shards;
}

}  // namespace tessera::ckpt::convert
