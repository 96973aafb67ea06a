#include "checkpoint/verify/nearby_copies.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/scan/scan.h"

namespace tessera::ckpt {

absl::StatusOr<NearbyCopies> DropDamagedCopies(TieredStorage& storage,
                                               std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(storage, checkpoint_dir));
  NearbyCopies copies;
  ScanBuffers buffers;
  const auto only_check = [](int, const FilePiece&, const std::byte*) { return absl::OkStatus(); };
  for (int f = 0; f < manifest.files_size(); ++f) {
    const DataFile& described = manifest.files(f);
    const std::string path = JoinPath(checkpoint_dir, described.path());
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.staging().Open(path);
    if (!file.ok()) continue;
    Scanner scanner(storage.staging(), checkpoint_dir, manifest, {});
    absl::Status intact = scanner.Add(f, *std::move(file));
    if (intact.ok()) intact = scanner.Run(scanner.WholeFiles(), only_check, &buffers);
    if (intact.ok()) {
      copies.good_bytes += described.size_bytes();
      continue;
    }
    // Another process of this machine may have been faster.
    const absl::Status deleted = storage.staging().Delete(path);
    if (!absl::IsNotFound(deleted)) TESSERA_RETURN_IF_ERROR(deleted);
    ++copies.dropped_files;
  }
  return copies;
}

}  // namespace tessera::ckpt
