#ifndef TESSERA_CHECKPOINT_RESHARD_REWRITE_H_
#define TESSERA_CHECKPOINT_RESHARD_REWRITE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/plan/save_plan.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The plan of the new files: the result of PlanSave() for the descriptions that the ranks of the
// new topology would send.
struct RewritePlan {
  std::span<const std::string> ranks;  // serialized RankStates
  const SavePlan& save;
};

struct RewriteOptions {
  uint64_t memory_bytes = uint64_t{1} << 30;  // of all buffers, without the plan
  int io_threads = 4;                         // for reading, and as many for writing
  // Called with the bytes written and in total, from one thread at a time. May be null.
  std::function<void(uint64_t, uint64_t)> progress;
};

struct RewriteReport {
  std::string directory;  // of the new checkpoint, within the storage
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t buffer_bytes = 0;     // peak of the allocated buffers
  int64_t digests_compared = 0;  // tensors whose new contents match the source's digest
  int64_t digests_new = 0;       // tensors for which the source has none
  absl::Duration duration;
};

// Returns the smallest memory_bytes that the files of both sides permit.
uint64_t LeastRewriteMemory(const Manifest& source, const Manifest& planned);

// Writes the contents of `source` to files of another layout, in root/step-N of the source's step,
// with the commit protocol of a save (run_save.cc). `metadata` is the new manifest without tensors
// and files. The whole checkpoint is never in memory: ranges of some files are assembled in memory,
// from checked chunks of the source, and written while the next ones are read.
//
// Every byte read is verified against its checksum, and the digests of the written tensors against
// those in the source's manifest, before anything is committed. The source is only read. After an
// error of the plan or of a read nothing is committed, and no file remains if the storage still
// works. If the commit itself fails, the checkpoint may exist, as after CheckpointFolder::Save().
//
// Errors: InvalidArgument (a plan for other tensors, too little memory, metadata), AlreadyExists
// (the step is committed), ResourceExhausted, and those of the storages. DataLoss names file,
// offset and tensor if the source is damaged, and the tensor if a digest differs.
absl::StatusOr<RewriteReport> Rewrite(const Checkpoint& source, const RewritePlan& plan,
                                      Storage& storage, std::string_view root,
                                      const Manifest& metadata, const RewriteOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_RESHARD_REWRITE_H_
