#include "convert/formats/dcp/metadata.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/reading.h"
#include "convert/formats/torch/write.h"
#include "convert/pickle/read.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "storage/checks.h"
#include "storage/zip.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Kind;
using pickle::Value;
using pickle::Writer;

template <typename... Parts>
absl::Status Malformed(std::string_view name, const Parts&... what) {
  return DataLoss(Shown(name), ": ", what...);
}

// Returns whether an object is of the class that DCP calls by this name, in whichever module.
bool IsOf(const Value& object, std::string_view class_name) {
  const std::string name = object.callable().GlobalName();
  return name.starts_with("torch.distributed.checkpoint.") &&
         name.ends_with(absl::StrCat(".", View(class_name)));
}

// Returns a field of a dataclass.
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

// Returns "name@[4,0]", for messages.
std::string ShownIndex(std::string_view name, const IndexKey& key) {
  return absl::StrCat(Shown(name), key.has_offset ? "@" + ShapeToString(key.offset) : "");
}

// Parses the pickle in ".metadata". Read() takes the files of chunks and the paths of names first,
// as every tensor needs both.
class MetadataReader {
 public:
  explicit MetadataReader(const pickle::Pickle& contents)
      : root_(contents.root()), budget_(contents) {}

  absl::StatusOr<DcpMetadata> Read() {
    if (!IsOf(root_, "Metadata")) return Malformed(kDcpMetadataFile, "not written by DCP");
    TESSERA_RETURN_IF_ERROR(ReadStorageData());
    TESSERA_ASSIGN_OR_RETURN(const auto paths, ReadPaths());
    const auto path_of = [&](const std::string& name) {
      const auto at = paths.find(name);
      return at == paths.end() ? Path() : at->second;
    };
    DcpMetadata metadata;
    const Value names = Field(root_, "state_dict_metadata");
    for (const auto& [key, value] : names.entries()) {
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

 private:
  absl::Status ReadStorageData() {
    const Value data = Field(root_, "storage_data");
    stored_.reserve(data.entry_count());
    for (const auto& [index, info] : data.entries()) {
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

  // Returns the place of each name in nested dicts and lists, which only torch's own planner
  // stores. Integers are indices: torch makes texts of keys that are integers.
  absl::StatusOr<std::map<std::string, Path>> ReadPaths() {
    std::map<std::string, Path> paths;
    const Value planner = Field(root_, "planner_data");
    for (const auto& [name, parts] : planner.entries()) {
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

  // Returns a number that is equal for equal texts.
  uint32_t NumberOf(const Value& name) {
    const auto [known, is_new] = numbers_.emplace(name.id(), 0);
    if (is_new) {
      known->second =
          names_.emplace(View(name.AsText().value_or("")), static_cast<uint32_t>(names_.size()))
              .first->second;
    }
    return known->second;
  }

  absl::StatusOr<DcpBlob> ParseBlob(std::string_view name, const Value& info) {
    if (Field(info, "transform_descriptors").size() > 0) {
      return Unimplemented(Shown(name), " is transformed before it is stored, by \"",
                           Shown(Field(info, "transform_descriptors")[0].AsText().value_or("")),
                           "\": save it without");
    }
    const std::optional<std::string_view> path = Field(info, "relative_path").AsText();
    const std::optional<uint64_t> offset = Field(info, "offset").AsUint();
    const std::optional<uint64_t> length = Field(info, "length").AsUint();
    if (!path || !offset || !length) return Malformed(name, "no place in a file");
    TESSERA_RETURN_IF_ERROR(budget_.Take(path->size()));
    if (!CheckPath("Open", *path, /*root_allowed=*/false).ok()) {
      return Malformed(name, "stored in \"", Shown(*path), "\", which is not a file in the folder");
    }
    return DcpBlob{.file = std::string(*path), .part = {*offset, *length}};
  }

  absl::StatusOr<DcpBlob> TakeBlob(std::string_view name, const IndexKey& key) {
    const auto found = stored_.find(key);
    if (found == stored_.end()) return Malformed(ShownIndex(name, key), "not stored in any file");
    if (found->second.is_used)
      return Malformed(ShownIndex(name, key), "part of the checkpoint twice");
    found->second.is_used = true;
    return ParseBlob(name, found->second.info);
  }

  absl::StatusOr<DcpTensor> ParseTensor(const Value& key, const std::string& name,
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

  absl::Status AddChunk(const Value& chunk, uint32_t number, DcpTensor& tensor) {
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
    TESSERA_ASSIGN_OR_RETURN(
        DcpBlob blob,
        TakeBlob(tensor.name, {.name = number, .has_offset = true, .offset = *offsets}));
    tensor.chunks.push_back(
        {.box = {.global_offset = *std::move(offsets), .shape = *std::move(sizes)},
         .blob = std::move(blob)});
    return absl::OkStatus();
  }

  const Value root_;
  pickle::Budget budget_;
  // Numbers of names. A name that is referred to again and again is hashed once.
  absl::flat_hash_map<pickle::NodeId, uint32_t> numbers_;
  absl::flat_hash_map<absl::string_view, uint32_t> names_;
  absl::flat_hash_map<IndexKey, Stored> stored_;
};

constexpr char kMetadataModule[] = "torch.distributed.checkpoint.metadata";

void WriteSize(const std::vector<int64_t>& values, Writer& writer) {
  writer.Global("torch", "Size");
  writer.BeginTuple();
  writer.IntTuple(values);
  writer.EndTuple();
  writer.Call();
}

// Writes the state as torch did before strides were part of it; all later releases read it.
void WriteProperties(DType dtype, Writer& writer) {
  writer.Global(kMetadataModule, "TensorProperties");
  writer.NewObject();
  writer.BeginTuple();
  WriteTorchDType(dtype, writer);
  writer.Global("torch.serialization", "_get_layout");
  writer.BeginTuple();
  writer.Text("torch.strided");
  writer.EndTuple();
  writer.Call();
  writer.Bool(false);  // requires_grad
  writer.Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  writer.IntTuple({0});  // contiguous
  writer.Call();
  writer.Bool(false);  // pin_memory
  writer.EndTuple();
  writer.SetState();
}

void WriteChunkMetadata(const Box& box, Writer& writer) {
  writer.BeginObject(kMetadataModule, "ChunkStorageMetadata");
  WriteSize(box.global_offset, writer.Text("offsets"));
  WriteSize(box.shape, writer.Text("sizes"));
  writer.EndObject();
}

void WriteTensorMetadata(const DcpTensor& tensor, Writer& writer) {
  writer.BeginObject(kMetadataModule, "TensorStorageMetadata");
  WriteProperties(tensor.dtype, writer.Text("properties"));
  WriteSize(tensor.shape, writer.Text("size"));
  writer.Text("chunks").BeginList();
  for (const DcpChunk& chunk : tensor.chunks) WriteChunkMetadata(chunk.box, writer);
  writer.EndList();
  writer.EndObject();
}

// Writes the key of a chunk of a tensor or, with null, of an object.
void WriteIndex(const std::string& name, const std::vector<int64_t>* offset, int64_t index,
                Writer& writer) {
  writer.BeginObject(kMetadataModule, "MetadataIndex");
  writer.Text("fqn").Text(name);
  if (offset != nullptr) {
    WriteSize(*offset, writer.Text("offset"));
    writer.Text("index").Int(index);
  } else {
    writer.Text("offset").None();
    writer.Text("index").None();
  }
  writer.EndObject();
}

void WriteStorageInfo(const DcpBlob& blob, Writer& writer) {
  writer.BeginObject("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  writer.Text("relative_path").Text(blob.file);
  writer.Text("offset").Int(static_cast<int64_t>(blob.part.offset));
  writer.Text("length").Int(static_cast<int64_t>(blob.part.length));
  writer.EndObject();
}

// Writes the path of a name in the state dict. torch makes a list of what has indices.
void WritePath(const std::string& name, const Path& path, Writer& writer) {
  writer.Text(name).BeginTuple();
  if (path.empty()) writer.Text(name);
  for (const PathPart& part : path) {
    if (part.kind == PathPart::Kind::kIndex) {
      writer.Int(part.number);
    } else {
      writer.Text(part.ToString());
    }
  }
  writer.EndTuple();
}

}  // namespace

absl::StatusOr<DcpMetadata> ReadDcpMetadata(const ReadableFile& file) {
  TESSERA_ASSIGN_OR_RETURN(const pickle::Pickle read,
                           pickle::ReadPickle(file, {0, file.size_bytes()}));
  return MetadataReader(read).Read();
}

std::string DcpMetadataPickle(const DcpMetadata& metadata) {
  Writer writer;
  writer.BeginObject(kMetadataModule, "Metadata");
  writer.Text("state_dict_metadata").BeginDict();
  for (const DcpTensor& tensor : metadata.tensors) {
    WriteTensorMetadata(tensor, writer.Text(tensor.name));
  }
  for (const DcpObject& object : metadata.objects) {
    writer.Text(object.name).Global(kMetadataModule, "BytesStorageMetadata");
    writer.NewObject();
  }
  writer.EndDict();
  writer.Text("planner_data").BeginDict();
  const auto write_path = [&](const auto& entry) { WritePath(entry.name, entry.path, writer); };
  std::ranges::for_each(metadata.tensors, write_path);
  std::ranges::for_each(metadata.objects, write_path);
  writer.EndDict();
  writer.Text("storage_data").BeginDict();
  for (const DcpTensor& tensor : metadata.tensors) {
    int64_t index = 0;
    for (const DcpChunk& chunk : tensor.chunks) {
      WriteIndex(tensor.name, &chunk.box.global_offset, index++, writer);
      WriteStorageInfo(chunk.blob, writer);
    }
  }
  for (const DcpObject& object : metadata.objects) {
    WriteIndex(object.name, nullptr, 0, writer);
    WriteStorageInfo(object.blob, writer);
  }
  writer.EndDict();
  writer.Text("storage_meta").None();
  writer.EndObject();
  return std::move(writer).Finish();
}

struct DcpDataFiles::PlacedArchive {
  uint64_t offset_bytes;
  TorchArchiveLayout layout;
};

DcpDataFiles::DcpDataFiles(uint64_t max_file_bytes) : max_file_bytes_(max_file_bytes) {}
DcpDataFiles::~DcpDataFiles() = default;

DcpBlob DcpDataFiles::Add(const Shape& shape, OutputTensor tensor) {
  Writer writer;
  WriteTorchTensor(tensor.dtype, shape, 0, writer);
  const uint64_t bytes = static_cast<uint64_t>(tensor.elements) * ElementSize(tensor.dtype);
  TorchArchiveLayout layout(std::move(writer).Finish(), std::span(&bytes, 1));
  uint64_t begin = files_.empty() ? 0 : RoundUp(files_.back().size_bytes, kZipAlignmentBytes);
  if (files_.empty() || begin + layout.size_bytes() > max_file_bytes_) {
    files_.push_back({.name = absl::StrCat("__0_", files_.size(), ".distcp")});
    archives_.emplace_back();
    begin = 0;
  }
  OutputFile& file = files_.back();
  tensor.offset_bytes = begin + layout.storage_offset(0);
  file.tensors.push_back(std::move(tensor));
  file.size_bytes = begin + layout.size_bytes();
  const DcpBlob blob = {.file = file.name, .part = {begin, layout.size_bytes()}};
  archives_.back().push_back({begin, std::move(layout)});
  return blob;
}

std::vector<OutputFile> DcpDataFiles::Finish() && {
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto archives =
        std::make_shared<const std::vector<PlacedArchive>>(std::move(archives_[i]));
    files_[i].records = [archives](size_t tensor, uint32_t crc32) {
      const PlacedArchive& archive = (*archives)[tensor];
      return archive.layout.Records(std::span(&crc32, 1), archive.offset_bytes);
    };
  }
  return std::move(files_);
}

OutputFile TorchObjectFile(std::string name, std::string pickle, std::string_view storage) {
  const uint64_t bytes = storage.size();
  const uint32_t crc32 = ExtendZipCrc32(0, AsBytes(storage));
  const size_t storages = storage.empty() ? 0 : 1;
  const TorchArchiveLayout layout(std::move(pickle), std::span(&bytes, storages));
  OutputFile file = {.name = std::move(name), .size_bytes = layout.size_bytes()};
  file.header.resize(layout.size_bytes());
  for (const OutputBytes& record : layout.Records(std::span(&crc32, storages), 0)) {
    file.header.replace(record.offset_bytes, record.bytes.size(), record.bytes);
  }
  if (storages > 0) file.header.replace(layout.storage_offset(0), storage.size(), storage);
  return file;
}

}  // namespace tessera::ckpt::convert
