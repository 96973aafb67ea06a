#ifndef TESSERA_CHECKPOINT_INCLUDE_SAVE_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_SAVE_OPTIONS_H_

// Implemented in checkpoint/save/run_save.cc and the files that it calls.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::ckpt {

class Manifest;      // checkpoint/include/manifest.h
class ProcessGroup;  // checkpoint/include/process_group.h

// Merges the ranks' bytes of one entry, and returns the bytes to save, or an error, which fails the
// save. `by_rank` has the bytes of rank 0, and of each rank whose bytes differ from them. The bytes
// of a rank without the entry are empty.
using MergeEntry =
    std::function<absl::StatusOr<std::string>(const std::map<int, std::string>& by_rank)>;

// The data of a checkpoint besides its tensors. In a group, rank 0's metadata is saved.
struct Metadata {
  std::string program = {};  // the saving program, for people: "my_trainer 1.2"
  std::map<std::string, std::string> entries = {};  // the program's own data: any bytes by name
  // Functions that merge the ranks' entries, by the entries' names; the same names on all ranks. If
  // another rank's entry differs from rank 0's, rank 0 calls the entry's function on the saving
  // thread, before anything is written. Entries without a function are rank 0's.
  std::map<std::string, MergeEntry> merge = {};

  // Fields of the manifest that the program fills in itself (topology, model, optimizer). Tensors
  // and files must be empty, the step is ignored, and the fields above are added. A time of 0, and
  // any time in a save of a CheckpointManager, becomes that of the save. May be null.
  std::shared_ptr<const Manifest> manifest = {};
};

// One save: its step, and what is stored with the tensors.
struct SaveRequest {
  int64_t step = 0;
  Metadata metadata = {};
  // False: the manifest says that the run had diverged, unless metadata.manifest has a health of
  // its own. TryResume() skips such a checkpoint, and retention does not treat it as a good one.
  bool healthy = true;
};

// The same on all ranks, except for progress, is_cancelled, before_commit, io_threads and
// staging_bytes.
struct SaveOptions {
  // The ranks that save together, each its part of the state; collective, see process_group.h.
  // Owned by the caller; must outlive the call, or the saver. Null: this process alone.
  ProcessGroup* group = nullptr;
  absl::Duration timeout = absl::Minutes(10);  // for each wait on other ranks

  // Whether to replace a committed checkpoint of the same step; otherwise the save fails with
  // AlreadyExists. Whatever happens, the old or the new checkpoint is there as a whole. Once the
  // new checkpoint is committed, all other files in its directory are deleted. While this machine
  // reads the old checkpoint, its files stay; the next save of the step deletes them. Needs room
  // for both.
  // Unimplemented, with nothing changed, in an object store without conditional replacement.
  bool overwrite = false;

  // Layout of the files. A checksum chunk is the smallest part that a partial read fetches; its
  // size must be a multiple of 8.
  uint32_t checksum_chunk_bytes = 1 << 20;
  // Limit of a file; a rank with more data writes several files.
  uint64_t max_file_bytes = uint64_t{4} << 30;

  // Threads that copy and write. More threads than cores keep the disk busy.
  int io_threads = 4;
  uint64_t staging_bytes = uint64_t{64} << 20;  // memory for copies; never less than a chunk

  // Called with the bytes of this rank's data files that are written, and with their total, by one
  // thread at a time. Null: not called.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
  // Called often, by any thread, with a lock of the save held, until this rank's data is written:
  // must be thread-safe and quick, and must not call the saver. True ends the save with Cancelled,
  // within the time of a few writes of 4 MiB.
  std::function<bool()> is_cancelled = {};

  // Makes durable what the checkpoint depends on, for example a log. The saving thread calls it, on
  // every rank that set it, once the rank's data is durable and before the commit. An error fails
  // the save.
  std::function<absl::Status()> before_commit = {};
};

// The time that a rank spent on its part of a save. The times of copying, writing and syncing are
// means over its io_threads.
struct SavePhases {
  absl::Duration planning;  // until it knew what to write, and where
  absl::Duration copying;   // with checksums and digests
  absl::Duration writing;
  absl::Duration syncing;   // contents and names
  absl::Duration duration;  // from its call until it had done its part
};

struct SaveReport {
  std::string directory;          // of the new checkpoint, within the storage
  uint64_t bytes_written = 0;     // to data files, by all ranks together
  absl::Duration duration;        // from the call to the commit; in the background, from Start()
  std::vector<SavePhases> ranks;  // by rank; on rank 0, elsewhere empty
  // Processor time of copies, checksums and writes on the threads that the save runs here.
  absl::Duration processor_time;

  // For saves in the background:
  absl::Duration copied_after;  // from Start() until this process's state was copied
  absl::Duration blocked;       // in Start() and waiting for the copy

  // Problems that did not prevent the save: memory that was not available, and why; checkpoints
  // that could not be deleted. Usually empty.
  std::string note;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_SAVE_OPTIONS_H_
