#ifndef TESSERA_OPERATIONS_RESHARD_H_
#define TESSERA_OPERATIONS_RESHARD_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/reshard/rewrite.h"
#include "layout/topology.h"
#include "operations/named_checkpoint.h"
#include "operations/rank_layout.h"

namespace tessera::ckpt {

// Default memory for all buffers of `ckpt reshard`, and of a conversion to this library's format.
inline constexpr uint64_t kReshardMemoryBytes = uint64_t{1} << 30;
inline constexpr uint64_t kConversionMemoryBytes = uint64_t{1} << 27;

struct ReshardRequest {
  std::string source;       // see FindCheckpoint()
  std::string destination;  // a folder of checkpoints, or the new one's directory in it
  SourceOptions open;
  std::string topology = "single";  // of the new files, see ParseTopology()
  LayoutOptions layout;
  std::string program;  // recorded as the producer
  uint64_t memory_bytes = kConversionMemoryBytes;
  int io_threads = 4;
  // Called with the bytes done and in total while writing, and again, from 0, while another
  // framework's files are read once more. May be null.
  std::function<void(uint64_t, uint64_t)> progress;
};

// The place of the new checkpoint.
struct ReshardDestination {
  std::string folder;     // of checkpoints
  std::string directory;  // in it

  std::string path() const { return folder + (folder.ends_with('/') ? "" : "/") + directory; }
};

// The source, and the new checkpoint.
struct ReshardPlan {
  NamedCheckpoint source;  // which was opened
  Manifest metadata;       // without tensors and files
  ReshardDestination place;
  Topology topology;
  RankLayout layout;
  SavePlan plan;
};

// Plans a reshard. Errors: those of FindCheckpoint(), ParseTopology() and LayOutRanks();
// AlreadyExists if the destination is a checkpoint or has one of this step.
absl::StatusOr<ReshardPlan> PlanReshard(const ReshardRequest& request);

// Writes a checkpoint, of this library or another framework, as one of this library in files that
// suit the topology. Every byte is verified: see Rewrite(). Another framework's files, which have
// no digests unless they are sealed, are read once more and compared. Errors: those of Rewrite(),
// with nothing committed; DataLoss, naming the tensor, if that comparison fails afterwards.
absl::StatusOr<RewriteReport> Reshard(const ReshardPlan& plan, const ReshardRequest& request);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_RESHARD_H_
