#include "convert/formats/dcp/metadata.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"
#include "convert/pickle/read.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"
#include "layout/box.h"
#include "storage/checks.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;
using pickle::Value;

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
struct IndexKey {
  uint32_t name = 0;  // its number, see NumberOf()
  bool has_offset = false;
  std::vector<int64_t> offset = {};
  bool operator==(const IndexKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const IndexKey& key) {
    return H::combine(std::move(hash), key.name, key.has_offset, key.offset);
  }
};

// An entry of "storage_data".
struct Stored {
  Value info;
  bool is_used = false;  // by a tensor or an object: none is part of two
};

class MetadataReader {
 public:
  explicit MetadataReader(const pickle::Pickle& contents)
      : root_(contents.root()), budget_(contents) {}

  absl::StatusOr<DcpMetadata> Read();

 private:
  absl::Status ReadStorageData();
  absl::StatusOr<std::map<std::string, Path>> ReadPaths();
  uint32_t NumberOf(const Value& name);
  absl::StatusOr<DcpBlob> ParseBlob(std::string_view name, const Value& info);
  absl::StatusOr<DcpBlob> TakeBlob(std::string_view name, const IndexKey& key);
  absl::StatusOr<DcpTensor> ParseTensor(const Value& key, const std::string& name,
                                        const Value& value);
  absl::Status AddChunk(const Value& chunk, uint32_t number, DcpTensor& tensor);

  const Value root_;
  pickle::Budget budget_;
  // Numbers of names. A name that is referred to again and again is hashed once.
  absl::flat_hash_map<pickle::NodeId, uint32_t> numbers_;
  absl::flat_hash_map<absl::string_view, uint32_t> names_;
  absl::flat_hash_map<IndexKey, Stored> stored_;
};

// "name@[4,0]", for messages.
std::string ShownIndex(std::string_view name, const IndexKey& key) {
  return absl::StrCat(Shown(name), key.has_offset ? "@" + ShapeToString(key.offset) : "");
}

// Equal for equal texts.
uint32_t MetadataReader::NumberOf(const Value& name) {
  const auto [known, is_new] = numbers_.emplace(name.id(), 0);
  if (is_new) {
    known->second =
        names_.emplace(View(name.AsText().value_or("")), static_cast<uint32_t>(names_.size()))
            .first->second;
  }
  return known->second;
}

// The integers of a value; nullopt if it holds anything else, or more than a tensor has dims.
std::optional<std::vector<int64_t>> DimsOf(const Value& value) {
  const Value tuple = value.IsObjectOf("torch.Size") ? value.arguments()[0] : value;
  return tuple.size() <= kMaxRank ? TorchIntegers(tuple) : std::nullopt;
}

absl::Status MetadataReader::ReadStorageData() {
  const Value data = Field(root_, "storage_data");
  stored_.reserve(data.entry_count());
  for (size_t i = 0; i < data.entry_count(); ++i) {
    const auto [index, info] = data.entry(i);
    const Value name = Field(index, "fqn");
    if (!IsOf(index, "MetadataIndex") || !name.AsText())
      return Malformed("storage_data", "no index");
    std::optional<std::vector<int64_t>> offset = DimsOf(Field(index, "offset"));
    IndexKey key = {NumberOf(name), offset.has_value(), std::move(offset).value_or(Shape())};
    const std::string shown = ShownIndex(*name.AsText(), key);
    if (!stored_.emplace(std::move(key), Stored{info}).second) {
      return Malformed(shown, "stored twice");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DcpBlob> MetadataReader::ParseBlob(std::string_view name, const Value& info) {
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
  TESSERA_RETURN_IF_ERROR(budget_.Take(path->size()));
  if (!CheckPath("Open", *path, /*root_allowed=*/false).ok()) {
    return Malformed(
        name, absl::StrCat("stored in \"", Shown(*path), "\", which is no file inside the folder"));
  }
  return DcpBlob{.file = std::string(*path), .part = {*offset, *length}};
}

absl::StatusOr<DcpBlob> MetadataReader::TakeBlob(std::string_view name, const IndexKey& key) {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return Malformed(ShownIndex(name, key), "not stored in any file");
  if (found->second.is_used)
    return Malformed(ShownIndex(name, key), "part of the checkpoint twice");
  found->second.is_used = true;
  return ParseBlob(name, found->second.info);
}

absl::Status MetadataReader::AddChunk(const Value& chunk, uint32_t number, DcpTensor& tensor) {
  TESSERA_RETURN_IF_ERROR(budget_.Take(pickle::Budget::kVisitBytes));
  std::optional<std::vector<int64_t>> offsets = DimsOf(Field(chunk, "offsets"));
  std::optional<std::vector<int64_t>> sizes = DimsOf(Field(chunk, "sizes"));
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
  TESSERA_ASSIGN_OR_RETURN(DcpBlob blob, TakeBlob(tensor.name, {number, true, *offsets}));
  tensor.chunks.push_back(
      {.box = {.global_offset = *std::move(offsets), .shape = *std::move(sizes)},
       .blob = std::move(blob)});
  return absl::OkStatus();
}

absl::StatusOr<DcpTensor> MetadataReader::ParseTensor(const Value& key, const std::string& name,
                                                      const Value& value) {
  const Value properties = Field(value, "properties").state();
  const Value dtype = properties.is(Kind::kTuple) ? properties[0] : properties.Find("dtype");
  DcpTensor tensor = {.name = name, .dtype = TorchDType(dtype)};
  std::optional<std::vector<int64_t>> shape = DimsOf(Field(value, "size"));
  if (!shape || !CheckedByteCount(*shape, sizeof(double)).ok()) {
    return Malformed(name, "no size, or one that is too large");
  }
  tensor.shape = *std::move(shape);
  const Value chunks = Field(value, "chunks");
  for (size_t i = 0; i < chunks.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(AddChunk(chunks[i], NumberOf(key), tensor));
  }
  return tensor;
}

// Where the names are in nested dicts and lists, for torch's own planner alone. Integers are
// indices: torch makes texts of keys that are integers.
absl::StatusOr<std::map<std::string, Path>> MetadataReader::ReadPaths() {
  std::map<std::string, Path> paths;
  const Value planner = Field(root_, "planner_data");
  for (size_t i = 0; i < planner.entry_count(); ++i) {
    const auto [name, parts] = planner.entry(i);
    Path path;
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::string_view text = parts[p].AsText().value_or("");
      TESSERA_RETURN_IF_ERROR(budget_.Take(sizeof(PathPart) + text.size()));
      if (const auto index = parts[p].AsInt()) {
        path.push_back(PathPart::Index(*index));
      } else if (parts[p].AsText() && IsValidUtf8(text)) {
        path.push_back(PathPart::Text(std::string(text)));
      } else {
        break;
      }
    }
    const std::string_view text = name.AsText().value_or("");
    TESSERA_RETURN_IF_ERROR(budget_.Take(text.size()));
    if (path.size() == parts.size()) paths[std::string(text)] = std::move(path);
  }
  return paths;
}

absl::StatusOr<DcpMetadata> MetadataReader::Read() {
  if (!IsOf(root_, "Metadata")) return Malformed(kDcpMetadataFile, "not written by DCP");
  TESSERA_RETURN_IF_ERROR(ReadStorageData());
  TESSERA_ASSIGN_OR_RETURN(const auto paths, ReadPaths());
  const auto path_of = [&](const std::string& name) {
    const auto at = paths.find(name);
    return at == paths.end() ? Path() : at->second;
  };
  DcpMetadata metadata;
  const Value names = Field(root_, "state_dict_metadata");
  for (size_t i = 0; i < names.entry_count(); ++i) {
    const auto [key, value] = names.entry(i);
    const std::string_view text = key.AsText().value_or("");
    TESSERA_RETURN_IF_ERROR(budget_.Take(sizeof(DcpTensor) + text.size()));
    const std::string name(text);
    if (name.empty() || !IsValidUtf8(name)) return Malformed(name, "no name of a tensor");
    if (IsOf(value, "TensorStorageMetadata")) {
      TESSERA_ASSIGN_OR_RETURN(DcpTensor tensor, ParseTensor(key, name, value));
      tensor.path = path_of(name);
      metadata.tensors.push_back(std::move(tensor));
    } else if (IsOf(value, "BytesStorageMetadata")) {
      TESSERA_ASSIGN_OR_RETURN(DcpBlob blob, TakeBlob(name, {.name = NumberOf(key)}));
      metadata.objects.push_back({.name = name, .path = path_of(name), .blob = std::move(blob)});
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
  return MetadataReader(read).Read();
}

}  // namespace tessera::ckpt::convert
