#ifndef TESSERA_CONVERT_INFINITRAIN_STATE_FILE_H_
#define TESSERA_CONVERT_INFINITRAIN_STATE_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/storage.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

// A tensor of InfiniTrain's `model.ckpt` or `optimizer.ckpt`.
struct InfiniTrainTensor {
  std::string name;
  DType dtype = DType::kUnspecified;
  Shape shape;
  uint64_t offset_bytes = 0;  // of the elements, which are row-major
};

// Whether the file begins as one of InfiniTrain's state dicts does.
absl::StatusOr<bool> IsInfiniTrainStateFile(const ReadableFile& file);

// The tensors of a state dict, in the file's order, which a hash table settled. Their names are
// unique and valid UTF-8. The file, in which all numbers are little-endian:
//
//   "CKPT", u32 version (1), u32 number of tensors; for each tensor:
//   u32 length and text of the name, i8 dtype, u32 rank, i64 dims[rank], u64 bytes, the elements
//
// Reads no elements; memory is proportional to what it returns. Errors: DataLoss, naming the
// tensor; Unimplemented for another version; those of the file.
absl::StatusOr<std::vector<InfiniTrainTensor>> ReadInfiniTrainStateFile(const ReadableFile& file);

// An integer in the text of InfiniTrain's `trainer_state.json`: one "KEY": NUMBER on a line, of
// which some releases leave out a comma, so that it is no JSON. Nullopt where the key is not there,
// is there more than once, or has another value. Pure.
std::optional<int64_t> FindInfiniTrainNumber(std::string_view text, std::string_view key);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INFINITRAIN_STATE_FILE_H_
