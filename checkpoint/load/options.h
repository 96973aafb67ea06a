#ifndef TESSERA_CHECKPOINT_LOAD_OPTIONS_H_
#define TESSERA_CHECKPOINT_LOAD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"

namespace tessera::ckpt {

struct LoadOptions {
  // The ranks that load together, each what it wants; collective. The group is the caller's. Null:
  // this process alone.
  ProcessGroup* group = nullptr;
  absl::Duration deadline = absl::Minutes(10);  // for each wait on other ranks

  bool verify_checksums = true;
  // Whether what all ranks placed in their memory has the digests that were saved: finds also what
  // happened to the bytes after they were checked, and what went to the wrong place. Taken on the
  // way: a load from a local disk by four ranks of two cores (GPT-2 124M) took 5 % longer where
  // each rank holds a part of the state, and 20 % where each holds all of it. Where elements of a
  // row do not lie side by side in memory, one pass over it afterwards.
  bool verify_digests = false;
  bool allow_missing = false;     // wanted, not saved: left as it is, and reported
  bool allow_unexpected = false;  // saved, not wanted: ignored, and reported
  // Fill a weight that was not saved from its master weight, converting the dtype.
  bool weights_from_master = true;
  // Convert between floating dtypes where saved and wanted differ; refused otherwise.
  bool convert_dtype = true;
  int io_threads = 4;
  // At most, or one chunk; seven where ranks share their reading.
  uint64_t staging_bytes = uint64_t{64} << 20;
};

struct LoadReport {
  std::vector<std::string> missing;     // names: wanted on this rank, not saved
  std::vector<std::string> unexpected;  // names: saved, wanted by no rank
  std::vector<std::string>
      from_master;  // names: weights of this rank that came from master weights
  // Whole checksum chunks. What several ranks need is read by one of them: over all ranks,
  // bytes_read is each needed byte once.
  uint64_t bytes_needed = 0;    // what this rank would have read alone
  uint64_t bytes_read = 0;      // by this rank, for itself and others
  uint64_t bytes_received = 0;  // from other ranks, without what of their chunks is not wanted here
  uint64_t bytes_sent = 0;
  uint64_t buffer_bytes = 0;  // memory that the exchange took; 0 where nothing was shared
  // Of verify_digests, over all ranks.
  int64_t digests_verified = 0;                 // tensors
  std::vector<std::string> digests_unverified;  // names, with why nothing can be said
  double verify_seconds = 0;
  double seconds = 0;  // with all of it
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_OPTIONS_H_
