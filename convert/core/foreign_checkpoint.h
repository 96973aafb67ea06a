#ifndef TESSERA_CONVERT_CORE_FOREIGN_CHECKPOINT_H_
#define TESSERA_CONVERT_CORE_FOREIGN_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_math.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/state_dict.h"
#include "convert/core/value.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/partition.h"

namespace tessera::ckpt::convert {

// Returns the bytes of a tensor's elements.
inline uint64_t ByteCount(const Shape& shape, DType dtype) {
  return static_cast<uint64_t>(ElementCount(shape)) * ElementSize(dtype);
}

// Returns the place of an element in a tensor with these strides, in elements.
inline int64_t PlaceOf(const std::vector<int64_t>& index, const std::vector<int64_t>& strides) {
  return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
}

// Returns the place of the last element of a tensor with these strides. nullopt for a negative
// stride, and for a place that does not fit. Preconditions: no dim is 0; one stride for each dim.
inline std::optional<int64_t> LastElement(const Shape& shape, const std::vector<int64_t>& strides) {
  std::optional<int64_t> last = 0;
  for (size_t d = 0; d < shape.size() && last.has_value(); ++d) {
    const std::optional<int64_t> far = CheckedMultiply(shape[d] - 1, strides[d]);
    last = far.has_value() && strides[d] >= 0 ? CheckedAdd(*last, *far) : std::nullopt;
  }
  return last;
}

// A box of a logical tensor as a file of another framework stores it. Views, transposition, fused
// columns and the parts of tensor-parallel ranks are all described by strides.
struct StoredPiece {
  Box box;                    // of the logical tensor
  std::string file;           // relative to the checkpoint's folder
  uint64_t offset_bytes = 0;  // of the element at box.global_offset, from the beginning of the file
  std::vector<int64_t> strides;  // in elements, one per dim, none negative
  bool operator==(const StoredPiece&) const = default;
};

// Returns the distance of an element of a piece from its first one, in elements.
inline int64_t OffsetInPiece(const StoredPiece& piece, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    offset += (index[d] - piece.box.global_offset[d]) * piece.strides[d];
  }
  return offset;
}

// A logical tensor and all places that hold its elements. Pieces with equal boxes are copies of
// each other; all others must be disjoint.
struct ForeignTensor {
  std::string name;
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kUnspecified;  // of the stored elements, which are little-endian
  Shape shape;
  std::string foreign_name;            // of the parameter in the files; empty: `name` is theirs
  std::string alias_of;                // not empty: a second name of that tensor, without pieces
  std::optional<Partition> partition;  // if the model declares how it may be cut
  std::optional<Digest> digest;        // if the checkpoint is sealed
  std::vector<StoredPiece> pieces;
};

// The result of the index pass over the headers of another framework's files. Its numbers come from
// those files and are not to be trusted: ForeignStorage::Create() checks all of them.
struct ForeignCheckpoint {
  std::string format;  // "hf", "llmc", ...: a name of Formats()
  // The manifest without tensors and files. Producer, topology, trainer, model and optimizer are
  // set as far as the files tell; an absent message is unknown.
  Manifest description;
  std::vector<ForeignTensor> tensors;
  // The missing parameters, if the files describe a model and have most of its parameters, but not
  // all. The tensors then have the names of the files.
  std::string mismatch;
  // By file: contents that the file encodes. In the offsets of pieces they follow its own bytes.
  std::map<std::string, std::string> decoded;
  bool in_module_order = false;  // tensors of a model are in the order in which its modules are
  // The values of the files besides tensors and, if they are a state dict, the places of its
  // tensors.
  SavedValue state = {SavedValue::Dict{}};
  std::vector<std::string> notes;  // one sentence for each thing that was not understood or ignored
  // By name, why: tensors of the files that are not in `tensors`, although the state has them.
  std::map<std::string, std::string> unread;
};

// Returns a checkpoint of a format that `program` has written, without anything in it.
inline ForeignCheckpoint CheckpointOf(std::string_view format, const char* program) {
  ForeignCheckpoint checkpoint = {.format = std::string(format)};
  checkpoint.description.mutable_producer()->set_program(program);
  return checkpoint;
}

// Name of the entry that marks a trainer's state whose step is unknown, because the state was made
// of files that do not record it.
inline constexpr char kUnknownStepEntry[] = "unknown_step";

// Returns whether the manifest records the step of the training.
inline bool TellsStep(const Manifest& manifest) {
  return manifest.has_trainer() && !manifest.trainer().extra().contains(kUnknownStepEntry);
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_FOREIGN_CHECKPOINT_H_
