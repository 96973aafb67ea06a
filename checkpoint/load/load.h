#ifndef TESSERA_CHECKPOINT_LOAD_LOAD_H_
#define TESSERA_CHECKPOINT_LOAD_LOAD_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/load_options.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/plan/share_reads.h"
#include "checkpoint/scan/scan.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Loads from a checkpoint whose manifest has been read, as Checkpoint::Load() does; rank 0's
// manifest counts. Uses `buffers` (may be null), and leaves them to the next load. `readers` has
// for each data file, ascending, the ranks that can read it; empty: all ranks can read all files.
absl::StatusOr<LoadReport> LoadWithManifest(Storage& storage, std::string_view checkpoint_dir,
                                            const Manifest& manifest, const StateDict& state,
                                            const LoadOptions& options,
                                            ScanBuffers* buffers = nullptr,
                                            std::span<const RankList> readers = {});

// Opens the checkpoint in a directory of a storage, as Checkpoint::Open() does.
absl::StatusOr<Checkpoint> OpenCheckpoint(std::shared_ptr<Storage> storage,
                                          std::string_view directory);

// The tensors of a valid manifest by their names. A load of a few tensors uses a manifest of only
// these (ManifestOf()), so that its cost does not depend on the others. Thread-safe. The whole
// manifest must outlive the object.
class NamedTensors {
 public:
  explicit NamedTensors(const Manifest& manifest);

  // Returns null if there is no such tensor.
  const LogicalTensor* Find(std::string_view name) const;

  // Returns a manifest of these tensors and the files that hold them. Adds the targets of aliases,
  // takes the master weight for a weight that was not saved, and skips unknown names.
  Manifest ManifestOf(std::span<const std::string> names) const;

 private:
  const Manifest& manifest_;
  std::map<std::string_view, const LogicalTensor*> tensors_;
  std::map<std::string_view, std::string_view> masters_;  // see MasterNames()
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_LOAD_H_
