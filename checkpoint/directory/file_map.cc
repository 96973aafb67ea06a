#include "checkpoint/directory/file_map.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt {
namespace {

constexpr size_t kMaxNamedTensors = 4;

}  // namespace

FileMap::FileMap(const Manifest& manifest) : manifest_(manifest), extents_(manifest.files_size()) {
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    const LogicalTensor& tensor = manifest.tensors(t);
    const int64_t count = ShardCount(tensor);
    for (int64_t s = 0; s < count; ++s) {
      const uint64_t begin = tensor.shards().file_offset(s);
      extents_[tensor.shards().file_index(s)].push_back(
          {begin, begin + ShardBytes(tensor, s), static_cast<uint32_t>(t), s});
    }
  }
  for (std::vector<Extent>& extents : extents_) std::ranges::sort(extents, {}, &Extent::begin);
}

std::string FileMap::TensorsIn(uint32_t file_index, uint64_t begin, uint64_t end) const {
  const std::vector<Extent>& extents = extents_[file_index];
  std::vector<std::string> names;
  std::set<uint32_t> tensors;  // each may have several shards there
  auto extent = std::ranges::upper_bound(extents, begin, {}, &Extent::end);
  for (; extent != extents.end() && extent->begin < end; ++extent) {
    if (!tensors.insert(extent->tensor).second || names.size() == kMaxNamedTensors) continue;
    names.push_back(manifest_.tensors(extent->tensor).name());
  }
  const size_t more = tensors.size() - names.size();
  std::string text = absl::StrJoin(names, ", ");
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

Damage DescribeChecksumError(const Manifest& manifest, const FileMap& map, uint32_t file_index,
                             uint64_t chunk, uint32_t found) {
  const DataFile& file = manifest.files(file_index);
  const uint64_t begin = chunk * file.chunk_bytes();
  const uint64_t end = std::min<uint64_t>(begin + file.chunk_bytes(), file.size_bytes());
  const uint32_t expected = file.chunk_crc32c(chunk);
  Damage damage;
  damage.file = file.path();
  damage.offset_bytes = begin;
  damage.tensor = map.TensorsIn(file_index, begin, end);
  damage.message = absl::StrCat("checksum of bytes [", begin, ", ", end, "): expected ",
                                absl::Hex(expected, absl::kZeroPad8), ", found ",
                                absl::Hex(found, absl::kZeroPad8));
  const std::optional<uint64_t> place = LocateSingleByteError(expected, found, end - begin);
  if (place) {
    damage.offset_bytes = begin + *place;
    damage.tensor = map.TensorsIn(file_index, damage.offset_bytes, damage.offset_bytes + 1);
    absl::StrAppend(&damage.message, ", as after a change of byte ", damage.offset_bytes);
  }
  return damage;
}

Damage DescribeSizeError(const Manifest& manifest, const FileMap& map, uint32_t file_index,
                         uint64_t found_bytes) {
  const DataFile& file = manifest.files(file_index);
  Damage damage;
  damage.file = file.path();
  damage.offset_bytes = std::min<uint64_t>(found_bytes, file.size_bytes());
  damage.tensor = map.TensorsIn(file_index, damage.offset_bytes, file.size_bytes());
  damage.message =
      absl::StrCat("size: expected ", file.size_bytes(), " bytes, found ", found_bytes);
  return damage;
}

std::string ToString(const Damage& damage) {
  std::string text = absl::StrCat(damage.file, " at offset ", damage.offset_bytes, ": ");
  if (!damage.tensor.empty()) absl::StrAppend(&text, "tensor ", damage.tensor, ": ");
  return text + damage.message;
}

}  // namespace tessera::ckpt
