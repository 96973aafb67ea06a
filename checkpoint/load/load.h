#ifndef TESSERA_CHECKPOINT_LOAD_LOAD_H_
#define TESSERA_CHECKPOINT_LOAD_LOAD_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/load/options.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// Loads into the buffers of `state`, under whatever sharding they have: the saved one does not
// matter. Compares everything first and reports the mismatches of all ranks at once, the first ten
// in words. Aliases are resolved on both sides.
//
// Errors: InvalidArgument (the state dict itself), NotFound (listing the checkpoints that are
// there), FailedPrecondition (mismatches: missing, unexpected, role, shape, dtype, coverage),
// DataLoss (naming file, offset, tensor, expected and found). Up to and including a missing or
// truncated file nothing is changed. A checksum error can come after some buffers were filled:
// every byte is verified before it is placed, but other tensors may already be new. The state is
// then to be discarded or loaded again. So it is after a digest that differs.
//
// Collective over `group`; every rank returns the same status. Memory: staging_bytes per process
// plus the plan. Cost: only checksum chunks that hold wanted bytes are read, each by one of the
// ranks that want any of it, which hands the others their part while it reads on.
absl::StatusOr<LoadReport> Load(Storage& storage, std::string_view checkpoint_dir, StateDict& state,
                                ProcessGroup& group, const LoadOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_LOAD_H_
