#ifndef TESSERA_CONVERT_MEGATRON_RANK_ORDER_H_
#define TESSERA_CONVERT_MEGATRON_RANK_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tessera::ckpt::convert {

// The parallel sizes of a run that determine which rank writes which file. Sizes below 1 count
// as 1.
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

// The first file of model-parallel ranks that is in the place of another one. `ranks` are the
// global ranks that wrote the files, in the order of pipeline stages and, in each stage, of
// tensor-parallel ranks. Megatron numbers its ranks in that order, whether data-parallel ranks are
// counted before the stages or after them. Programs that convert checkpoints write all files as
// one rank, or as a few: ranks that occur twice count only where most files are in their places.
std::optional<MisplacedFile> FindMisplacedFile(std::span<const int64_t> ranks,
                                               const RankGrid& grid);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_RANK_ORDER_H_
