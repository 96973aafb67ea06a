#ifndef TESSERA_CHECKPOINT_SAVE_SAVE_H_
#define TESSERA_CHECKPOINT_SAVE_SAVE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/save/options.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// Saves a checkpoint to root/step-N, where N is metadata.trainer().step(), the same on every rank;
// the rest of `metadata` counts on rank 0. The new checkpoint exists when, and only when, its
// manifest is committed, and no file of a committed checkpoint is ever touched. A half-written
// directory of the same step is removed first.
//
// Every rank returns the same. Errors, each with nothing committed: InvalidArgument (options,
// metadata, state: every problem listed, a tensor that the ranks together do not cover included),
// AlreadyExists (that step is committed), ResourceExhausted (checked before anything is written,
// where the storage can tell), whatever the storage answers, DeadlineExceeded or Unavailable from
// the group. One rank's error is everybody's, with the rank's number where there are several.
//
// Collective over `group`. State is read, not changed. Memory: staging_bytes per process plus the
// plan. Cost: each byte of the state passes once through the cache (copy, digest, checksum) and
// goes to the disk past the page cache.
absl::StatusOr<SaveReport> Save(Storage& storage, std::string_view root, const Metadata& metadata,
                                const StateDict& state, ProcessGroup& group,
                                const SaveOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_SAVE_H_
