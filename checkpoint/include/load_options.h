#ifndef TESSERA_CHECKPOINT_INCLUDE_LOAD_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_LOAD_OPTIONS_H_

// Implemented in checkpoint/load/load.cc and the files that it calls.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tessera::ckpt {

class ProcessGroup;  // checkpoint/include/process_group.h

// Options may differ from rank to rank, unless they say otherwise.
struct LoadOptions {
  // The ranks that load together, each the state that it wants; collective. Owned by the caller.
  // Null: this process alone.
  ProcessGroup* group = nullptr;
  absl::Duration timeout = absl::Minutes(10);  // for each wait on other ranks

  // The same on all ranks, since ranks read for each other.
  bool verify_checksums = true;
  // Whether to compare the digests of the elements that all ranks placed in their memory with the
  // saved ones. This also detects damage after the checksums were verified, and elements in the
  // wrong place. Costs 5 to 20 % of a load (docs/checkpoints.md), and one more pass for tensors
  // whose rows are not contiguous in memory. The same on all ranks.
  bool verify_digests = false;
  // Whether to leave a wanted tensor that was not saved unchanged, and report it.
  bool allow_missing = false;
  // Whether to ignore a saved tensor that no rank wants, and report it. The same on all ranks.
  bool allow_unexpected = false;
  // Whether to fill a weight that was not saved from its master weight, converted.
  bool weights_from_master = true;
  // Whether to convert between floating dtypes if saved and wanted differ; otherwise such loads are
  // refused.
  bool convert_dtype = true;
  // Whether finite elements that the wanted dtype cannot hold become infinite. Otherwise the first
  // of them ends the load.
  bool allow_overflow = false;
  // Whether wanted boxes may share memory although the checkpoint may have other elements for each:
  // the caller knows that their values are the same. Otherwise such loads are refused. Tied weights
  // are allowed: one box of elements under several names, as the checkpoint's digests show. Only
  // host memory is compared, and at most 2^20 contiguous runs of elements.
  bool allow_shared_memory = false;
  int io_threads = 4;
  // Memory for reading, in bytes; never less than one checksum chunk of the checkpoint, or seven
  // chunks if ranks read for each other. A load to a device takes up to as much page-locked memory.
  uint64_t staging_bytes = uint64_t{64} << 20;
  // Called with the saved size of the elements that were placed in this rank's memory, and of all
  // that it wants, by one thread at a time. Null: not called.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
  // Called often, by any thread and by several at once, while this rank reads: must be thread-safe
  // and quick. True ends the load with Cancelled, after which the state is as after any other
  // failed read.
  std::function<bool()> is_cancelled = {};
};

struct LoadReport {
  // Names of tensors.
  std::vector<std::string> missing;      // this rank wants them, and they were not saved
  std::vector<std::string> unexpected;   // they were saved, and no rank wants them
  std::vector<std::string> from_master;  // this rank's weights, converted from master weights
  // Bytes of the data files, in whole checksum chunks. Bytes that several ranks need are read by
  // one of them, so the sum of bytes_read over all ranks counts each needed byte once.
  uint64_t bytes_needed = 0;    // what this rank would have read on its own
  uint64_t bytes_read = 0;      // by this rank, for itself and others
  uint64_t bytes_received = 0;  // from other ranks; only wanted parts of chunks
  uint64_t bytes_sent = 0;
  uint64_t buffer_bytes = 0;  // memory of the exchange; 0 if no read was shared
  // Results of verify_digests, over all ranks.
  int64_t digests_verified = 0;                 // tensors
  std::vector<std::string> digests_unverified;  // names, with the reasons
  absl::Duration verify_duration;
  absl::Duration duration;  // of the whole load
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_LOAD_OPTIONS_H_
