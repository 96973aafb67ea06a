#ifndef TESSERA_CHECKPOINT_PLAN_STATE_DICT_H_
#define TESSERA_CHECKPOINT_PLAN_STATE_DICT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/layout/box.h"
#include "checkpoint/layout/partition.h"

namespace tessera::ckpt {

// One box of a logical tensor in this process's memory: the source of a save, the destination of a
// load. The memory belongs to the caller and must stay valid and, for a save, unchanged until the
// call returns.
struct LocalShard {
  Box box;
  void* data = nullptr;          // element at box.global_offset
  std::vector<int64_t> strides;  // in elements, one per dim; empty: contiguous row-major
};

// A logical tensor as one process holds it: what it is, and the boxes of it that live here (none is
// allowed).
struct ShardedTensor {
  std::string name;
  Role role = WEIGHT;
  DType dtype = F32;
  Shape global_shape;
  Shape padded_shape;                  // empty: not padded
  std::string alias_of;                // not empty: a second name of that tensor; carries no shards
  std::optional<Partition> partition;  // how it may be cut, where that is known; not of an alias
  std::vector<LocalShard> shards;
};

// Everything that a process contributes to a save, or wants from a load. Boxes of one tensor must
// not overlap inside a process; over all processes they may (replicas), and must cover the tensor.
struct StateDict {
  std::vector<ShardedTensor> tensors;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_STATE_DICT_H_
