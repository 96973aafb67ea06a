#ifndef TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_H_

// The checkpoint library: sharded state in; an atomic, checksummed checkpoint out; back in under
// any other sharding.
//
//   const auto folder = ckpt::CheckpointFolder::Open("/runs/a", {.create_root = true});
//   ckpt::ShardedTensor weight = {.name = "weight", .global_shape = {8, 4}};
//   weight.shards = {ckpt::Shard::Of(rows, {.global_offset = {3, 0}, .shape = {5, 4}})};
//   const auto saved = folder->Save(step, {{weight}}, {.group = &group});
//
//   weight.shards = {ckpt::Shard::Of(columns, {.global_offset = {0, 1}, .shape = {8, 2}})};
//   const auto latest = folder->Latest();
//   const auto loaded = latest->Load({{weight}}, {.group = &group});
//
// Two handles are the whole interface: CheckpointFolder, and Checkpoint, one that was opened.
// Beside them are, in headers of their own in this folder:
//
//   async_saver.h           saves in the background
//   checkpoint_manager.h    when a job saves, what it keeps, where it resumes
//   peer_replicas.h         the newest state in the memory of two hosts
//   process_group.h         the ranks of a job, over the program's own communication
//   thread_process_group.h  the same, where ranks are threads of one process
//   manifest.h              the manifest as a protobuf message
//
// ../FORMAT.md describes the files; //storage/storage.h is the interface of the places for them,
// for programs that bring their own.
//
// Errors: absl::Status everywhere. InvalidArgument: the request; FailedPrecondition: saved and
// wanted state disagree; NotFound: no such checkpoint, with those that are there; DataLoss: bad
// bytes, with file, offset, expected and found. Messages name the tensor.
//
// Threads: several threads may call at once, on one folder or checkpoint too, but not with one
// group or into one memory.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint_info.h"  // CheckpointInfo
#include "checkpoint/include/load_options.h"     // LoadOptions, LoadReport
#include "checkpoint/include/save_options.h"     // SaveOptions, SaveReport, Metadata
#include "checkpoint/include/state_dict.h"       // StateDict, ShardedTensor, Shard
#include "checkpoint/include/verify_options.h"   // VerifyOptions, VerifyReport
#include "layout/box.h"                          // Shape, Box
#include "storage/open_storage.h"                // OpenStorageOptions

namespace tessera {
class Storage;  // storage/storage.h
}  // namespace tessera

namespace tessera::ckpt {

class ReadLock;  // checkpoint/directory/read_lock.h

// The options with what a storage needs that checkpoints are saved to: its root is created, and
// uploads that saves left behind when they died are removed.
OpenStorageOptions ForSaving(OpenStorageOptions options);

// A tensor as a checkpoint has it.
struct TensorInfo {
  std::string name;
  TensorRole role = TensorRole::kWeight;
  DType dtype = DType::kUnspecified;
  Shape global_shape;    // without padding
  std::string alias_of;  // not empty: a second name of that tensor
};

// A committed checkpoint whose manifest has been read. Copies share it. While one of them lives,
// neither Prune() nor a trainer's retention deletes the checkpoint, where the file system has locks
// on directories (docs/checkpoints.md). Thread-safe.
class Checkpoint {
 public:
  // The checkpoint that a name such as "/runs/a/step-00000100" names, see OpenStorage(). NotFound,
  // listing what is there; DataLoss where the manifest is damaged.
  static absl::StatusOr<Checkpoint> Open(std::string_view name,
                                         const OpenStorageOptions& options = {});
  // A directory of a storage, such as CheckpointInfo::directory. The storage must outlive the
  // checkpoint.
  static absl::StatusOr<Checkpoint> Open(Storage& storage, std::string_view checkpoint_dir);
  // One whose manifest is there already, as from another rank. Nothing keeps it from being deleted
  // where `reading` is null.
  Checkpoint(std::shared_ptr<Storage> storage, std::string_view directory, Manifest manifest,
             std::shared_ptr<const ReadLock> reading = nullptr);
  // The same over a storage that must outlive the checkpoint.
  Checkpoint(Storage& storage, std::string_view directory, Manifest manifest);

  Storage& storage() const { return *storage_; }
  const std::string& directory() const { return directory_; }  // within the storage
  int64_t step() const;
  Metadata metadata() const;                               // program and entries
  std::vector<TensorInfo> tensors() const;                 // aliases included
  const Manifest& manifest() const { return *manifest_; }  // see checkpoint/include/manifest.h

  // NotFound: no such tensor.
  absl::StatusOr<TensorInfo> Find(std::string_view name) const;
  // `box`, or all of the tensor; InvalidArgument unless it lies inside the tensor.
  absl::StatusOr<Box> BoxOf(std::string_view name, const std::optional<Box>& box) const;

  // Loads into the memory of `state`, under whatever sharding it has: the saved one does not
  // matter. Compares everything first and reports the mismatches of all ranks at once, the first
  // ten in words. Aliases are resolved on both sides.
  //
  // Errors: InvalidArgument (options, state), NotFound, FailedPrecondition (missing, unexpected,
  // role, shape, dtype, coverage), DataLoss. Up to and including a missing or truncated file
  // nothing is changed. A checksum error can come after some memory was filled: every byte is
  // verified before it is placed, but other tensors may already be new. The state is then to be
  // discarded or loaded again, as it is where verify_digests finds a difference.
  //
  // Collective over options.group, in which the manifest that rank 0 has read is the one that
  // counts; every rank returns the same status. Memory: staging_bytes per process plus the plan.
  // Cost: only checksum chunks that hold wanted bytes are read, each by one of the ranks that want
  // any of it, which hands the others their part while it reads on.
  absl::StatusOr<LoadReport> Load(const StateDict& state, const LoadOptions& options = {}) const;

  // Loads one tensor, or a box of it, by its name alone, whatever its sharding: into `destination`,
  // whose box, dtype and strides say what is wanted and where it goes. Reads only what the box
  // needs, in this process alone; role and group do not matter. NotFound: no such tensor; otherwise
  // as Load().
  absl::Status LoadTensor(std::string_view name, const Shard& destination,
                          const LoadOptions& options = {}) const;

  // The same into memory of its own, row-major: the whole tensor without `box`. Converted where it
  // was saved in another floating dtype than T.
  template <typename T>
  absl::StatusOr<std::vector<T>> LoadTensor(std::string_view name,
                                            const std::optional<Box>& box = std::nullopt) const {
    absl::StatusOr<Box> wanted = BoxOf(name, box);
    if (!wanted.ok()) return wanted.status();
    std::vector<T> elements(ElementCount(wanted->shape));
    const absl::Status loaded = LoadTensor(name, Shard::Of(elements, *std::move(wanted)));
    if (!loaded.ok()) return loaded;
    return elements;
  }

  // Reads every byte; checks checksums, headers, coverage and, where asked, logical digests. Damage
  // is in the report; an error, of the storage for example, says that the checkpoint could not be
  // looked at, and nothing about its bytes.
  absl::StatusOr<VerifyReport> Verify(const VerifyOptions& options = {}) const;

 private:
  friend class CheckpointFolder;
  static absl::StatusOr<Checkpoint> Read(std::shared_ptr<Storage> storage,
                                         std::string_view directory);
  std::shared_ptr<Storage> storage_;
  std::string directory_;
  std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<const ReadLock> reading_;
};

// A folder of checkpoints, each in a directory that is named for its step: "step-00000042". Copies
// share the storage. Thread-safe.
class CheckpointFolder {
 public:
  // Opens what `name` names: a directory, or a prefix of an object store. See OpenStorage().
  static absl::StatusOr<CheckpointFolder> Open(std::string_view name,
                                               const OpenStorageOptions& options = {});
  // The folder is the root of the storage.
  explicit CheckpointFolder(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  // The storage must outlive the folder, its copies, and the checkpoints that it opens.
  explicit CheckpointFolder(Storage& storage);

  Storage& storage() const { return *storage_; }

  // Saves the checkpoint of a step. It exists when, and only when, its manifest is committed, and
  // no file of a committed checkpoint is ever touched. A half-written directory of the same step is
  // removed first.
  //
  // Every rank returns the same. Errors, each with nothing committed: InvalidArgument (options,
  // metadata, state: every problem listed, a tensor that the ranks together do not cover included),
  // AlreadyExists (that step is committed), Aborted (another process has deleted files of this
  // save, or discarded it), ResourceExhausted (checked before anything is written, where the
  // storage can tell), the storage's, DeadlineExceeded or Unavailable from the group. An error on
  // one rank is returned on all of them, with the rank's number where there are several.
  //
  // Collective over options.group. State is read, not changed. Memory: staging_bytes per process
  // plus the plan. Cost: each byte of the state passes once through the cache (copy, digest,
  // checksum) and goes to the disk past the page cache. AsyncSaver does the same in the background.
  absl::StatusOr<SaveReport> Save(int64_t step, const StateDict& state,
                                  const SaveOptions& options = {}) const;

  // Committed checkpoints, ascending by step. The step is taken from the directory's name;
  // manifests are not read. Empty if the folder does not exist. Unreadable ones are left out and
  // added to `unreadable` (may be null): one bad directory does not make the others useless.
  absl::StatusOr<std::vector<CheckpointInfo>> List(
      std::vector<CheckpointInfo>* unreadable = nullptr) const;
  // Directories of saves that were started but not committed, ascending by step.
  absl::StatusOr<std::vector<CheckpointInfo>> ListUncommitted() const;

  // The newest committed checkpoint, whose manifest is not read. NotFound without any; the error
  // of an unreadable directory if that has a later step, as it may be the newest.
  absl::StatusOr<CheckpointInfo> FindLatest() const;
  // Opens it, or that of a step.
  absl::StatusOr<Checkpoint> Latest() const;
  absl::StatusOr<Checkpoint> At(int64_t step) const;

  // Checkpoint::Verify() of one that need not open: a manifest that is damaged is in the report,
  // too. NotFound without a manifest. `directory` as in CheckpointInfo.
  absl::StatusOr<VerifyReport> Verify(std::string_view directory,
                                      const VerifyOptions& options = {}) const;

  // Deletes the oldest checkpoints beyond `keep`, but never the newest. Each is uncommitted first,
  // so that a crash halfway leaves no checkpoint that looks complete. Also removes incomplete
  // directories older than the newest committed one, and those that an interrupted save renamed to
  // discard them. Symbolic links and unreadable directories are left alone and do not count. Tries
  // all, and returns the first error.
  absl::Status Prune(int keep) const;

 private:
  std::shared_ptr<Storage> storage_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_CHECKPOINT_H_
