#ifndef TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_H_

// The checkpoint library: saves sharded state as an atomic, checksummed checkpoint, and loads it
// under any other sharding.
//
//   const auto folder = ckpt::CheckpointFolder::Open("/runs/a", {.create_root = true});
//   ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {8, 4}};
//   weight.shards = {ckpt::Shard::Of(rows, {.global_offset = {3, 0}, .shape = {5, 4}})};
//   const auto saved = folder->Save(step, {.tensors = {weight}}, {.group = &group});
//
//   weight.shards = {ckpt::Shard::Of(columns, {.global_offset = {0, 1}, .shape = {8, 2}})};
//   const auto latest = folder->Latest();
//   const auto loaded = latest->Load({.tensors = {weight}}, {.group = &group});
//
// The interface consists of two handles: CheckpointFolder, and Checkpoint for an opened checkpoint.
// Other headers of this folder have:
//
//   async_saver.h           saves in the background
//   checkpoint_manager.h    when a job saves, what it keeps, where it resumes
//   peer_replicas.h         the newest state in the memory of two hosts
//   process_group.h         the ranks of a job, over the program's own communication; one status of
//                           all of them
//   device_memory.h         shards in memory that the processor cannot address
//   manifest.h              the manifest as a protobuf message
//
// ../FORMAT.md describes the files. storage/storage.h is the interface of a place for checkpoints,
// which a program may implement.
//
// Errors:
//   InvalidArgument       the request is wrong
//   FailedPrecondition    the saved and the wanted state disagree
//   NotFound              there is no such checkpoint; the message lists the existing ones
//   DataLoss              bytes are damaged; the message has file, offset, expected and found value
// Messages name the tensor. A function of SaveOptions, AsyncSaveOptions, LoadOptions or
// VerifyOptions that throws a std::exception fails the save, the load or the verification with
// Internal, on every rank. manager_options.h says what those of a job do.
//
// Threads: several threads may call at once, also on one folder or checkpoint, but not with one
// group or into one memory.
//
// Implemented in checkpoint/load/checkpoint.cc and checkpoint/checkpoint_folder.cc.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/load_options.h"    // LoadOptions, LoadReport
#include "checkpoint/include/save_options.h"    // SaveOptions, SaveReport, Metadata
#include "checkpoint/include/state_dict.h"      // StateDict, ShardedTensor, Shard
#include "checkpoint/include/verify_options.h"  // VerifyOptions, VerifyReport
#include "layout/box.h"                         // Shape, Box
#include "storage/open_storage.h"               // OpenStorageOptions

namespace tessera {
class Storage;  // storage/storage.h
}  // namespace tessera

namespace tessera::ckpt {

struct OpenedCheckpoint;  // internal

// The description of a tensor in a checkpoint.
struct TensorInfo {
  std::string name;
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kUnspecified;
  Shape global_shape;    // without padding
  std::string alias_of;  // not empty: a second name of that tensor
};

// A committed checkpoint whose manifest has been read. Copies share it. If is_kept(), neither
// Prune() nor a job's retention deletes the checkpoint during the lifetime of a copy. Thread-safe.
class Checkpoint {
 public:
  // Opens the checkpoint that a name such as "/runs/a/step-00000100" names, see OpenStorage().
  // NotFound lists the existing checkpoints; DataLoss if the manifest is damaged.
  static absl::StatusOr<Checkpoint> Open(std::string_view name,
                                         const OpenStorageOptions& options = {});
  // Opens the checkpoint in a directory of a storage, such as CheckpointInfo::directory. The
  // storage must outlive the checkpoint.
  static absl::StatusOr<Checkpoint> Open(Storage& storage, std::string_view checkpoint_dir);

  Storage& storage() const;
  const std::string& directory() const;  // within the storage
  // Returns whether a lock on the directory marks the checkpoint as being read. Object stores and
  // most network file systems have no such locks (docs/checkpoints.md).
  bool is_kept() const;
  int64_t step() const;
  Metadata metadata() const;                // program and entries
  std::vector<TensorInfo> tensors() const;  // aliases included
  const Manifest& manifest() const;         // see checkpoint/include/manifest.h

  // Returns the description of a tensor. NotFound if there is no such tensor.
  absl::StatusOr<TensorInfo> Find(std::string_view name) const;
  // Returns `box`, or the box of the whole tensor. InvalidArgument unless the box lies inside the
  // tensor.
  absl::StatusOr<Box> BoxOf(std::string_view name, const std::optional<Box>& box) const;

  // Loads into the memory of `state`, under any sharding, whatever the saved one was. Compares
  // everything first and reports the mismatches of all ranks at once, the first ten in words.
  // Aliases are resolved on both sides.
  //
  // Errors:
  //   InvalidArgument       options or state are wrong, or options differ that must not
  //   FailedPrecondition    tensors are missing or unexpected, or differ in role, shape or dtype,
  //                         or their shards do not cover them; or wanted boxes share memory
  //                         (allow_shared_memory); or the wanted dtype cannot hold an element
  //                         (allow_overflow)
  //   NotFound              a file is missing
  //   DataLoss              a file is truncated, or a checksum or a digest is wrong
  //   other codes           of the storage and of the group
  // All files are opened, and their sizes compared, before any memory changes: `state` is unchanged
  // after an error up to then. Every byte is verified before it is placed, but after a wrong
  // checksum other tensors may already be new. After a wrong checksum or digest (verify_digests),
  // or an element that a dtype cannot hold, discard the state or load it again.
  //
  // Collective over options.group. Every rank uses the manifest of rank 0 and returns the same
  // status. Memory: staging_bytes per process plus the plan. Cost: only checksum chunks with wanted
  // bytes are read. If several ranks want parts of a chunk, one of them reads it, and sends the
  // others their parts while it reads on.
  absl::StatusOr<LoadReport> Load(const StateDict& state, const LoadOptions& options = {}) const;

  // Loads one tensor, or a box of it, by its name alone, whatever its sharding. The box, dtype and
  // strides of `destination` say what is wanted and where it goes. Reads only what the box needs,
  // in this process alone; role and group do not matter. The cost does not depend on the number of
  // tensors. NotFound if there is no such tensor; otherwise the errors of Load().
  absl::Status LoadTensor(std::string_view name, const Shard& destination,
                          const LoadOptions& options = {}) const;

  // Loads a tensor, or the part in `box`, into new memory, row-major. Converts from another
  // floating dtype than T.
  template <typename T>
  absl::StatusOr<std::vector<T>> LoadTensor(std::string_view name,
                                            const std::optional<Box>& box = std::nullopt) const {
    absl::StatusOr<Box> wanted = BoxOf(name, box);
    if (!wanted.ok()) return wanted.status();
    std::vector<T> elements(static_cast<size_t>(ElementCount(wanted->shape)));
    const absl::Status loaded = LoadTensor(name, Shard::Of(elements, *std::move(wanted)));
    if (!loaded.ok()) return loaded;
    return elements;
  }

  // Reads every byte, and checks checksums, headers, coverage and, if requested, logical digests.
  // Damage is in the report. An error, for example of the storage, means that the checkpoint could
  // not be read, and says nothing about its bytes.
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options = {}) const;

 private:
  friend struct OpenedCheckpoint;
  explicit Checkpoint(std::shared_ptr<const OpenedCheckpoint> opened)
      : opened_(std::move(opened)) {}

  std::shared_ptr<const OpenedCheckpoint> opened_;
};

// A directory that is named for a step: a complete or incomplete checkpoint.
struct CheckpointInfo {
  int64_t step = 0;
  std::string directory;  // inside the storage
  bool rolling = false;   // in a rolling slot of a CheckpointManager
  bool committed = true;  // false: a save was started but never committed, or it is not known
  // Not OK: the directory cannot be listed, and may hold a checkpoint.
  absl::Status readable = absl::OkStatus();

  bool operator==(const CheckpointInfo&) const = default;
};

// The checkpoint of a folder that a program reads, and sentences for its user.
struct FoundCheckpoint {
  CheckpointInfo checkpoint;
  std::vector<std::string> notes;
};

// The directories of a folder that are named for steps, ascending by step.
struct FolderContents {
  std::vector<CheckpointInfo> committed;    // checkpoints
  std::vector<CheckpointInfo> uncommitted;  // of saves that were started but not committed
  // Those that cannot be listed, and may hold checkpoints. They are apart, so that one of them does
  // not make the others useless.
  std::vector<CheckpointInfo> unreadable;
};

// A folder of checkpoints, each in a directory that is named for its step: "step-00000042". Copies
// share the storage. Thread-safe.
class CheckpointFolder {
 public:
  // Opens a directory, or a prefix of an object store. See OpenStorage().
  static absl::StatusOr<CheckpointFolder> Open(std::string_view name,
                                               const OpenStorageOptions& options = {});
  // Makes the folder that is the root of the storage.
  explicit CheckpointFolder(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  // Makes the folder that is the root of the storage, which must outlive the folder, its copies,
  // and the checkpoints that it opens.
  explicit CheckpointFolder(Storage& storage);

  Storage& storage() const { return *storage_; }

  // Saves the checkpoint of a step, which exists if and only if its manifest is committed. In a
  // group, rank 0's metadata is saved. No file of a committed checkpoint is ever touched, unless it
  // is overwritten (SaveOptions::overwrite). A half-written directory of the same step is removed
  // first.
  //
  // Errors:
  //   InvalidArgument      options, metadata or state are wrong, or the ranks together do not cover
  //                        a tensor; the message lists every problem
  //   AlreadyExists        the step is committed; with `overwrite`, another process has overwritten
  //                        it meanwhile
  //   Aborted              another process has deleted files of this save, or discarded it
  //   ResourceExhausted    too little space; known before anything is written if the storage knows
  //                        its free space
  //   Unavailable, DeadlineExceeded    a rank is gone, or late
  //   other codes          of the storage
  // After the first three, nothing is committed, unless the message of Aborted says that the
  // manifest is still there. After the others, the checkpoint may be committed: the answer to the
  // last request was lost, or a rank left after it. List() tells.
  //
  // Every rank that the group reaches returns the same status. An error's message has the number of
  // the rank that failed.
  //
  // Collective over options.group. Reads the state and does not change it. Memory: staging_bytes
  // per process plus the plan. Cost: each byte of the state passes once through the cache (copy,
  // digest, checksum) and goes to the disk past the page cache. AsyncSaver does the same in the
  // background.
  absl::StatusOr<SaveReport> Save(const SaveRequest& request, const StateDict& state,
                                  const SaveOptions& options = {}) const;
  absl::StatusOr<SaveReport> Save(int64_t step, const StateDict& state,
                                  const SaveOptions& options = {}) const {
    return Save({.step = step}, state, options);
  }

  // Return the committed checkpoints, and all directories that are named for steps. None if the
  // folder does not exist. Manifests are not read. List() leaves unreadable directories out.
  absl::StatusOr<std::vector<CheckpointInfo>> List() const;  // ascending by step
  absl::StatusOr<FolderContents> ListAll() const;

  // Returns the newest committed checkpoint. Skips checkpoints whose manifest says that the run had
  // diverged, unless the folder has no others: a note names each skipped checkpoint, or says that
  // all have diverged. Reads manifests; a checkpoint whose manifest cannot be read is not skipped.
  // NotFound if there is no checkpoint. If a directory of a later step is unreadable, it may be the
  // newest: returns its error.
  absl::StatusOr<FoundCheckpoint> FindLatest() const;
  // Open a checkpoint: FindLatest()'s, without its notes; one of a list; that of a step.
  absl::StatusOr<Checkpoint> Latest() const;
  absl::StatusOr<Checkpoint> At(const CheckpointInfo& checkpoint) const;
  absl::StatusOr<Checkpoint> At(int64_t step) const;

  // Verifies a checkpoint as Checkpoint::Verify() does, without opening it: a damaged manifest is
  // in the report, too. `directory` as in CheckpointInfo. NotFound without a manifest.
  absl::StatusOr<VerifyReport> Verify(std::string_view directory,
                                      const VerifyOptions& options = {}) const;

  // Deletes all checkpoints but the `keep` ones of the highest steps; keeps at least one. Damaged
  // ones do not count, and stay as long as fewer than `keep` intact ones are newer. Also keeps the
  // newest checkpoint whose manifest does not say that the run had diverged, and all that cannot be
  // read for another reason than damage. After a save, pass its step as `saved_step`: its
  // checkpoint is kept even if its step is lower than others. A checkpoint that another process has
  // overwritten since its manifest was read stays. Each checkpoint is uncommitted before its files
  // are deleted, so that a crash halfway leaves no checkpoint that looks complete. Also removes
  // incomplete directories older than the newest committed one, and directories that an interrupted
  // save renamed to discard them. Ignores symbolic links and unreadable directories. Tries all, and
  // returns the first error.
  absl::Status Prune(int keep, std::optional<int64_t> saved_step = std::nullopt) const;

 private:
  std::shared_ptr<Storage> storage_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_H_
