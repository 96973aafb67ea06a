#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/known_model.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/formats/torch/read.h"
#include "layout/box.h"
#include "models/foreign/format.h"

namespace tessera::ckpt::convert {
namespace {

class PartsReader {
 public:
  PartsReader(Storage& storage, std::span<const std::string> files)
      : storage_(storage), files_(files) {}

  absl::StatusOr<ForeignCheckpoint> Run() {
    uint64_t bytes = 0;
    for (const std::string& file : files_) {
      TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint part, ReadTorch(storage_, std::span(&file, 1)));
      TESSERA_RETURN_IF_ERROR(CheckNames(file, part));
      for (const ForeignTensor& tensor : part.tensors) {
        bytes += ByteCount(tensor.shape, tensor.dtype);
      }
      parts_.push_back(std::move(part));
    }
    const std::vector<ForeignTensor>& first = parts_[0].tensors;
    TESSERA_ASSIGN_OR_RETURN(const std::string json,
                             ReadMetaConfig(storage_, first, static_cast<int64_t>(files_.size())));
    const auto count = static_cast<int64_t>(first.size());
    TESSERA_ASSIGN_OR_RETURN(ForeignModel model, At(storage_, kMetaConfig,
                                                    ForeignModel::Read(kMeta, json, count, bytes)));
    return Join(model);
  }

 private:
  template <typename... Parts>
  absl::Status DamagedTensor(const std::string& file, const std::string& tensor,
                             const Parts&... problem) const {
    return Damaged(storage_, file, "tensor ", tensor, ": ", problem...);
  }

  absl::Status CheckNames(const std::string& file, const ForeignCheckpoint& part) {
    std::map<std::string, const ForeignTensor*> names;
    for (const ForeignTensor& tensor : part.tensors) names[tensor.name] = &tensor;
    if (parts_.empty()) {
      first_names_ = KeysOf(names);
      return absl::OkStatus();
    }
    for (const std::string& name : first_names_) {
      if (!names.contains(name)) {
        return DamagedTensor(file, name, "missing, ", files_[0], " has it");
      }
      names.erase(name);
    }
    if (names.empty()) return absl::OkStatus();
    return DamagedTensor(file, names.begin()->first, files_[0], " does not have it");
  }

  absl::StatusOr<ForeignCheckpoint> Join(ForeignModel& model) const {
    ForeignCheckpoint checkpoint = CheckpointOf(kTorch, "torch.save");
    checkpoint.description.mutable_topology()->set_tensor_parallel(
        static_cast<uint32_t>(files_.size()));
    ForeignTensorSet set(model.description());
    for (size_t rank = 0; rank < files_.size(); ++rank) {
      for (const ForeignTensor& tensor : parts_[rank].tensors) {
        const ForeignParameter* const parameter = model.Find(tensor.name);
        if (parameter == nullptr)
          return DamagedTensor(files_[rank], tensor.name, "not the model's");
        TESSERA_RETURN_IF_ERROR(AddPart(*parameter, rank, tensor, set));
      }
    }
    TESSERA_RETURN_IF_ERROR(std::move(set).MoveTo(kMeta, storage_.Describe(""), checkpoint));
    return checkpoint;
  }

  absl::Status AddPart(ForeignParameter parameter, size_t rank, const ForeignTensor& tensor,
                       ForeignTensorSet& set) const {
    if (parameter.blocks.empty()) return absl::OkStatus();  // computed
    TESSERA_ASSIGN_OR_RETURN(parameter.tensor_parallel_dim,
                             FindDim(parameter, files_[rank], tensor));
    // An alias in the file is a tensor of the same elements.
    const ForeignTensor* stored = &tensor;
    for (const ForeignTensor& other : parts_[rank].tensors) {
      if (!tensor.alias_of.empty() && other.name == tensor.alias_of) stored = &other;
    }
    const TensorParallelShare share = {.rank = static_cast<int64_t>(rank),
                                       .size = static_cast<int64_t>(files_.size())};
    for (const StoredPiece& piece : stored->pieces) {
      TESSERA_RETURN_IF_ERROR(set.AddWhole(parameter, share, kForeignWeight, tensor.shape,
                                           {piece.file, piece.offset_bytes, tensor.dtype},
                                           piece.strides));
    }
    return absl::OkStatus();
  }

  // Returns the only dim in which the tensor is an equal part of the parameter; -1 for a copy.
  absl::StatusOr<int> FindDim(const ForeignParameter& parameter, const std::string& file,
                              const ForeignTensor& tensor) const {
    if (tensor.shape == parameter.shape) return -1;
    const auto size = static_cast<int64_t>(files_.size());
    for (size_t d = 0; d < parameter.shape.size(); ++d) {
      Shape part = parameter.shape;
      if (part[d] % size != 0) continue;
      part[d] /= size;
      if (tensor.shape == part) return static_cast<int>(d);
    }
    return DamagedTensor(file, tensor.name, "shape ", ShapeToString(tensor.shape), " is neither ",
                         ShapeToString(parameter.shape), " nor one of ", size,
                         " equal parts of it");
  }

  Storage& storage_;
  std::span<const std::string> files_;
  std::vector<ForeignCheckpoint> parts_;  // one for each file
  std::vector<std::string> first_names_;  // of the tensors in the first
};

}  // namespace

absl::StatusOr<ForeignCheckpoint> ReadMetaParts(Storage& storage,
                                                std::span<const std::string> files) {
  return PartsReader(storage, files).Run();
}

}  // namespace tessera::ckpt::convert
