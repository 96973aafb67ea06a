#include "checkpoint/convert/torch/write.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "checkpoint/convert/pickle/write.h"
#include "checkpoint/convert/torch/archive.h"
#include "checkpoint/convert/torch/archive_layout.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/layout/box.h"

namespace tessera::ckpt::convert {
namespace {

bool IsFloating(DType dtype) {
  switch (dtype) {
    case F64:
    case F32:
    case F16:
    case BF16:
      return true;
    default:
      return false;
  }
}

}  // namespace

uint64_t StoredBytes(const TorchOutputTensor& tensor) {
  return static_cast<uint64_t>(ElementCount(GlobalShape(*tensor.logical))) *
         DTypeSize(tensor.dtype);
}

OutputTensor ToOutputTensor(const TorchOutputTensor& tensor, uint64_t offset_bytes) {
  const Shape shape = GlobalShape(*tensor.logical);
  const size_t size = DTypeSize(tensor.dtype);
  return {.name = tensor.logical->name(),
          .source_name = tensor.logical->name(),
          .role = tensor.logical->role(),
          .dtype = tensor.dtype,
          .shape = shape,
          .offset_bytes = offset_bytes,
          .elements = ElementCount(shape),
          .pieces = [shape, size](int64_t begin, int64_t end) {
            return RowMajorPieces(shape, size, begin, end);
          }};
}

TorchOutputTensors SelectTensors(const Manifest& manifest, const TorchOutputOptions& options) {
  TorchOutputTensors tensors;
  std::map<std::string, size_t> stored;
  const auto is_wanted = [&](const LogicalTensor& tensor) {
    return !options.weights_only || tensor.role() == WEIGHT || tensor.role() == BUFFER;
  };
  const auto dtype_of = [&](const LogicalTensor& tensor) {
    const bool converts = options.dtype != DTYPE_UNSPECIFIED && tensor.role() == WEIGHT;
    return converts && IsFloating(tensor.dtype()) ? options.dtype : tensor.dtype();
  };
  for (const LogicalTensor& tensor : manifest.tensors()) {
    if (!is_wanted(tensor) || !tensor.alias_of().empty()) continue;
    stored.emplace(tensor.name(), tensors.stored.size());
    tensors.stored.push_back({&tensor, dtype_of(tensor), tensors.stored.size()});
  }
  for (const LogicalTensor& tensor : manifest.tensors()) {
    const auto at = stored.find(tensor.alias_of().empty() ? tensor.name() : tensor.alias_of());
    if (!is_wanted(tensor) || at == stored.end()) continue;
    tensors.all.push_back({&tensor, tensors.stored[at->second].dtype, at->second});
  }
  return tensors;
}

bool HasRoles(const TorchOutputTensors& tensors) {
  return std::ranges::any_of(tensors.all, [](const TorchOutputTensor& tensor) {
    return tensor.logical->role() != WEIGHT;
  });
}

void WriteRoles(const TorchOutputTensors& tensors, pickle::Writer& writer) {
  writer.BeginDict();
  for (const TorchOutputTensor& tensor : tensors.all) {
    if (tensor.logical->role() == WEIGHT) continue;
    writer.Text(tensor.logical->name());
    writer.Text(Role_Name(tensor.logical->role()));
  }
  writer.EndDict();
}

bool HasTrainer(const Manifest& manifest, const TorchOutputOptions& options) {
  return manifest.has_trainer() && !options.weights_only;
}

void WriteTrainer(const TrainerState& trainer, pickle::Writer& writer) {
  writer.BeginDict();
  writer.Text("step");
  writer.Int(trainer.step());
  if (trainer.has_data()) {
    writer.Text("consumed_samples");
    writer.Int(trainer.data().consumed_samples());
  }
  writer.EndDict();
}

std::vector<OutputFile> PlanTorch(const Manifest& manifest, const TorchOutputOptions& options) {
  const TorchOutputTensors tensors = SelectTensors(manifest, options);
  pickle::Writer writer;
  writer.BeginDict();
  for (const TorchOutputTensor& tensor : tensors.all) {
    writer.Text(tensor.logical->name());
    WriteTorchTensor(tensor.dtype, GlobalShape(*tensor.logical), tensor.stored, writer);
  }
  if (HasRoles(tensors)) {
    writer.Text(kTorchRolesKey);
    WriteRoles(tensors, writer);
  }
  if (HasTrainer(manifest, options)) {
    writer.Text(kTorchTrainerKey);
    WriteTrainer(manifest.trainer(), writer);
  }
  writer.EndDict();
  std::vector<uint64_t> bytes;
  for (const TorchOutputTensor& tensor : tensors.stored) bytes.push_back(StoredBytes(tensor));
  const auto layout = std::make_shared<const TorchArchiveLayout>(std::move(writer).Finish(), bytes);
  OutputFile file = {.name = "checkpoint.pt", .size_bytes = layout->size_bytes()};
  for (size_t i = 0; i < tensors.stored.size(); ++i) {
    file.tensors.push_back(ToOutputTensor(tensors.stored[i], layout->storage_offset(i)));
  }
  file.records = [layout](size_t tensor, uint32_t crc32) {
    return std::vector{layout->StorageHeader(tensor, crc32, 0)};
  };
  file.finish = [layout](std::span<const uint32_t> crc32) {
    return layout->OtherRecords(crc32, 0);
  };
  return {std::move(file)};
}

}  // namespace tessera::ckpt::convert
