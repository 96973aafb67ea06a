#ifndef TESSERA_CHECKPOINT_ENGINE_DATA_WRITER_H_
#define TESSERA_CHECKPOINT_ENGINE_DATA_WRITER_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/engine/exchange.pb.h"
#include "checkpoint/engine/state_dict.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct DataWriterOptions {
  uint32_t chunk_bytes;
  int io_threads;
  uint64_t staging_bytes;
};

// Writes the data files that a plan gives to one rank and makes their contents (not their names) durable. State passes through
// aligned staging buffers of a few MiB, one per thread, where it is checksummed and digested while it is in the cache; so
// at most staging_bytes, or one chunk per thread, is held at a time.
//
// Returns checksums of all chunks and the digests of what was written. Errors name the file.
absl::StatusOr<WriteReport> WriteDataFiles(Storage& storage, std::string_view directory,
                                           const StateDict& state, const LocalPlan& local,
                                           const RankPlan& plan, const DataWriterOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ENGINE_DATA_WRITER_H_
