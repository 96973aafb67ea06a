#include "checkpoint/convert/dcp/write.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "checkpoint/convert/dcp/metadata.h"
#include "checkpoint/convert/pickle/write.h"
#include "checkpoint/convert/torch/archive.h"
#include "checkpoint/convert/torch/archive_layout.h"
#include "checkpoint/convert/torch/zip_layout.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/layout/box.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Writer;

constexpr char kMetadataModule[] = "torch.distributed.checkpoint.metadata";

// An object of a dataclass; its fields follow, and then EndObject().
void BeginObject(const char* module, const char* name, Writer& writer) {
  writer.Global(module, name);
  writer.NewObject();
  writer.BeginDict();
}

void EndObject(Writer& writer) {
  writer.EndDict();
  writer.SetState();
}

void WriteSize(const std::vector<int64_t>& values, Writer& writer) {
  writer.Global("torch", "Size");
  writer.BeginTuple();
  writer.IntTuple(values);
  writer.EndTuple();
  writer.Call();
}

// The state is that of releases of torch before strides were part of it, which all later ones read.
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

void WriteTensorMetadata(const TorchOutputTensor& tensor, Writer& writer) {
  const Shape shape = GlobalShape(*tensor.logical);
  BeginObject(kMetadataModule, "TensorStorageMetadata", writer);
  writer.Text("properties");
  WriteProperties(tensor.dtype, writer);
  writer.Text("size");
  WriteSize(shape, writer);
  writer.Text("chunks");
  writer.BeginList();
  BeginObject(kMetadataModule, "ChunkStorageMetadata", writer);
  writer.Text("offsets");
  WriteSize(Shape(shape.size(), 0), writer);
  writer.Text("sizes");
  WriteSize(shape, writer);
  EndObject(writer);
  writer.EndList();
  EndObject(writer);
}

// The key of a chunk that is all of a tensor of this rank, or, without a rank, of an object.
void WriteIndex(const std::string& name, std::optional<int> rank, Writer& writer) {
  BeginObject(kMetadataModule, "MetadataIndex", writer);
  writer.Text("fqn");
  writer.Text(name);
  writer.Text("offset");
  if (rank) {
    WriteSize(Shape(*rank, 0), writer);
  } else {
    writer.None();
  }
  writer.Text("index");
  if (rank) {
    writer.Int(0);
  } else {
    writer.None();
  }
  EndObject(writer);
}

void WriteStorageInfo(const DcpBlob& blob, Writer& writer) {
  BeginObject("torch.distributed.checkpoint.filesystem", "_StorageInfo", writer);
  writer.Text("relative_path");
  writer.Text(blob.file);
  writer.Text("offset");
  writer.Int(static_cast<int64_t>(blob.part.offset));
  writer.Text("length");
  writer.Int(static_cast<int64_t>(blob.part.length));
  EndObject(writer);
}

// The path of a name in the state dict, which is flat.
void WritePath(const std::string& name, Writer& writer) {
  writer.Text(name);
  writer.BeginTuple();
  writer.Text(name);
  writer.EndTuple();
}

// `blobs`: of the tensors that are stored, by index. `roles`: where they are, if anywhere.
std::string MetadataPickle(const TorchOutputTensors& tensors, const std::vector<DcpBlob>& blobs,
                           const std::optional<DcpBlob>& roles) {
  Writer writer;
  BeginObject(kMetadataModule, "Metadata", writer);
  writer.Text("state_dict_metadata");
  writer.BeginDict();
  for (const TorchOutputTensor& tensor : tensors.all) {
    writer.Text(tensor.logical->name());
    WriteTensorMetadata(tensor, writer);
  }
  if (roles) {
    writer.Text(kTorchRolesKey);
    writer.Global(kMetadataModule, "BytesStorageMetadata");
    writer.NewObject();
  }
  writer.EndDict();
  writer.Text("planner_data");
  writer.BeginDict();
  for (const TorchOutputTensor& tensor : tensors.all) WritePath(tensor.logical->name(), writer);
  if (roles) WritePath(kTorchRolesKey, writer);
  writer.EndDict();
  writer.Text("storage_data");
  writer.BeginDict();
  for (const TorchOutputTensor& tensor : tensors.all) {
    WriteIndex(tensor.logical->name(), tensor.logical->global_shape_size(), writer);
    WriteStorageInfo(blobs[tensor.stored], writer);
  }
  if (roles) {
    WriteIndex(kTorchRolesKey, std::nullopt, writer);
    WriteStorageInfo(*roles, writer);
  }
  writer.EndDict();
  writer.Text("storage_meta");
  writer.None();
  EndObject(writer);
  return std::move(writer).Finish();
}

struct PlacedArchive {
  uint64_t offset_bytes;
  TorchArchiveLayout layout;
};

// Adds archives to files of data, each with one tensor.
class DataFiles {
 public:
  explicit DataFiles(uint64_t max_file_bytes) : max_file_bytes_(max_file_bytes) {}

  DcpBlob Add(const TorchOutputTensor& tensor) {
    Writer writer;
    WriteTorchTensor(tensor.dtype, GlobalShape(*tensor.logical), 0, writer);
    const uint64_t bytes = StoredBytes(tensor);
    TorchArchiveLayout layout(std::move(writer).Finish(), std::span(&bytes, 1));
    uint64_t begin = files_.empty() ? 0 : RoundUp(files_.back().size_bytes, kZipAlignmentBytes);
    if (files_.empty() || begin + layout.size_bytes() > max_file_bytes_) {
      files_.push_back({.name = absl::StrCat("__0_", files_.size(), ".distcp")});
      archives_.emplace_back();
      begin = 0;
    }
    OutputFile& file = files_.back();
    file.tensors.push_back(ToOutputTensor(tensor, begin + layout.storage_offset(0)));
    file.size_bytes = begin + layout.size_bytes();
    const DcpBlob blob = {.file = file.name, .part = {begin, layout.size_bytes()}};
    archives_.back().push_back({begin, std::move(layout)});
    return blob;
  }

  std::vector<OutputFile> Finish() && {
    for (size_t i = 0; i < files_.size(); ++i) {
      const auto archives =
          std::make_shared<const std::vector<PlacedArchive>>(std::move(archives_[i]));
      files_[i].finish = [archives](std::span<const uint32_t> crc32) {
        std::vector<OutputBytes> records;
        for (size_t t = 0; t < archives->size(); ++t) {
          const PlacedArchive& archive = (*archives)[t];
          for (OutputBytes& bytes :
               archive.layout.Records(crc32.subspan(t, 1), archive.offset_bytes)) {
            records.push_back(std::move(bytes));
          }
        }
        return records;
      };
    }
    return std::move(files_);
  }

 private:
  const uint64_t max_file_bytes_;
  std::vector<OutputFile> files_;
  std::vector<std::vector<PlacedArchive>> archives_;  // of each file
};

// A file of torch.save(): a dict of the tensors' roles.
OutputFile RolesFile(const TorchOutputTensors& tensors) {
  Writer writer;
  WriteRoles(tensors, writer);
  const TorchArchiveLayout layout(std::move(writer).Finish(), {});
  OutputFile file = {.name = "__1_0.distcp", .size_bytes = layout.size_bytes()};
  file.header.resize(layout.size_bytes());
  for (const OutputBytes& record : layout.Records({}, 0)) {
    file.header.replace(record.offset_bytes, record.bytes.size(), record.bytes);
  }
  return file;
}

}  // namespace

std::vector<OutputFile> PlanDcp(const Manifest& manifest, const DcpOutputOptions& options) {
  const TorchOutputTensors tensors = SelectTensors(manifest, options.tensors);
  DataFiles data(options.max_file_bytes);
  std::vector<DcpBlob> blobs;
  for (const TorchOutputTensor& tensor : tensors.stored) blobs.push_back(data.Add(tensor));
  std::vector<OutputFile> files = std::move(data).Finish();
  std::optional<DcpBlob> roles;
  if (HasRoles(tensors)) {
    files.push_back(RolesFile(tensors));
    roles = {.file = files.back().name, .part = {0, files.back().size_bytes}};
  }
  OutputFile metadata = {.name = kDcpMetadataFile, .header = MetadataPickle(tensors, blobs, roles)};
  metadata.size_bytes = metadata.header.size();
  files.push_back(std::move(metadata));
  return files;
}

}  // namespace tessera::ckpt::convert
