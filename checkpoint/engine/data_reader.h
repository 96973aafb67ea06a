#ifndef TESSERA_CHECKPOINT_ENGINE_DATA_READER_H_
#define TESSERA_CHECKPOINT_ENGINE_DATA_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/engine/compare.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct DataReaderOptions {
  bool verify_checksums;
  int io_threads;
  uint64_t staging_bytes;
};

// The files of a load plan, open and of the right size. By index into Manifest.files.
using OpenFiles = std::map<uint32_t, std::unique_ptr<ReadableFile>>;

// NotFound or DataLoss lists every file that is missing or has another size than the manifest says.
absl::StatusOr<OpenFiles> OpenDataFiles(Storage& storage, std::string_view directory,
                                        const Manifest& manifest, const LoadPlan& plan);

// Reads what the plan says through aligned staging buffers, checks each chunk and puts the elements where they belong. The
// destinations are parallel to the wanted boxes that the plan was made from.
// Errors: DataLoss, naming file, offset, tensor, expected and found.
absl::Status ReadDataFiles(const Manifest& manifest, const LoadPlan& plan, const OpenFiles& files,
                           std::span<const Destination> destinations,
                           const DataReaderOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ENGINE_DATA_READER_H_
