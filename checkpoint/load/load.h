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

// Does what Checkpoint::Load() does, given a manifest that has been read. All ranks use the
// manifest of rank 0. The load uses the memory of `buffers` (may be null) and leaves it there for
// the next one. `readers` lists, for each data file, the ranks that can read it, ascending; empty:
// all ranks can read all files.
absl::StatusOr<LoadReport> LoadWithManifest(Storage& storage, std::string_view checkpoint_dir,
                                            const Manifest& manifest, const StateDict& state,
                                            const LoadOptions& options,
                                            ScanBuffers* buffers = nullptr,
                                            std::span<const RankList> readers = {});

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_LOAD_H_
