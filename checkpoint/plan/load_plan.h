#ifndef TESSERA_CHECKPOINT_PLAN_LOAD_PLAN_H_
#define TESSERA_CHECKPOINT_PLAN_LOAD_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/plan/plan.pb.h"
#include "layout/box.h"
#include "layout/byte_range.h"

namespace tessera::ckpt {

// A wanted box of a saved tensor. Precondition of planning: the box lies inside the tensor.
struct WantedBox {
  uint32_t saved_tensor = 0;  // into Manifest.tensors; not an alias
  Box box;
};

// The intersection of a saved shard and a wanted box.
struct Placement {
  uint32_t wanted = 0;        // into the wanted boxes
  uint32_t saved_tensor = 0;  // into Manifest.tensors
  uint32_t shard = 0;         // of that tensor
  Box saved_box;              // row-major in bytes [shard_begin, shard_end) of the file
  uint64_t shard_begin = 0;
  uint64_t shard_end = 0;
  Box region;
};

struct FileReads {
  uint32_t file_index = 0;            // into Manifest.files
  std::vector<ByteRange> ranges;      // ascending, disjoint, not adjacent, whole checksum chunks
  std::vector<Placement> placements;  // ascending by shard_begin
};

struct LoadPlan {
  std::vector<FileReads> files;  // ascending; only those with something to read
  uint64_t bytes = 0;            // sum of all ranges
};

// Plans which bytes to read, and where their elements go. Each byte is read once, however many
// boxes want it.
//
// Errors: DataLoss, naming tensor and box, if the saved shards do not hold every element of a
// wanted box exactly once. Preconditions: a valid manifest (ValidateManifest), and no overlapping
// shards of a wanted tensor (ValidateCoverage). Cost: sub-quadratic in the number of shards of a
// tensor, see BoxIndex.
absl::StatusOr<LoadPlan> PlanLoad(const Manifest& manifest, std::span<const WantedBox> wanted);

// Returns the plan in the form that ranks exchange to share reads: ranges, and the regions of
// scattered placements. A placement is scattered if it takes less than three quarters of the bytes
// between its first and its last byte.
ReadNeeds DescribeNeeds(const Manifest& manifest, const LoadPlan& plan, uint64_t staging_bytes);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_LOAD_PLAN_H_
