#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "convert/formats/dcp/metadata.h"
#include "convert/formats/torch/write.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/write.h"
#include "convert/pickle/zip.h"
#include "layout/dtype.h"
#include "zlib.h"

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
  BeginObject(kMetadataModule, "ChunkStorageMetadata", writer);
  writer.Text("offsets");
  WriteSize(box.global_offset, writer);
  writer.Text("sizes");
  WriteSize(box.shape, writer);
  EndObject(writer);
}

void WriteTensorMetadata(const DcpTensor& tensor, Writer& writer) {
  BeginObject(kMetadataModule, "TensorStorageMetadata", writer);
  writer.Text("properties");
  WriteProperties(tensor.dtype, writer);
  writer.Text("size");
  WriteSize(tensor.shape, writer);
  writer.Text("chunks");
  writer.BeginList();
  for (const DcpChunk& chunk : tensor.chunks) WriteChunkMetadata(chunk.box, writer);
  writer.EndList();
  EndObject(writer);
}

// The key of what is stored: of a chunk of a tensor, or, with null, of an object.
void WriteIndex(const std::string& name, const std::vector<int64_t>* offset, int64_t index,
                Writer& writer) {
  BeginObject(kMetadataModule, "MetadataIndex", writer);
  writer.Text("fqn");
  writer.Text(name);
  writer.Text("offset");
  if (offset != nullptr) {
    WriteSize(*offset, writer);
  } else {
    writer.None();
  }
  writer.Text("index");
  if (offset != nullptr) {
    writer.Int(index);
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

// The path of a name in the state dict. torch makes a list of what has indices.
void WritePath(const std::string& name, const Path& path, Writer& writer) {
  writer.Text(name);
  writer.BeginTuple();
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

std::string DcpMetadataPickle(const DcpMetadata& metadata) {
  Writer writer;
  BeginObject(kMetadataModule, "Metadata", writer);
  writer.Text("state_dict_metadata");
  writer.BeginDict();
  for (const DcpTensor& tensor : metadata.tensors) {
    writer.Text(tensor.name);
    WriteTensorMetadata(tensor, writer);
  }
  for (const DcpObject& object : metadata.objects) {
    writer.Text(object.name);
    writer.Global(kMetadataModule, "BytesStorageMetadata");
    writer.NewObject();
  }
  writer.EndDict();
  writer.Text("planner_data");
  writer.BeginDict();
  const auto write_path = [&](const auto& entry) { WritePath(entry.name, entry.path, writer); };
  std::ranges::for_each(metadata.tensors, write_path);
  std::ranges::for_each(metadata.objects, write_path);
  writer.EndDict();
  writer.Text("storage_data");
  writer.BeginDict();
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
  writer.Text("storage_meta");
  writer.None();
  EndObject(writer);
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
  const auto crc32 = static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(storage.data()), storage.size()));
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
