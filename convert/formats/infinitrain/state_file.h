#ifndef TESSERA_CONVERT_FORMATS_INFINITRAIN_STATE_FILE_H_
#define TESSERA_CONVERT_FORMATS_INFINITRAIN_STATE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// A tensor of InfiniTrain's `model.ckpt` or `optimizer.ckpt`.
struct InfiniTrainTensor {
  std::string name;
  DType dtype = DType::kUnspecified;
  Shape shape;
  uint64_t offset_bytes = 0;  // of the elements, which are row-major
};

// Returns whether the file begins like a state dict of InfiniTrain.
absl::StatusOr<bool> IsInfiniTrainStateFile(const ReadableFile& file);

// Reads the tensors of a state dict, in the file's order, which follows a hash table. Their
// names are unique and valid UTF-8. The file, in which all numbers are little-endian:
//
//   "CKPT", u32 version (1), u32 number of tensors; for each tensor:
//   u32 length and text of the name, i8 dtype, u32 rank, i64 dims[rank], u64 bytes, the elements
//
// Reads no elements; memory is proportional to the result. Errors: DataLoss, naming the tensor;
// Unimplemented for another version; those of the file.
absl::StatusOr<std::vector<InfiniTrainTensor>> ReadInfiniTrainStateFile(const ReadableFile& file);

// Returns the names of a model's parameters in the order of InfiniTrain's Module::Parameters(), by
// which its optimizers number their states. `stored` are the names in the rank's model.ckpt, in
// the order of the file. A head that is tied to the embedding has its own place in the result.
//
// The program keeps modules and tensors in std::unordered_map, so its order depends on the C++
// library. This function builds the same tables, in the order in which the program does. The order
// of `stored`, which comes from these tables, too, proves that they are the same. Returns nullopt
// if it does not: the program was built with another library, or has other modules. Pure.
std::optional<std::vector<std::string>> OrderInfiniTrainParameters(
    const std::vector<std::string>& stored);

// A rank's part of a tensor, as `metadata.json` describes it.
struct InfiniTrainShard {
  // Indices of `dim` that are contiguous both in the tensor and in the part.
  struct Segment {
    int64_t global_offset = 0;
    int64_t local_offset = 0;
    int64_t length = 0;
  };
  std::string key;   // of the tensor
  std::string file;  // relative to the checkpoint's folder
  Shape global_shape;
  Shape local_shape;
  Shape global_offset;
  uint64_t offset_bytes = 0;      // in the file
  size_t dim = 0;                 // the one that is cut
  std::vector<Segment> segments;  // one at least
};

inline constexpr uint64_t kMaxInfiniTrainMetadataBytes = uint64_t{256} << 20;

// Parses the shards in the text of the `metadata.json` beside the folders of tensor-parallel and
// pipeline ranks (format infinitrain_sharded, version 3). Every segment lies inside its part and
// its tensor. Errors: DataLoss, naming the tensor; Unimplemented for another version. Pure.
absl::StatusOr<std::vector<InfiniTrainShard>> ParseInfiniTrainMetadata(std::string_view text);

// Returns an integer in the text of InfiniTrain's `trainer_state.json`: one "KEY": NUMBER on a
// line. The text need not be JSON, since some releases leave out a comma. Returns nullopt if the
// key is missing, occurs more than once, or has another value. Pure.
std::optional<int64_t> FindInfiniTrainNumber(std::string_view text, std::string_view key);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INFINITRAIN_STATE_FILE_H_
