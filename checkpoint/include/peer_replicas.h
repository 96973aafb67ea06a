#ifndef TESSERA_CHECKPOINT_INCLUDE_PEER_REPLICAS_H_
#define TESSERA_CHECKPOINT_INCLUDE_PEER_REPLICAS_H_

// Replicas of the newest state of a job in the memory of its hosts, each part on two of them. A job
// that has lost processes, or a host, restarts from them without reading its store.
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
//
// Implemented in checkpoint/replicas/peer_replicas.cc.

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
  // A folder in memory (in /dev/shm, or another tmpfs) that outlives the processes, used by this
  // job alone on each host. Created with access for this user only. A folder that others can open
  // and that holds anything else is refused. Ranks that see the same folder are on one host.
  std::string folder = {};
  // The host's name in messages. Empty: the system's.
  std::string host = {};
  // The folder of the job's permanent checkpoints, locked by the job (FolderLock). Its file
  // ".replicas" names the replicas of the present job. Used on rank 0; must outlive this object.
  Storage* store = nullptr;
  // The ranks of the job. Must outlive this object. Null: this process alone.
  ProcessGroup* group = nullptr;
  absl::Duration timeout = absl::Minutes(10);  // for each wait on other ranks
  // How long to wait for the processes of a predecessor, which notice after a second or two that
  // the job was killed.
  absl::Duration lock_wait = absl::Seconds(10);
};

struct FoundReplica {
  // The replica, on every rank; nullopt without one. All ranks must load it together,
  // since its storage reads on the ranks whose hosts have the bytes.
  std::optional<Checkpoint> checkpoint;
  // A sentence for the user about the replica that was found, or lost and where it had been. May be
  // empty.
  std::string note;
};

// Keeps replicas of a job's state. A replica is a checkpoint, with the same plan, files, manifest,
// checksums and digests, in a directory of each host's folder. Every rank writes its part there, in
// the background (AsyncSaver). Then it sends the part to a rank of the next host, which keeps the
// copy. After the last host comes the first. Hosts that are containers of one machine send their
// parts to hosts of the next machine. Once every host has its parts, its copies and the
// manifest, the previous replica is deleted. So at any time at least one complete replica exists,
// and at most two. No replica becomes a permanent checkpoint.
//
// After a restart, any number of ranks on any hosts offer the files in their folders. Each host's
// ranks verify the checksums of its files. A replica is usable if some host has an intact copy of
// each of its files, and the job takes the newest usable one. So the loss of one host, of hosts
// that are not neighbours, or of one of two copies costs nothing; the loss of two neighbours costs
// the replica.
//
// A replica is taken only if the store's file ".replicas" names it. Begin() writes a new name
// there, so that replicas of an earlier incarnation of the job, or of another job, are never taken.
// The replica from which the job has resumed remains valid until a newer one is complete. A job
// that does not replicate calls Disown() before it saves.
//
// With one host there are no copies: the replica survives the processes, but not the host.
//
// Memory: in the folder, twice the state of a host's ranks and of the previous host's, which
// Begin() checks; and background.save.staging_bytes in each process. Cost: each part is written
// twice and crosses the network once.
//
// Collective: all ranks make the same calls in the same order. Calls come from one thread;
// WaitUntilCopied() and WaitUntilAllCopied() from any.
class PeerReplicas {
 public:
  // Opens the folders and locks them until this object is destroyed. FailedPrecondition, on every
  // rank, while another process replicates there, or if others use a folder; PermissionDenied if
  // one belongs to another user.
  static absl::StatusOr<std::unique_ptr<PeerReplicas>> Open(const PeerReplicaOptions& options);

  // Waits for a replica in flight.
  virtual ~PeerReplicas() = default;

  // Finds the newest replica that is complete and intact. Changes nothing. Errors: those of the
  // store and of the group; problems of replicas are in the note. Cost: reads the whole replica
  // once, shared among the ranks of each host.
  virtual absl::StatusOr<FoundReplica> FindLatest() = 0;

  // Begins to replicate. `resumed`: the job continues from the replica that FindLatest() has
  // returned; otherwise this and all older ones are deleted. `background.save.group` must be a
  // group of the same ranks that nothing else uses. Errors, on every rank: ResourceExhausted,
  // naming the host and the needed and available memory; those of the state, the store, the folders
  // and the group.
  virtual absl::Status Begin(const StateDict& state, AsyncSaveOptions background, bool resumed) = 0;

  // Work as in AsyncSaver. Start() and Refuse() require that Begin() has succeeded. An outcome is
  // OK once the replica is complete on all hosts.
  virtual void Start(const SaveRequest& request, const StateDict& state) = 0;
  virtual void Refuse(int64_t step, const absl::Status& error) = 0;
  virtual void WaitUntilCopied(const void* data, uint64_t size_bytes) = 0;
  virtual void WaitUntilAllCopied() = 0;
  virtual std::vector<SaveOutcome> Poll() = 0;
  virtual std::vector<SaveOutcome> Finish() = 0;

  // Deletes the replicas and the folders, when no restart will need them. No replica may be in
  // flight.
  virtual absl::Status Remove() = 0;

  // Makes all replicas of this job invalid, wherever they are, for a job that saves to `store`
  // without replicating. Called on one rank, with `store` locked.
  static absl::Status Disown(Storage& store);

  // Returns "2 hosts (a, b)" or "1 host (a): no copies". Says if several are on one machine.
  virtual std::string DescribeHosts() const = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_PEER_REPLICAS_H_
