#ifndef TESSERA_CHECKPOINT_PLAN_LOCAL_PLAN_H_
#define TESSERA_CHECKPOINT_PLAN_LOCAL_PLAN_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/plan/state_dict.h"

namespace tessera::ckpt {

// What can be wrong with a state dict by itself: names (empty, twice), unknown roles and dtypes,
// shapes, boxes outside their tensor or overlapping inside this process, missing memory, strides of
// the wrong rank, aliases with shards. InvalidArgument, listing everything with tensor and box.
absl::Status CheckStateDict(const StateDict& state);

// The state dict as other ranks need to know it. Precondition: CheckStateDict.
LocalPlan DescribeState(const StateDict& state);

// Strides of a shard, in elements.
std::vector<int64_t> ShardStrides(const LocalShard& shard);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_LOCAL_PLAN_H_
