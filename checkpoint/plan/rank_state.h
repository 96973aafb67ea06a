#ifndef TESSERA_CHECKPOINT_PLAN_RANK_STATE_H_
#define TESSERA_CHECKPOINT_PLAN_RANK_STATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/plan.pb.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

// A box as ranks send it to each other, and back. Precondition: `proto` is empty.
inline void ToProto(const Box& box, BoxProto& proto) {
  proto.mutable_offset()->Add(box.global_offset.begin(), box.global_offset.end());
  proto.mutable_shape()->Add(box.shape.begin(), box.shape.end());
}

inline Box FromProto(const BoxProto& proto) {
  return {{proto.offset().begin(), proto.offset().end()},
          {proto.shape().begin(), proto.shape().end()}};
}

// The dtype that a tensor names or, where it names none, the dtype of its first shard that has
// one. DType::kUnspecified if no shard has one either.
DType DTypeOf(const ShardedTensor& tensor);

// What can be wrong with a state dict by itself: names (empty, twice), unknown roles and dtypes,
// shapes, boxes outside their tensor or overlapping inside this process, memory that is missing,
// too small or of another dtype, strides of the wrong rank, aliases with shards. InvalidArgument,
// listing everything with tensor and box.
absl::Status CheckStateDict(const StateDict& state);

// That, for a state to load into: its memory must not be read-only.
absl::Status CheckDestinations(const StateDict& state);

// The description of the state dict that is sent to other ranks. Precondition: CheckStateDict.
RankState DescribeState(const StateDict& state);

// Strides of a shard, in elements.
std::vector<int64_t> ShardStrides(const Shard& shard);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_RANK_STATE_H_
