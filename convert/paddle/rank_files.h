#ifndef TESSERA_CONVERT_PADDLE_RANK_FILES_H_
#define TESSERA_CONVERT_PADDLE_RANK_FILES_H_

// The files of a hybrid-parallel checkpoint: one of the model and one of the optimizer for each
// rank, named "model_state.tp00_pp01.pdparams" and "optimizer.tp00_pp01_shard00.pdopt". An axis of
// one rank is left out.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::ckpt::convert {

// Ranks of each axis.
struct PaddleDegrees {
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t sharding = 1;
  bool operator==(const PaddleDegrees&) const = default;
};

struct PaddleRankFile {
  std::string name;
  int64_t tensor = 0, pipeline = 0, shard = 0;
};

struct PaddleRankFiles {
  PaddleDegrees degrees;
  // In the order of tensor, pipeline and shard; empty if there are none of the kind.
  std::vector<PaddleRankFile> models, optimizers;
};

// Whether a file's name is that of a model's or an optimizer's state. Those of schedulers and loss
// scalers are not.
bool IsPaddleStateName(const std::string& name);

// The files among `names`, all of each kind: the grid that the names span is complete. Errors:
// DataLoss naming every file that is missing; InvalidArgument naming two files that do not belong
// together.
absl::StatusOr<PaddleRankFiles> FindPaddleRankFiles(std::span<const std::string> names);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PADDLE_RANK_FILES_H_
