#ifndef TESSERA_CONVERT_MEGATRON_RANK_FILE_H_
#define TESSERA_CONVERT_MEGATRON_RANK_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"

namespace tessera::ckpt::convert {

// A chunk of the model that a rank has.
struct RankChunk {
  // In the order of the file, which is that of the module. Layers count from 0 in each chunk.
  std::vector<std::pair<std::string, TorchTensor>> tensors;
  std::vector<std::string> left_out;  // states of modules that are no tensors of the model
  int64_t layers = 0;
};

// The chunks of the model in what a rank stores: one, or several of a virtual pipeline. Errors:
// DataLoss, naming the tensor; Unimplemented for models of before Megatron-Core.
absl::StatusOr<std::vector<RankChunk>> ReadRankChunks(const TorchArchive& archive);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_RANK_FILE_H_
