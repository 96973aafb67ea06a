#ifndef TESSERA_CONVERT_DEEPSPEED_ZERO_SHARD_H_
#define TESSERA_CONVERT_DEEPSPEED_ZERO_SHARD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_layout.h"
#include "convert/torch/archive.h"

namespace tessera::ckpt::convert {

// Part of a parameter in the flat state of a group.
struct ZeroSlice {
  std::string name;
  int64_t start = 0;  // of its first element in the flat state
  int64_t count = 0;
};

// What one rank has of one group of parameters: vectors, of which the fp32 weights are the first.
struct ZeroGroup {
  std::vector<std::pair<ForeignKind, TorchTensor>> vectors;
  std::vector<ZeroSlice> slices;  // with stage 1 and 2
};

// A file "..._optim_states.pt" of DeepSpeed.
struct ZeroShard {
  bool cuts_parameters = false;  // stage 3: each parameter is cut, not the group as a whole
  int64_t ranks = 0;             // that have a part of each group; 0: they differ by group
  std::vector<ZeroGroup> groups;
};

// Errors: DataLoss, naming the file; Unimplemented where it does not tell which parameters it has;
// those of ReadTorchArchive() and of the storage.
absl::StatusOr<ZeroShard> ReadZeroShard(Storage& storage, const std::string& path);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DEEPSPEED_ZERO_SHARD_H_
