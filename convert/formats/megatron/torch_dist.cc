#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/formats/dcp/dcp.h"
#include "convert/formats/megatron/run.h"
#include "convert/formats/megatron/state_buffer.h"
#include "convert/pickle/torch_archive.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {
namespace {

// A tensor's name: which of a parameter's tensors it is.
struct Key {
  ForeignKind kind;
  std::string_view parameter;
};

// Removes "chained_0.", which begins the names of each of several optimizers.
std::string_view WithoutChain(std::string_view name) {
  constexpr std::string_view kChained = "chained_";
  if (!name.starts_with(kChained)) return name;
  const size_t end = name.find_first_not_of("0123456789", kChained.size());
  return end != name.npos && end > kChained.size() && name[end] == '.' ? name.substr(end + 1)
                                                                       : name;
}

// nullopt for a state of the optimizer that AdamW does not have, or in another format.
std::optional<Key> ParseKey(std::string_view name) {
  constexpr std::string_view kOptimizer = "optimizer.", kState = "optimizer.state.";
  const std::string_view unchained = WithoutChain(name);
  if (!unchained.starts_with(kOptimizer)) return Key{kForeignWeight, name};
  if (!unchained.starts_with(kState)) return std::nullopt;
  const std::string_view state = unchained.substr(kState.size());
  const std::pair<std::string_view, const ForeignKind&> kinds[] = {
      {"fp32_param.", kForeignMaster},  // in all formats but fully_reshardable
      {"param.", kForeignMaster},
      {"exp_avg.", kForeignExpAvg},
      {"exp_avg_sq.", kForeignExpAvgSq}};
  for (const auto& [prefix, kind] : kinds) {
    if (state.starts_with(prefix)) return Key{kind, state.substr(prefix.size())};
  }
  return std::nullopt;
}

class TorchDistReader {
 public:
  TorchDistReader(std::string where, std::string folder, ForeignModel model)
      : where_(std::move(where)),
        folder_(std::move(folder)),
        model_(std::move(model)),
        set_(model_.description()),
        buckets_(folder_) {}

  absl::Status Add(const ForeignTensor& tensor) {
    if (IsBucketState(tensor.name)) return In(where_, buckets_.AddTensor(tensor));
    const std::optional<Key> key = ParseKey(tensor.name);
    if (!key) {
      return absl::UnimplementedError(absl::StrCat(
          where_, ": tensor ", tensor.name, ": a state of the optimizer that is none of AdamW's"));
    }
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
    const ForeignParameter* const parameter = FindMegatronParameter(model_, key->parameter, rows);
    if (parameter == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(where_, ": tensor ", tensor.name,
                                                     " belongs to no parameter of the model that ",
                                                     kMegatronCommonFile, " describes"));
    }
    if (tensor.shape.size() == parameter->shape.size() + 1 &&
        key->kind.role != TensorRole::kWeight) {
      return AddFlattened(tensor, *parameter, key->kind);
    }
    if (tensor.shape != parameter->shape) {
      return absl::DataLossError(absl::StrCat(where_, ": tensor ", tensor.name, ": shape ",
                                              ShapeToString(tensor.shape), ", expected ",
                                              ShapeToString(parameter->shape)));
    }
    return set_.AddPieces(*parameter, key->kind, tensor);
  }

  // Adds what is stored by buffer, and sets model, optimizer and tensors.
  absl::Status Finish(Storage& storage, const MegatronRun& run, ForeignCheckpoint& checkpoint) {
    TESSERA_RETURN_IF_ERROR(buckets_.AddObjects(storage));
    if (!buckets_.empty()) return FinishBuckets(storage, run, checkpoint);
    return std::move(set_).MoveTo(kMegatron, where_, checkpoint);
  }

 private:
  // Adds a tensor of releases up to 0.14. It has an index for each dim of the parameter, which says
  // in which of its equal parts the elements are, and one for their place in that part, flattened.
  absl::Status AddFlattened(const ForeignTensor& tensor, const ForeignParameter& parameter,
                            const ForeignKind& kind) {
    const size_t rank = parameter.shape.size();
    Shape part = parameter.shape;
    int64_t elements = 1;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t parts = tensor.shape[d];
      if (parts < 1 || part[d] % parts != 0) return MalformedFlat(tensor, parameter);
      part[d] /= parts;
      elements *= part[d];
    }
    if (tensor.shape[rank] != elements) return MalformedFlat(tensor, parameter);
    for (const StoredPiece& piece : tensor.pieces) {
      Box own = {std::vector<int64_t>(rank), part};
      for (size_t d = 0; d < rank; ++d) {
        const int64_t index = piece.box.global_offset[d];
        if (piece.box.shape[d] != 1 || index < 0 || index >= tensor.shape[d]) {
          return MalformedFlat(tensor, parameter);
        }
        own.global_offset[d] = index * part[d];
      }
      const int64_t begin = piece.box.global_offset[rank], count = piece.box.shape[rank];
      if (begin < 0 || count < 0 || count > elements || begin > elements - count ||
          (count > 1 && piece.strides[rank] != 1)) {
        return MalformedFlat(tensor, parameter);
      }
      ForeignPlace place = {piece.file, piece.offset_bytes, tensor.dtype};
      for (const Box& box : FlatRangeToBoxes(own, begin, begin + count)) {
        TESSERA_RETURN_IF_ERROR(
            set_.AddBox(parameter, {}, kind, box, place, ContiguousStrides(part)));
        place.offset_bytes += static_cast<uint64_t>(ElementCount(box.shape)) *
                              static_cast<uint64_t>(ElementSize(tensor.dtype));
      }
    }
    return absl::OkStatus();
  }

  absl::Status MalformedFlat(const ForeignTensor& tensor, const ForeignParameter& parameter) const {
    return absl::DataLossError(absl::StrCat(
        where_, ": tensor ", tensor.name, ": shape ", ShapeToString(tensor.shape),
        " or one of its chunks is none of flattened parts of ", ShapeToString(parameter.shape)));
  }

  // The order of the parameters is not stored: the one that the arguments suggest, or the other,
  // must fit the sizes of all buffers and have the weights as its fp32 weights.
  absl::Status FinishBuckets(Storage& storage, const MegatronRun& run,
                             ForeignCheckpoint& checkpoint) {
    const bool has_fused_norms = run.Text("transformer_impl").value_or("") != "local";
    absl::Status first;
    for (const bool fused : {has_fused_norms, !has_fused_norms}) {
      ForeignTensorSet set = set_;
      absl::Status status = In(where_, buckets_.AddTo(run, ModuleOrder(model_, fused), set));
      if (status.ok()) status = std::move(set).MoveTo(kMegatron, where_, checkpoint);
      if (status.ok()) status = CheckMasterWeights(storage, checkpoint.tensors);
      if (status.ok()) return status;
      checkpoint.description.clear_optimizer();
      if (first.ok()) first = status;
    }
    return first;
  }

  const std::string where_, folder_;
  ForeignModel model_;
  ForeignTensorSet set_;
  BucketStates buckets_;
};

// Returns the number of pieces: each layer has at least one, stacked or not.
int64_t PieceCount(const std::vector<ForeignTensor>& tensors) {
  int64_t count = 0;
  for (const ForeignTensor& tensor : tensors) count += static_cast<int64_t>(tensor.pieces.size());
  return count;
}

}  // namespace

absl::StatusOr<ForeignCheckpoint> ReadMegatronTorchDist(Storage& storage,
                                                        const std::string& folder) {
  ForeignCheckpoint checkpoint = {.format = std::string(kMegatron)};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ForeignTensor> stored,
                           ReadDcpTensors(storage, folder, &checkpoint.notes));
  const std::string common = JoinPath(folder, kMegatronCommonFile);
  TESSERA_ASSIGN_OR_RETURN(const TorchArchive archive, ReadTorchFile(storage, common));
  const MegatronRun run(archive.contents.root());
  TESSERA_ASSIGN_OR_RETURN(ForeignModel model,
                           ReadMegatronModel(run, storage.Describe(common), PieceCount(stored),
                                             FileBytes(storage, stored)));
  TorchDistReader reader(storage.Describe(folder), folder, std::move(model));
  for (const ForeignTensor& tensor : stored) TESSERA_RETURN_IF_ERROR(reader.Add(tensor));
  run.Describe(checkpoint.description);
  TESSERA_RETURN_IF_ERROR(reader.Finish(storage, run, checkpoint));
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
