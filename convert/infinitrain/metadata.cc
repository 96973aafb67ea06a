#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "convert/infinitrain/state_file.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMetadataVersion = 3;
constexpr size_t kMaxShardDims = 32;
constexpr int64_t kMaxShardExtent = int64_t{1} << 40;

absl::Status BadShard(const absl::AlphaNum& where, const absl::AlphaNum& problem) {
  return absl::DataLossError(absl::StrCat(where, ": ", problem));
}

// A list of numbers, none negative; empty where it is missing or something else is in it.
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

// The dim that is cut: the one of several fragments.
absl::StatusOr<size_t> CutDim(const std::vector<int64_t>& fragments) {
  size_t dim = 0, cut = 0;
  for (size_t d = 0; d < fragments.size(); ++d) {
    if (fragments[d] <= 1) continue;
    dim = d;
    ++cut;
  }
  if (cut > 1) return absl::UnimplementedError("cut in several dims");
  return dim;
}

absl::Status CheckShapes(const InfiniTrainShard& shard) {
  const size_t dims = shard.global_shape.size();
  if (shard.local_shape.size() != dims || shard.global_offset.size() != dims) {
    return BadShard(shard.key, "its shapes have different numbers of dims");
  }
  for (size_t d = 0; d < dims; ++d) {
    if (shard.global_offset[d] + shard.local_shape[d] <= shard.global_shape[d]) continue;
    // The segments of a part say where it belongs; its own offset does not.
    if (d == shard.dim && !shard.segments.empty()) continue;
    return BadShard(shard.key, "a part lies outside of the tensor");
  }
  for (const InfiniTrainShard::Segment& segment : shard.segments) {
    if (dims == 0 || segment.local_offset + segment.length > shard.local_shape[shard.dim] ||
        segment.global_offset + segment.length > shard.global_shape[shard.dim]) {
      return BadShard(shard.key, "a segment lies outside of the tensor or its part");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<InfiniTrainShard> ParseShard(const Json& entry) {
  InfiniTrainShard shard = {.key = TextOf(entry, "key"), .file = TextOf(entry, "file")};
  if (shard.key.empty()) return BadShard("tensors", "one has no key");
  if (shard.file.empty()) return BadShard(shard.key, "it has no file");
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
  if (!ok) return BadShard(shard.key, "its shapes, segments and offset are not lists of numbers");
  shard.offset_bytes = offset->get<uint64_t>();
  const absl::StatusOr<size_t> dim = CutDim(fragments);
  if (!dim.ok())
    return absl::UnimplementedError(absl::StrCat(shard.key, ": ", dim.status().message()));
  shard.dim = *dim;
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

absl::StatusOr<std::vector<InfiniTrainShard>> ParseInfiniTrainMetadata(std::string_view text) {
  const Json json = ParseJson(std::string(text));
  const auto tensors = json.is_object() ? json.find("tensors") : json.end();
  if (!json.is_object() || tensors == json.end() || !tensors->is_array()) {
    return absl::DataLossError("expected an object with a list of tensors");
  }
  const auto version = json.find("version");
  if (version == json.end() || *version != kMetadataVersion) {
    return absl::UnimplementedError(
        absl::StrCat("version ", version == json.end() ? "is missing" : version->dump(),
                     ", expected ", kMetadataVersion));
  }
  std::vector<InfiniTrainShard> shards;
  for (const Json& entry : *tensors) {
    if (!entry.is_object()) return BadShard("tensors", "one is no object");
    TESSERA_ASSIGN_OR_RETURN(shards.emplace_back(), ParseShard(entry));
  }
  return shards;
}

}  // namespace tessera::ckpt::convert
