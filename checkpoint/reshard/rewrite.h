#ifndef TESSERA_CHECKPOINT_RESHARD_REWRITE_H_
#define TESSERA_CHECKPOINT_RESHARD_REWRITE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// A committed checkpoint. Both must outlive the call.
struct RewriteSource {
  Storage& storage;
  std::string directory;
  const Manifest& manifest;  // ReadManifest(storage, directory)
};

// What the new files will be: PlanSave() of the descriptions that the ranks of another topology
// would give of the same tensors.
struct RewritePlan {
  std::span<const std::string> ranks;  // serialized LocalPlans
  const SavePlan& save;
};

struct RewriteOptions {
  uint64_t memory_bytes = uint64_t{1} << 30;  // all buffers; the plan comes on top
  int io_threads = 4;                         // that read, and as many that write
  // May be null. Told bytes written and in all, from one thread at a time.
  std::function<void(uint64_t, uint64_t)> progress;
};

struct RewriteReport {
  std::string directory;  // of the new checkpoint, inside the storage
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t buffer_bytes = 0;     // most that was allocated at once
  int64_t digests_compared = 0;  // tensors whose new contents have the digest that the source says
  int64_t digests_new = 0;       // tensors for which the source says none
  double seconds = 0;
};

// The least memory_bytes that the files of both sides allow.
uint64_t LeastRewriteMemory(const Manifest& source, const Manifest& planned);

// Writes what `source` holds into files of another layout, to root/step-N of the source's step,
// with the commit protocol of a save (run_save.cc). `metadata` is the new manifest without tensors
// and files. Nobody holds the whole of it: stretches of some files are put together in memory, from
// checked chunks of the source, and written while the next ones are read.
//
// Every byte read is checked against its checksum, and the digests of what is written against those
// that the source's manifest says, before anything is committed. The source is only read. After an
// error nothing is committed, and no file is left where the storage still works.
//
// Errors: InvalidArgument (a plan for other tensors, too little memory, metadata), AlreadyExists
// (that step is committed), ResourceExhausted, DataLoss (the source is damaged: naming file, offset
// and tensor; or a digest differs, naming the tensor), whatever the storages answer.
absl::StatusOr<RewriteReport> Rewrite(const RewriteSource& source, const RewritePlan& plan,
                                      Storage& storage, std::string_view root,
                                      const Manifest& metadata, const RewriteOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_RESHARD_REWRITE_H_
