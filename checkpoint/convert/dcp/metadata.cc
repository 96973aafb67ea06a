#include "checkpoint/convert/dcp/metadata.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/convert/pickle/read.h"
#include "checkpoint/convert/torch/archive.h"
#include "checkpoint/layout/bounds.h"
#include "checkpoint/storage/checks.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;
using pickle::Value;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string Shown(std::string_view text) { return absl::CHexEscape(View(text.substr(0, 200))); }

absl::Status Malformed(std::string_view name, std::string_view what) {
  return absl::DataLossError(absl::StrCat(Shown(name), ": ", View(what)));
}

// Whether an object is of the class that DCP calls by this name, in whichever module.
bool IsOf(const Value& object, std::string_view class_name) {
  const std::string name = object.callable().GlobalName();
  return name.starts_with("torch.distributed.checkpoint.") &&
         name.ends_with(absl::StrCat(".", View(class_name)));
}

// A field of a dataclass.
Value Field(const Value& object, std::string_view name) {
  const Value state = object.state();
  return (state.is(Kind::kTuple) ? state[1] : state).Find(name);
}

// What is equal for two equal indices of DCP: a name, and the offset of a chunk.
std::string IndexKey(std::string_view name, const std::optional<std::vector<int64_t>>& offset) {
  return offset ? absl::StrCat(View(name), "@", ShapeToString(*offset)) : std::string(name);
}

class MetadataReader {
 public:
  explicit MetadataReader(const Value& root) : root_(root) {}

  absl::StatusOr<DcpMetadata> Read();

 private:
  absl::Status ReadStorageData();
  absl::StatusOr<DcpBlob> ParseBlob(std::string_view name, const Value& info) const;
  absl::StatusOr<DcpBlob> FindBlob(std::string_view name, const std::string& key) const;
  absl::StatusOr<DcpTensor> ParseTensor(const std::string& name, const Value& value) const;
  absl::Status AddChunk(const Value& chunk, DcpTensor& tensor) const;

  const Value root_;
  absl::flat_hash_map<std::string, Value> stored_;  // by IndexKey()
};

absl::Status MetadataReader::ReadStorageData() {
  const Value data = Field(root_, "storage_data");
  stored_.reserve(data.entry_count());
  for (size_t i = 0; i < data.entry_count(); ++i) {
    const auto [index, info] = data.entry(i);
    const std::optional<std::string_view> name = Field(index, "fqn").AsText();
    if (!IsOf(index, "MetadataIndex") || !name) return Malformed("storage_data", "no index");
    const std::string key = IndexKey(*name, TorchIntegers(Field(index, "offset")));
    if (!stored_.emplace(key, info).second) return Malformed(key, "stored twice");
  }
  return absl::OkStatus();
}

absl::StatusOr<DcpBlob> MetadataReader::ParseBlob(std::string_view name, const Value& info) const {
  if (Field(info, "transform_descriptors").size() > 0) {
    return absl::UnimplementedError(
        absl::StrCat(Shown(name), " is transformed before it is stored, by \"",
                     Shown(Field(info, "transform_descriptors")[0].AsText().value_or("")),
                     "\": save it without"));
  }
  const std::optional<std::string_view> path = Field(info, "relative_path").AsText();
  const std::optional<uint64_t> offset = Field(info, "offset").AsUint();
  const std::optional<uint64_t> length = Field(info, "length").AsUint();
  if (!path || !offset || !length) return Malformed(name, "no place in a file");
  if (!CheckPath("Open", *path, /*root_allowed=*/false).ok()) {
    return Malformed(
        name, absl::StrCat("stored in \"", Shown(*path), "\", which is no file inside the folder"));
  }
  return DcpBlob{.file = std::string(*path), .part = {*offset, *length}};
}

absl::StatusOr<DcpBlob> MetadataReader::FindBlob(std::string_view name,
                                                 const std::string& key) const {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return Malformed(key, "not stored in any file");
  return ParseBlob(name, found->second);
}

absl::Status MetadataReader::AddChunk(const Value& chunk, DcpTensor& tensor) const {
  std::optional<std::vector<int64_t>> offsets = TorchIntegers(Field(chunk, "offsets"));
  std::optional<std::vector<int64_t>> sizes = TorchIntegers(Field(chunk, "sizes"));
  const size_t rank = tensor.shape.size();
  if (!offsets || !sizes || offsets->size() != rank || sizes->size() != rank) {
    return Malformed(tensor.name, "a malformed chunk");
  }
  for (size_t d = 0; d < rank; ++d) {
    const int64_t begin = (*offsets)[d], size = (*sizes)[d];
    if (begin < 0 || size < 0 || begin > tensor.shape[d] || size > tensor.shape[d] - begin) {
      return Malformed(tensor.name, "a chunk reaches beyond the tensor");
    }
  }
  if (ElementCount(*sizes) == 0) return absl::OkStatus();
  const std::string key = IndexKey(tensor.name, offsets);
  TESSERA_ASSIGN_OR_RETURN(DcpBlob blob, FindBlob(tensor.name, key));
  tensor.chunks.push_back(
      {.box = {.global_offset = *std::move(offsets), .shape = *std::move(sizes)},
       .blob = std::move(blob)});
  return absl::OkStatus();
}

absl::StatusOr<DcpTensor> MetadataReader::ParseTensor(const std::string& name,
                                                      const Value& value) const {
  const Value properties = Field(value, "properties").state();
  const Value dtype = properties.is(Kind::kTuple) ? properties[0] : properties.Find("dtype");
  DcpTensor tensor = {.name = name, .dtype = TorchDType(dtype)};
  std::optional<std::vector<int64_t>> shape = TorchIntegers(Field(value, "size"));
  if (!shape || shape->size() > kMaxRank || !CheckedByteCount(*shape, sizeof(double)).ok()) {
    return Malformed(name, "no size, or one that is too large");
  }
  tensor.shape = *std::move(shape);
  const Value chunks = Field(value, "chunks");
  for (size_t i = 0; i < chunks.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(AddChunk(chunks[i], tensor));
  }
  return tensor;
}

absl::StatusOr<DcpMetadata> MetadataReader::Read() {
  if (!IsOf(root_, "Metadata")) return Malformed(kDcpMetadataFile, "not written by DCP");
  TESSERA_RETURN_IF_ERROR(ReadStorageData());
  DcpMetadata metadata;
  const Value names = Field(root_, "state_dict_metadata");
  for (size_t i = 0; i < names.entry_count(); ++i) {
    const auto [key, value] = names.entry(i);
    const std::string name(key.AsText().value_or(""));
    if (name.empty() || !IsValidUtf8(name)) return Malformed(name, "no name of a tensor");
    if (IsOf(value, "TensorStorageMetadata")) {
      TESSERA_ASSIGN_OR_RETURN(DcpTensor tensor, ParseTensor(name, value));
      metadata.tensors.push_back(std::move(tensor));
    } else if (IsOf(value, "BytesStorageMetadata")) {
      TESSERA_ASSIGN_OR_RETURN(DcpBlob blob, FindBlob(name, name));
      metadata.objects.push_back({.name = name, .blob = std::move(blob)});
    } else {
      return Malformed(name, "neither a tensor nor bytes");
    }
  }
  return metadata;
}

}  // namespace

absl::StatusOr<DcpMetadata> ReadDcpMetadata(const ReadableFile& file) {
  TESSERA_ASSIGN_OR_RETURN(const pickle::Pickle read,
                           pickle::ReadPickle(file, {0, file.size_bytes()}));
  return MetadataReader(read.root()).Read();
}

}  // namespace tessera::ckpt::convert
