#ifndef TESSERA_CONVERT_FORMATS_MEGATRON_RANK_FILE_H_
#define TESSERA_CONVERT_FORMATS_MEGATRON_RANK_FILE_H_

// The data of a rank that Megatron-LM stores in files of torch.save(): chunks of the model, and the
// state of its optimizers.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "convert/core/foreign_layout.h"
#include "convert/pickle/torch_archive.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

// A rank's chunk of the model.
struct RankChunk {
  // Tensors in the order of the file, which is the module's. Layers count from 0 in each chunk.
  std::vector<std::pair<std::string, TorchTensor>> tensors;
  std::vector<std::string> left_out;  // states of modules beside the model's tensors
  int64_t layers = 0;
};

// Reads the chunks of the model in a rank's file: one, or several of a virtual pipeline. Errors:
// DataLoss, naming the tensor; Unimplemented for models of before Megatron-Core.
absl::StatusOr<std::vector<RankChunk>> ReadRankChunks(const TorchArchive& archive);

using StateVectors = std::vector<std::pair<ForeignKind, TorchTensor>>;

// A buffer of the distributed optimizer, gathered from its data-parallel ranks, without the padding
// of its buckets.
struct GatheredBuffer {
  int64_t elements = 0;
  StateVectors vectors;  // fp32 weights and moments, each contiguous
};

// Reads the buffers, one for each chunk of a virtual pipeline. `state` is the result of the
// optimizer's save_parameter_state(). Errors: DataLoss; Unimplemented for state of several
// optimizers, of parameters of several dtypes, and of releases that store each bucket apart.
absl::StatusOr<std::vector<GatheredBuffer>> ReadGatheredState(const TorchArchive& archive,
                                                              const pickle::Value& state);

// A group of parameters of an optimizer that numbers them.
struct MegatronGroup {
  bool has_weight_decay = false;
  std::vector<StateVectors> parameters;  // the states of each, in the order of their numbers
};

// Returns whether an optimizer's state dict has the states of its parameters, by number.
bool HasNumberedState(const pickle::Value& optimizer);

// Reads the groups that have parameters; returns no groups for other values. Errors: DataLoss;
// Unimplemented for groups that do not list their parameters.
absl::StatusOr<std::vector<MegatronGroup>> ReadNumberedState(const TorchArchive& archive,
                                                             const pickle::Value& optimizer);

// The parallel sizes of a run, which give each rank its file. Sizes below 1 count as 1.
struct RankGrid {
  int64_t tensor_ranks = 1;
  int64_t context_ranks = 1;
  int64_t data_ranks = 1;
};

// A file that stands in the place of another one. Both are indexes of files.
struct MisplacedFile {
  size_t file = 0;
  size_t place = 0;  // where it belongs
};

// Returns the first file of model-parallel ranks that is in the place of another one. `ranks` are
// the global ranks that wrote the files, in the order of pipeline stages and, in each stage, of
// tensor-parallel ranks. Megatron numbers its ranks in that order, whether data-parallel ranks are
// counted before the stages or after them. Since programs that convert checkpoints write all files
// as one rank, or as a few, ranks that occur twice count only if most files are in their places.
std::optional<MisplacedFile> FindMisplacedFile(std::span<const int64_t> ranks,
                                               const RankGrid& grid);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_MEGATRON_RANK_FILE_H_
