#ifndef TESSERA_CHECKPOINT_LOAD_LOAD_H_
#define TESSERA_CHECKPOINT_LOAD_LOAD_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/load_options.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/share_reads.h"
#include "checkpoint/scan/scan.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Loads from a checkpoint whose manifest has been read, as Checkpoint::Load() does; rank 0's
// manifest counts. `buffers` (may be null) are the buffers of an earlier load, and keep those that
// this load allocates. `readers` has for each data file, ascending, the ranks that can read it;
// empty: all ranks can read all files.
absl::StatusOr<LoadReport> LoadWithManifest(Storage& storage, std::string_view checkpoint_dir,
                                            const Manifest& manifest, const StateDict& state,
                                            const LoadOptions& options,
                                            ScanBuffers* buffers = nullptr,
                                            std::span<const RankList> readers = {});

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_LOAD_H_
