#include "checkpoint/replicas/find_replica.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/units.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/plan/share_reads.h"
#include "checkpoint/replicas/replicas.pb.h"
#include "checkpoint/scan/scan.h"
#include "checkpoint/scan/verify.h"
#include "storage/read_only_storage.h"

// Rank 0 asks, and all ranks answer, until it has found a replica or has none left:
// 1. every host lists its files of the accepted replicas;
// 2. newest first: some rank that has the manifest of one sends it to rank 0, which sees whether
//    every file is on some host in its full size;
// 3. the ranks of each host share its files, read them and verify their checksums; damaged copies
//    are not used;
// 4. all take the replica if an intact copy of every file is left.

namespace tessera::ckpt {
namespace {

std::string StepOf(const std::string& directory) {
  return directory.substr(directory.rfind('/') + 1);
}

// A file on other hosts.
class FileElsewhere final : public ReadableFile {
 public:
  FileElsewhere(std::string name, uint64_t size_bytes)
      : name_(std::move(name)), size_bytes_(size_bytes) {}
  absl::Status ReadAt(uint64_t, std::span<std::byte>) const override {
    return absl::UnavailableError(absl::StrCat(name_, " is in the memory of other hosts"));
  }
  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  const std::string name_;
  const uint64_t size_bytes_;
};

// One replica, as it is on all hosts.
class HeldStorage final : public ReadOnlyStorage {
 public:
  struct Held {
    uint64_t size_bytes = 0;
    bool here = false;
  };

  HeldStorage(std::shared_ptr<Storage> folder, std::map<std::string, Held> files, std::string where)
      : ReadOnlyStorage("replicas are read only"),
        folder_(std::move(folder)),
        files_(std::move(files)),
        where_(std::move(where)) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    const auto held = files_.find(std::string(path));
    if (held == files_.end() || held->second.here) return folder_->Open(path);
    return std::make_unique<FileElsewhere>(Describe(path), held->second.size_bytes);
  }
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    return folder_->List(path);
  }
  std::string Describe(std::string_view path) const override {
    return absl::StrCat(StepOf(std::string(path)), " in the memory of ", where_);
  }

 private:
  const std::shared_ptr<Storage> folder_;
  const std::map<std::string, Held> files_;  // by path
  const std::string where_;
};

// Rank 0 calls Lead(), which asks for lists and checks; the other ranks answer in Follow().
class Finder {
 public:
  Finder(const std::shared_ptr<Storage>& folder, const Hosts& hosts, ProcessGroup& group,
         absl::Duration timeout)
      : folder_(folder), hosts_(hosts), group_(group), timeout_(timeout) {}

  absl::StatusOr<FoundReplica> Lead(const AcceptedReplicas& accepted) {
    FindRequest list;
    list.set_kind(FindRequest::LIST);
    list.set_current_run(accepted.run);
    list.set_base_directory(accepted.base_directory);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> lists, Ask(list));
    std::map<std::pair<int64_t, std::string>, std::vector<Offer>> by_step;
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      TESSERA_ASSIGN_OR_RETURN(auto held, MessageFrom<HeldReplicas>(rank, lists[rank]));
      for (HeldReplica& replica : *held.mutable_replicas()) {
        const int64_t step = ParseStepDirectoryName(StepOf(replica.directory())).value_or(-1);
        by_step[{step, replica.directory()}].push_back(
            {static_cast<uint32_t>(rank), std::move(replica)});
      }
    }
    for (auto at = by_step.rbegin(); at != by_step.rend(); ++at) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<FindRequest> take,
                               Examine(at->first.second, at->second));
      if (take.has_value()) return Conclude(*take);
    }
    if (by_step.empty() && !accepted.run.empty()) {
      std::vector<uint32_t> all(hosts_.count());
      std::iota(all.begin(), all.end(), 0);
      notes_.push_back(absl::StrCat("none of this job's in the memory of ", hosts_.Names(all),
                                    ": it made none, or they are on other hosts, in another "
                                    "folder, or gone with a host's restart"));
    }
    FindRequest none;
    none.set_kind(FindRequest::NONE);
    none.set_text(JoinFirst(notes_, "; "));
    return Conclude(none);
  }

  absl::StatusOr<FoundReplica> Follow() {
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const std::string bytes, group_.Broadcast("", timeout_));
      TESSERA_ASSIGN_OR_RETURN(const auto request, MessageFrom<FindRequest>(0, bytes));
      if (request.kind() >= FindRequest::TAKE) return Finish(request);
      TESSERA_RETURN_IF_ERROR(group_.Gather(Answer(request), timeout_).status());
    }
  }

 private:
  // The files of one replica on a host, as its first rank lists them.
  struct Offer {
    uint32_t rank;
    HeldReplica replica;
  };

  absl::StatusOr<std::vector<std::string>> Ask(const FindRequest& request) {
    TESSERA_RETURN_IF_ERROR(group_.Broadcast(request.SerializeAsString(), timeout_).status());
    return group_.Gather(Answer(request), timeout_);
  }

  absl::StatusOr<FoundReplica> Conclude(const FindRequest& request) {
    TESSERA_RETURN_IF_ERROR(group_.Broadcast(request.SerializeAsString(), timeout_).status());
    return Finish(request);
  }

  // Returns rank 0's request to take this replica, or nullopt with a note.
  absl::StatusOr<std::optional<FindRequest>> Examine(const std::string& directory,
                                                     const std::vector<Offer>& offers) {
    const auto reject = [&](const std::string& why) {
      notes_.push_back(absl::StrCat(StepOf(directory), " is lost: ", why));
      return std::optional<FindRequest>();
    };
    TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                             FetchManifest(directory, offers));
    // The job died while it spread this replica, or the hosts that had all of it are lost.
    if (!bytes.has_value()) return reject("it was never complete, or no host has its manifest");
    TESSERA_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(*bytes));
    if (!IsHealthy(manifest)) return reject("the run had diverged");

    FindRequest request;
    request.set_kind(FindRequest::VERIFY);
    request.set_directory(directory);
    request.set_manifest(*bytes);
    for (const DataFile& file : manifest.files()) {
      FileHosts& holders = *request.add_holders();
      for (const Offer& offer : offers) {
        for (const HeldFile& held : offer.replica.files()) {
          if (held.name() != file.path() || held.size_bytes() != file.size_bytes()) continue;
          holders.add_host(static_cast<uint32_t>(hosts_.of(static_cast<int>(offer.rank))));
        }
      }
    }
    if (const std::string lost = Lost(manifest, request); !lost.empty()) return reject(lost);

    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> reports, Ask(request));
    std::vector<std::string> damaged;
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      TESSERA_ASSIGN_OR_RETURN(const auto files, MessageFrom<DamagedFiles>(rank, reports[rank]));
      const int host = hosts_.of(static_cast<int>(rank));
      for (const uint32_t index : files.file_index()) {
        auto& list = *request.mutable_holders(index)->mutable_host();
        list.erase(std::remove(list.begin(), list.end(), static_cast<uint32_t>(host)), list.end());
        damaged.push_back(absl::StrCat(manifest.files(index).path(), " on ", hosts_.name(host)));
      }
    }
    if (!damaged.empty()) {
      notes_.push_back(absl::StrCat(StepOf(directory),
                                    ": damaged copies are not used: ", JoinFirst(damaged, ", ")));
    }
    if (const std::string lost = Lost(manifest, request); !lost.empty()) return reject(lost);
    request.set_kind(FindRequest::TAKE);
    request.set_text(JoinFirst(notes_, "; "));
    return std::optional(std::move(request));
  }

  absl::StatusOr<std::optional<std::string>> FetchManifest(const std::string& directory,
                                                           const std::vector<Offer>& offers) {
    for (const Offer& offer : offers) {
      if (!offer.replica.has_manifest()) continue;
      FindRequest request;
      request.set_kind(FindRequest::MANIFEST);
      request.set_directory(directory);
      request.set_rank(offer.rank);
      TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> answers, Ask(request));
      const absl::StatusOr<Manifest> manifest = DecodeManifest(answers[offer.rank]);
      if (manifest.ok() && StepDirectoryName(manifest->trainer().step()) == StepOf(directory)) {
        return std::move(answers[offer.rank]);
      }
    }
    return std::nullopt;
  }

  // Returns a description of what no host has; empty if there is nothing.
  static std::string Lost(const Manifest& manifest, const FindRequest& request) {
    std::vector<std::string> names;
    uint64_t bytes = 0;
    for (int f = 0; f < manifest.files_size(); ++f) {
      if (request.holders(f).host_size() > 0) continue;
      names.push_back(manifest.files(f).path());
      bytes += manifest.files(f).size_bytes();
    }
    if (names.empty()) return "";
    return absl::StrCat("no host has an intact copy of ", JoinFirst(names, ", "), " (",
                        HumanBytes(bytes), ", ", names.size(), " of ",
                        Counted(manifest.files_size(), "file"), ")");
  }

  std::string Answer(const FindRequest& request) {
    switch (request.kind()) {
      case FindRequest::LIST:
        return hosts_.is_first(group_.rank()) ? List(request) : "";
      case FindRequest::MANIFEST:
        if (static_cast<int>(request.rank()) != group_.rank()) return "";
        return ReadAll(*folder_, JoinPath(request.directory(), kManifestFileName),
                       kMaxManifestBytes)
            .value_or("");
      default:
        return Verify(request);
    }
  }

  std::string List(const FindRequest& request) const {
    HeldReplicas held;
    if (!request.current_run().empty()) {
      const auto steps = ListFolders(*folder_, request.current_run());
      for (const std::string& step : steps.ok() ? *steps : std::vector<std::string>()) {
        Add(JoinPath(request.current_run(), step), held);
      }
    }
    if (!request.base_directory().empty()) Add(request.base_directory(), held);
    return held.SerializeAsString();
  }

  // Adds the replica and its readable files.
  void Add(const std::string& directory, HeldReplicas& held) const {
    const absl::StatusOr<std::vector<std::string>> names = folder_->List(directory);
    if (!names.ok() || !ParseStepDirectoryName(StepOf(directory)).has_value()) return;
    HeldReplica& replica = *held.add_replicas();
    replica.set_directory(directory);
    for (const std::string& name : *names) {
      if (name == kManifestFileName) replica.set_has_manifest(true);
      const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
          folder_->Open(JoinPath(directory, name));
      if (!file.ok()) continue;
      HeldFile& entry = *replica.add_files();
      entry.set_name(name);
      entry.set_size_bytes((*file)->size_bytes());
    }
  }

  // Verifies this rank's share of the files of its host, and returns the damaged ones.
  std::string Verify(const FindRequest& request) const {
    const int host = hosts_.of(group_.rank());
    DamagedFiles damaged;
    const absl::StatusOr<Manifest> manifest = DecodeManifest(request.manifest());
    ScanBuffers buffers;
    size_t held = 0;
    for (int f = 0; f < request.holders_size(); ++f) {
      const auto& on = request.holders(f).host();
      if (std::ranges::find(on, static_cast<uint32_t>(host)) == on.end()) continue;
      if (!hosts_.does(group_.rank(), held++)) continue;
      // A file that cannot be read now cannot be loaded, either.
      const bool is_intact =
          manifest.ok() &&
          HasSavedBytes(*folder_, request.directory(), *manifest, f, buffers).value_or(false);
      if (!is_intact) damaged.add_file_index(f);
    }
    return damaged.SerializeAsString();
  }

  absl::StatusOr<FoundReplica> Finish(const FindRequest& request) const {
    FoundReplica found = {.note = request.text()};
    if (request.kind() == FindRequest::NONE) return found;
    TESSERA_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(request.manifest()));
    std::map<std::string, HeldStorage::Held> files;
    std::vector<RankList> readers(manifest.files_size());
    std::set<uint32_t> all_hosts;
    for (int f = 0; f < manifest.files_size(); ++f) {
      HeldStorage::Held& held = files[JoinPath(request.directory(), manifest.files(f).path())];
      held.size_bytes = manifest.files(f).size_bytes();
      for (const uint32_t host : request.holders(f).host()) {
        const std::vector<uint32_t>& ranks = hosts_.ranks(host);
        readers[f].insert(readers[f].end(), ranks.begin(), ranks.end());
        held.here |= static_cast<int>(host) == hosts_.of(group_.rank());
        all_hosts.insert(host);
      }
      std::ranges::sort(readers[f]);
    }
    found.checkpoint = CheckpointOfManifest(
        std::make_shared<HeldStorage>(
            folder_, std::move(files),
            hosts_.Names(std::vector<uint32_t>(all_hosts.begin(), all_hosts.end()))),
        request.directory(), std::move(manifest), /*reading=*/nullptr, std::move(readers));
    return found;
  }

  const std::shared_ptr<Storage>& folder_;
  const Hosts& hosts_;
  ProcessGroup& group_;
  const absl::Duration timeout_;
  std::vector<std::string> notes_;  // on rank 0
};

}  // namespace

absl::StatusOr<FoundReplica> FindReplica(const absl::StatusOr<AcceptedReplicas>& accepted,
                                         const std::shared_ptr<Storage>& folder, const Hosts& hosts,
                                         ProcessGroup& group, absl::Duration timeout) {
  TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, accepted.status(), timeout));
  Finder finder(folder, hosts, group, timeout);
  absl::StatusOr<FoundReplica> found = CatchExceptionsIn(group, "look for replicas", [&] {
    return group.rank() == 0 ? finder.Lead(*accepted) : finder.Follow();
  });
  // This rank may have left the others waiting, whatever the error.
  if (!found.ok()) return AbandonGroup(group, found.status());
  return found;
}

}  // namespace tessera::ckpt
