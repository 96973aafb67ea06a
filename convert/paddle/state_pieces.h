#ifndef TESSERA_CONVERT_PADDLE_STATE_PIECES_H_
#define TESSERA_CONVERT_PADDLE_STATE_PIECES_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_layout.h"
#include "convert/paddle/files.h"
#include "convert/paddle/state_file.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {

// What one sharding rank has of a state.
struct PaddleStored {
  const PaddleRankFile* file = nullptr;
  const PaddleArray* array = nullptr;
};

// A parameter as the files of one tensor-parallel rank have it.
struct PaddleTarget {
  const ForeignParameter* parameter = nullptr;
  TensorParallelShare share;
  ForeignKind kind;
  std::optional<Shape> local_shape;  // where the model's files or metadata tell it
};

// Adds a weight or a state, which `stored` has in the order of sharding ranks: whole, once or as
// copies, or as flat slices. Errors: DataLoss and InvalidArgument naming the files.
absl::Status AddPaddleState(const PaddleTarget& target, const std::vector<PaddleStored>& stored,
                            Storage& storage, ForeignTensorSet& set);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_PADDLE_STATE_PIECES_H_
