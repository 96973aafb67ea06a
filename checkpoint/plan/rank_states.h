#ifndef TESSERA_CHECKPOINT_PLAN_RANK_STATES_H_
#define TESSERA_CHECKPOINT_PLAN_RANK_STATES_H_

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/plan.pb.h"
#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

// Convert a box to the form in which ranks send it to each other, and back. Precondition: `proto`
// is empty.
inline void ToProto(const Box& box, BoxProto& proto) {
  proto.mutable_offset()->Add(box.global_offset.begin(), box.global_offset.end());
  proto.mutable_shape()->Add(box.shape.begin(), box.shape.end());
}

inline Box FromProto(const BoxProto& proto) {
  return {{proto.offset().begin(), proto.offset().end()},
          {proto.shape().begin(), proto.shape().end()}};
}

struct BoxHash {
  size_t operator()(const Box& box) const { return absl::HashOf(box.global_offset, box.shape); }
};

// Returns the dtype of a tensor. If it is unspecified, returns the first dtype that a shard
// specifies; DType::kUnspecified if no shard does.
DType DTypeOf(const ShardedTensor& tensor);

// Checks a state dict by itself: names, roles, dtypes, shapes, strides and aliases. Boxes must lie
// in their tensor and not overlap inside this process. Memory must be there, large enough and of
// the right dtype. InvalidArgument, listing everything with tensor and box.
absl::Status CheckStateDict(const StateDict& state);

// CheckStateDict() for a state to load into, whose memory must not be read-only.
absl::Status CheckDestinations(const StateDict& state);

// Returns the description of the state dict that is sent to other ranks. Precondition:
// CheckStateDict().
RankState DescribeState(const StateDict& state);

// Returns the strides of a shard, in elements.
std::vector<int64_t> ShardStrides(const Shard& shard);

// Distinct sets of ranks, numbered in the order in which they were added.
class RankSets {
 public:
  // Adds a set, ascending, and returns its number.
  uint32_t Add(std::vector<uint32_t> ranks) {
    const auto [at, is_new] = numbers_.try_emplace(ranks, static_cast<uint32_t>(sets.size()));
    if (is_new) sets.push_back(std::move(ranks));
    return at->second;
  }

  std::vector<std::vector<uint32_t>> sets;  // by number

 private:
  std::pmr::monotonic_buffer_resource nodes_;
  std::pmr::unordered_map<std::vector<uint32_t>, uint32_t, absl::Hash<std::vector<uint32_t>>>
      numbers_{&nodes_};
};

// A rank that sent a certain description of a tensor, and its index in the rank's list.
struct Describer {
  uint32_t rank;
  uint32_t local_tensor;
};

// A description of a tensor, byte for byte the same on all ranks that sent it; data-parallel
// replicas share one.
struct Description {
  LogicalTensor tensor;
  std::vector<Describer> describers;  // ascending by rank
  uint32_t rank_set = 0;              // of all describers, into MergedState::rank_sets
};

// A source of the elements of a box: shard `shard` of every rank that sent the description.
struct ShardRef {
  uint32_t description;  // into MergedState::descriptions
  uint32_t shard;
};

struct HeldBox {
  Box box;
  absl::InlinedVector<ShardRef, 1> shards;  // one or more
  uint32_t rank_set = 0;                    // its holders, into MergedState::rank_sets
};

struct MergedTensor {
  uint32_t description;  // the first rank's, into MergedState::descriptions
  Shape global_shape;
  uint64_t element_bytes;
  std::vector<HeldBox> boxes;  // distinct; none of them empty

  uint64_t BytesOf(const HeldBox& held) const {
    return static_cast<uint64_t>(ElementCount(held.box.shape)) * element_bytes;
  }
};

// The state that the descriptions of all ranks define together.
struct MergedState {
  std::deque<Description> descriptions;          // in order of first appearance
  std::vector<std::vector<uint32_t>> rank_sets;  // distinct; each ascending
  std::vector<MergedTensor> tensors;             // in order of first appearance

  const LogicalTensor& DescriptionOf(const MergedTensor& tensor) const {
    return descriptions[tensor.description].tensor;
  }
};

// A shard of a rank's own list of tensors.
struct LocalShard {
  uint32_t tensor = 0;  // into the list
  uint32_t shard = 0;   // of that tensor
};

// Returns the shard of a rank that has the elements of a box. Internal if the rank has none.
absl::StatusOr<LocalShard> FindHeldShard(const MergedState& state, const HeldBox& held,
                                         uint32_t rank);

// Merges the ranks' serialized RankStates: tensors by name, equal boxes, and ranks with equal
// descriptions. If boxes of one tensor overlap only in part, one of them keeps the common elements,
// so that the boxes of every tensor hold each element exactly once.
//
// Errors: InvalidArgument listing all disagreements between ranks (dtype, shape, role, alias of one
// name), aliases of missing tensors, and all tensors whose boxes leave a gap or lie outside, naming
// tensor, ranks and boxes. Cost: reading the descriptions once; n log n in the distinct boxes of a
// tensor.
absl::StatusOr<MergedState> MergeRankStates(std::span<const std::string> ranks);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_RANK_STATES_H_
