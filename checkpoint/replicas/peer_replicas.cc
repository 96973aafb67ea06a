#include "checkpoint/include/peer_replicas.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/system_memory.h"
#include "base/text.h"
#include "base/units.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/replicas/find_replica.h"
#include "checkpoint/replicas/replica_storage.h"
#include "checkpoint/replicas/replicas.pb.h"
#include "checkpoint/save/run_save.h"
#include "storage/lock/folder_lock.h"
#include "storage/posix_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {
namespace {

// In the store: the name of the present incarnation and the directory of the replica that it has
// resumed from, or "-", with their checksum. It is one line. A torn line, in a store that cannot
// replace a file atomically, is ignored as a whole.
constexpr char kRecord[] = ".replicas";
constexpr uint64_t kMaxRecordBytes = 1024;

// Manifest, directories, and pages that files fill in part.
constexpr uint64_t kSlackBytes = uint64_t{1} << 20;

std::string EncodeRecord(const AcceptedReplicas& accepted) {
  const std::string line = absl::StrCat(
      accepted.run, " ", accepted.base_directory.empty() ? "-" : accepted.base_directory);
  return absl::StrCat(line, " ", absl::Hex(Crc32c(line), absl::kZeroPad8), "\n");
}

AcceptedReplicas DecodeRecord(const std::string& bytes) {
  const std::vector<std::string> words = absl::StrSplit(bytes, ' ');
  AcceptedReplicas accepted;
  if (words.size() != 3) return accepted;
  accepted = {.run = words[0], .base_directory = words[1] == "-" ? "" : words[1]};
  return EncodeRecord(accepted) == bytes ? accepted : AcceptedReplicas();
}

absl::StatusOr<AcceptedReplicas> ReadRecord(Storage* store) {
  if (store == nullptr) return absl::InvalidArgumentError("replicas need the store on rank 0");
  const absl::StatusOr<std::string> bytes = ReadAll(*store, kRecord, kMaxRecordBytes);
  if (absl::IsNotFound(bytes.status())) return AcceptedReplicas();
  TESSERA_RETURN_IF_ERROR(bytes.status());
  return DecodeRecord(*bytes);
}

// Replaces the record. A job that dies meanwhile leaves either the old one or the new one.
absl::Status ReplaceRecord(Storage* store, const AcceptedReplicas& accepted) {
  if (store == nullptr) return ReadRecord(nullptr).status();
  const std::string bytes = EncodeRecord(accepted);
  if (!store->Traits().replaces_versions) {
    TESSERA_RETURN_IF_ERROR(WriteAll(*store, kRecord, bytes));
    return store->SyncDirectory("");
  }
  const absl::StatusOr<VersionedContents> old = store->Read(kRecord, kMaxRecordBytes);
  if (!absl::IsNotFound(old.status())) TESSERA_RETURN_IF_ERROR(old.status());
  return store->Write(kRecord, bytes, {.version = old.ok() ? old->version : ""}).status();
}

// Refuses a folder that others use, too: it would become private to this user.
absl::Status CheckNotShared(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> folder, OpenPosixStorage(path));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder->List(""));
  for (const std::string& name : names) {
    if (name == FolderLock::kFileName) continue;
    if (name.ends_with('/') && IsReplicasName(name.substr(0, name.size() - 1))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is open to others and holds ", name,
                     ": replicas need a folder that this job alone uses"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Storage>> OpenFolder(const std::string& path) {
  TESSERA_RETURN_IF_ERROR(CheckNotShared(path));
  return OpenPosixStorage(path, {.create_root = true, .private_to = geteuid()});
}

// Returns the bytes that each host stores: the state of its ranks, and of those whose copies it
// keeps.
std::vector<uint64_t> BytesByHost(const SavePlan& plan, const Hosts& hosts) {
  std::vector<uint64_t> bytes(hosts.count(), kSlackBytes);
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
    const std::optional<int> peer = hosts.peer(rank);
    for (const FilePlan& file : plan.ranks[rank].files()) {
      bytes[hosts.of(rank)] += file.size_bytes();
      if (peer.has_value()) bytes[hosts.of(*peer)] += file.size_bytes();
    }
  }
  return bytes;
}

class Replicas final : public PeerReplicas {
 public:
  explicit Replicas(const PeerReplicaOptions& options)
      : options_(options), group_(options.group != nullptr ? *options.group : alone_) {}

  absl::Status Open() {
    absl::StatusOr<std::unique_ptr<Storage>> folder = OpenFolder(options_.folder);
    TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group_, folder.status(), options_.timeout));
    folder_ = *std::move(folder);
    TESSERA_ASSIGN_OR_RETURN(hosts_,
                             Hosts::Find(group_, *folder_, options_.host, options_.timeout));
    absl::Status locked;
    if (hosts_.is_first(group_.rank())) {
      const auto lock = [&]() -> absl::StatusOr<std::unique_ptr<FolderLock>> {
        TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> to_lock, OpenFolder(options_.folder));
        return FolderLock::Acquire(std::move(to_lock), {.wait = options_.lock_wait});
      };
      absl::StatusOr<std::unique_ptr<FolderLock>> held = lock();
      locked = held.status();
      if (held.ok()) lock_ = *std::move(held);
    }
    return AgreeOnStatus(group_, locked, options_.timeout);
  }

  absl::StatusOr<FoundReplica> FindLatest() override {
    absl::StatusOr<AcceptedReplicas> accepted = AcceptedReplicas();
    if (group_.rank() == 0) accepted = ReadRecord(options_.store);
    TESSERA_ASSIGN_OR_RETURN(FoundReplica found,
                             FindReplica(accepted, folder_, hosts_, group_, options_.timeout));
    found_ = found.checkpoint.has_value() ? found.checkpoint->directory() : "";
    return found;
  }

  absl::Status Begin(const StateDict& state, AsyncSaveOptions background, bool resumed) override {
    if (!resumed) found_.clear();
    storage_ = std::make_unique<ReplicaStorage>(*folder_, lock_.get());
    TESSERA_RETURN_IF_ERROR(WriteRecord());
    TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group_, storage_->Keep(found_), options_.timeout));
    TESSERA_RETURN_IF_ERROR(CheckRoom(state));
    background_group_ = background.save.group != nullptr ? background.save.group : &alone_;
    background_timeout_ = background.save.timeout;
    saver_ = MakeAsyncSaver(*storage_, background,
                            {.choose_root = [this](const PlannedSave&) { return run_; },
                             .may_commit = [this] { return lock_->Confirm(); },  // on rank 0
                             .on_committed = [this](SaveReport& report) { AfterCommit(report); }});
    saver_->Prepare(state);
    return absl::OkStatus();
  }

  void Start(const SaveRequest& request, const StateDict& state) override {
    saver_->Start(request, state);
  }
  void Refuse(int64_t step, const absl::Status& error) override { saver_->Refuse(step, error); }
  void WaitUntilCopied(const void* data, uint64_t size_bytes) override {
    if (saver_ != nullptr) saver_->WaitUntilCopied(data, size_bytes);
  }
  void WaitUntilAllCopied() override {
    if (saver_ != nullptr) saver_->WaitUntilAllCopied();
  }

  std::vector<SaveOutcome> Poll() override {
    return saver_ == nullptr ? std::vector<SaveOutcome>() : Judge(saver_->Poll());
  }

  std::vector<SaveOutcome> Finish() override {
    return saver_ == nullptr ? std::vector<SaveOutcome>() : Judge(saver_->Finish());
  }

  absl::Status Remove() override {
    absl::Status status;
    if (lock_ != nullptr) {
      status = ReplicaStorage(*folder_, lock_.get()).Keep("");
      const std::string path = folder_->LocalPath("").value_or("");
      lock_ = nullptr;
      folder_->Delete(FolderLock::kFileName).IgnoreError();
      rmdir(path.c_str());  // stays where somebody has put something else there
    }
    if (group_.rank() == 0 && options_.store != nullptr) status.Update(Disown(*options_.store));
    return AgreeOnStatus(group_, status, options_.timeout);
  }

  std::string DescribeHosts() const override { return hosts_.Describe(); }

 private:
  // Rank 0 plans, as the first save will, and compares.
  absl::Status CheckRoom(const StateDict& state) {
    const auto report = [&]() -> absl::StatusOr<std::string> {
      TESSERA_RETURN_IF_ERROR(CheckStateDict(state));
      RoomReport room;
      room.set_state(DescribeState(state).SerializeAsString());
      if (hosts_.is_first(group_.rank())) {
        TESSERA_ASSIGN_OR_RETURN(const uint64_t free, folder_->FreeBytes());
        // The replica that is there is kept while the next one is written.
        room.set_free_bytes(std::min(free, AvailableMemoryBytes()) + BytesBelow(*folder_, found_));
      }
      return room.SerializeAsString();
    };
    const Combine compare =
        [&](const std::vector<std::string>& reports) -> absl::StatusOr<std::string> {
      std::vector<std::string> states;
      std::map<std::string, uint64_t> free, needed;
      for (size_t rank = 0; rank < reports.size(); ++rank) {
        TESSERA_ASSIGN_OR_RETURN(const auto room, MessageFrom<RoomReport>(rank, reports[rank]));
        states.push_back(room.state());
        // Hosts of one file system, as simulated ones are, have the same room; what each keeps of a
        // present replica is in it only once.
        uint64_t& there = free[hosts_.volume(hosts_.of(static_cast<int>(rank)))];
        there = std::max(there, room.free_bytes());
      }
      TESSERA_ASSIGN_OR_RETURN(const SavePlan plan, PlanSave(states, {}));
      const std::vector<uint64_t> bytes = BytesByHost(plan, hosts_);
      for (int host = 0; host < hosts_.count(); ++host) {
        uint64_t& all = needed[hosts_.volume(host)];
        all += 2 * bytes[host];
        const uint64_t there = free[hosts_.volume(host)];
        if (all <= there) continue;
        return absl::ResourceExhaustedError(
            absl::StrCat("replicas need ", HumanBytes(all), " in the memory of host ",
                         hosts_.name(host), " (two of ", HumanBytes(all / 2),
                         ", the state of its ranks and of the host before), which has ",
                         HumanBytes(there), " left for ", options_.folder));
      }
      return std::string();
    };
    return Agree(group_, report(), compare, options_.timeout).status();
  }

  absl::Status WriteRecord() {
    absl::StatusOr<std::string> name = std::string();
    if (group_.rank() == 0) {
      name = RandomHex(kReplicasDigits);
      absl::Status written = ReplaceRecord(options_.store, {*name, found_});
      if (!written.ok()) name = std::move(written);
    }
    TESSERA_ASSIGN_OR_RETURN(
        run_, Agree(
                  group_, name,
                  [](const std::vector<std::string>& names) -> absl::StatusOr<std::string> {
                    return names[0];
                  },
                  options_.timeout));
    return absl::OkStatus();
  }

  void AfterCommit(SaveReport& report) {
    const absl::Duration start = SteadyNow();
    absl::Status spread =
        storage_->Spread(report.directory, hosts_, *background_group_, background_timeout_);
    report.duration += SteadyNow() - start;
    const std::optional<int64_t> step =
        ParseStepDirectoryName(report.directory.substr(report.directory.rfind('/') + 1));
    if (spread.ok() || !step.has_value()) return;
    const MutexLock lock(&mutex_);
    spread_[*step] = std::move(spread);
  }

  std::vector<SaveOutcome> Judge(std::vector<SaveOutcome> outcomes) {
    const MutexLock lock(&mutex_);
    for (SaveOutcome& outcome : outcomes) {
      auto spread = spread_.extract(outcome.step);
      if (!spread.empty()) outcome.report = std::move(spread.mapped());
    }
    return outcomes;
  }

  const PeerReplicaOptions options_;
  SingleProcessGroup alone_;
  ProcessGroup& group_;
  Hosts hosts_;
  std::shared_ptr<Storage> folder_;
  std::unique_ptr<FolderLock> lock_;  // on the first rank of each host
  std::string found_;                 // the directory of what FindLatest() has returned
  std::string run_;                   // this incarnation's name, and its folder's

  // Used by the saver's thread after Begin().
  std::unique_ptr<ReplicaStorage> storage_;
  ProcessGroup* background_group_ = nullptr;
  absl::Duration background_timeout_;
  Mutex mutex_;
  std::map<int64_t, absl::Status> spread_ ABSL_GUARDED_BY(mutex_);  // by step; OK is left out

  std::unique_ptr<AsyncSaver> saver_;  // its thread uses the members before it
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerReplicas>> PeerReplicas::Open(
    const PeerReplicaOptions& options) {
  auto replicas = std::make_unique<Replicas>(options);
  TESSERA_RETURN_IF_ERROR(replicas->Open());
  return replicas;
}

absl::Status PeerReplicas::Disown(Storage& store) {
  const absl::Status deleted = store.Delete(kRecord);
  if (absl::IsNotFound(deleted)) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(deleted);
  return store.SyncDirectory("");
}

}  // namespace tessera::ckpt
