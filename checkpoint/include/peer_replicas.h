#ifndef TESSERA_CHECKPOINT_INCLUDE_PEER_REPLICAS_H_
#define TESSERA_CHECKPOINT_INCLUDE_PEER_REPLICAS_H_

// Replicas: the newest state of a job in the memory of its hosts, each part on two of them, so that
// a job that has lost processes, or a host, restarts without reading its store.
//
//   ckpt::PeerReplicaOptions options = {.folder = "/dev/shm/my-job", .store = &store};
//   options.group = &group;
//   const auto replicas = ckpt::PeerReplicas::Open(options);
//
//   const auto found = (*replicas)->FindLatest();             // after a restart
//   if (found->checkpoint.has_value() && found->checkpoint->step() >= newest_in_the_store) {
//     found->checkpoint->Load(state, {.group = &group});      // under any sharding
//   } else ...load from the store...
//
//   (*replicas)->Begin(state, background, resumed_from_replica);
//   for each step:
//     if (it is time) (*replicas)->Start({.step = step}, state);
//     forward and backward;
//     for each bucket: (*replicas)->WaitUntilCopied(bucket's memory); update the bucket;
//     for (const SaveOutcome& outcome : (*replicas)->Poll()) report it;
//   (*replicas)->Finish();

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"

namespace tessera {
class Storage;  // storage/storage.h
}  // namespace tessera

namespace tessera::ckpt {

class ProcessGroup;  // process_group.h

struct PeerReplicaOptions {
  // A folder in memory (in /dev/shm, or another tmpfs) that outlives the processes; the job's own
  // on each host. Created with access for this user alone. Ranks that see the same folder are on
  // one host.
  std::string folder;
  // The host's name in messages. Empty: the system's.
  std::string host;
  // The folder of the job's permanent checkpoints, locked by the job (FolderLock): the file
  // ".replicas" there says which replicas belong to its present. Used on rank 0; must outlive this.
  Storage* store = nullptr;
  // Must outlive this. Null: this process alone.
  ProcessGroup* group = nullptr;
  absl::Duration deadline = absl::Minutes(10);  // for each wait on other ranks
  // For the processes of a predecessor, which notice after a second or two that it was killed.
  absl::Duration lock_wait = absl::Seconds(10);
};

struct FoundReplica {
  // On every rank; nullopt without any. To be loaded by all ranks together: its storage reads on
  // the ranks whose hosts have the bytes.
  std::optional<Checkpoint> checkpoint;
  // What was found, or lost and where it had been, in a sentence for the user. May be empty.
  std::string note;
};

// A replica is a checkpoint: the same plan, files, manifest, checksums and digests, in a directory
// of each host's folder. Every rank writes its part there, in the background (AsyncSaver), and then
// sends it to a rank of the next host, which keeps the copy; after the last host comes the first.
// Once every host has its parts, its copies and the manifest, the replica before is deleted: a
// complete one exists at any time, and two at most. Nothing becomes a permanent checkpoint by this.
//
// After a restart, any number of ranks on any hosts offer what their folders have. The newest
// replica is taken of whose every file some host has an intact copy: each file's checksums are
// verified first, by the ranks of its hosts. So the loss of one host, of hosts that are not
// neighbours, or of one of two copies costs nothing; the loss of two neighbours costs the replica.
//
// A replica is taken only if the store's file ".replicas" names it: Begin() writes a new name
// there, so that what an earlier incarnation of the job, or another job, has left is never taken,
// whichever host it turns up on later; but for the replica that the job has resumed from, until a
// newer one is complete. A job that does not replicate calls Disown() before it saves.
//
// With one host there are no copies: what is kept survives its processes, not the host.
//
// Memory: twice the state of a host's ranks and of the host's before it, in the folder, which
// Begin() checks; and background.save.staging_bytes in each process. Cost: each part is written
// twice and crosses the network once.
//
// Collective: all ranks make the same calls in the same order. Calls come from one thread;
// WaitUntilCopied() and WaitUntilAllCopied() from any.
class PeerReplicas {
 public:
  // Opens the folders and locks them until this is destroyed. FailedPrecondition, on every rank,
  // while another process replicates there; PermissionDenied where a folder is another user's.
  static absl::StatusOr<std::unique_ptr<PeerReplicas>> Open(const PeerReplicaOptions& options);

  // Waits for a replica in flight.
  ~PeerReplicas();
  PeerReplicas(const PeerReplicas&) = delete;
  PeerReplicas& operator=(const PeerReplicas&) = delete;

  // The newest replica that is complete and intact. Changes nothing. Errors: the store's and the
  // group's; what is wrong with replicas is in the note. Cost: reads all of it once, shared among
  // the ranks of each host.
  absl::StatusOr<FoundReplica> FindLatest();

  // Begins to replicate. `resumed`: the job goes on from what FindLatest() has returned; otherwise
  // that, as all that is older, is deleted. `background.save.group` must be a group of the same
  // ranks that nothing else uses. Errors, on every rank: ResourceExhausted, naming the host, what
  // is needed and what is there; those of the state, the store, the folders and the group.
  absl::Status Begin(const StateDict& state, AsyncSaveOptions background, bool resumed);

  // See AsyncSaver. Start() and Refuse() need Begin() to have succeeded. An outcome is OK once the
  // replica is complete on all hosts.
  void Start(const SaveRequest& request, const StateDict& state);
  void Refuse(int64_t step, const absl::Status& error);
  void WaitUntilCopied(const void* data, uint64_t size_bytes);
  void WaitUntilAllCopied();
  std::vector<SaveOutcome> Poll();
  std::vector<SaveOutcome> Finish();

  // Deletes the replicas and the folders, which no restart will need. No replica may be in flight.
  absl::Status Remove();

  // From now on no replica of this job is taken, wherever it is. For a job that saves to `store`
  // without replicating; on one rank. `store` is locked.
  static absl::Status Disown(Storage& store);

  // "2 hosts (a, b)"; "1 host (a): no copies".
  std::string DescribeHosts() const;

 private:
  class Impl;
  explicit PeerReplicas(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_PEER_REPLICAS_H_
