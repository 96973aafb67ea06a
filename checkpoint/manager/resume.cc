#include "checkpoint/manager/resume.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/read_lock.h"
#include "checkpoint/manager/resume_messages.pb.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/scan/verify.h"

// 1. Rank 0 offers the newest checkpoint that it has not skipped, or nothing.
// 2. All ranks load it. Their common error goes back to 1, where rank 0 judges it first.
// 3. All ranks have loaded, or begin without a checkpoint. Rank 0 quarantines what it has skipped,
//    if other ranks have read the same damage.
// Steps 1 and 3 are agreements.

namespace tessera::ckpt {
namespace {

// Payloads of errors, whose contents do not matter.
constexpr char kNoSuchStep[] = "tessera.ckpt.no_such_step";
constexpr char kNoneValid[] = "tessera.ckpt.none_valid";

absl::Status WithProblem(absl::Status status, const char* problem) {
  status.SetPayload(problem, absl::Cord("resume"));
  return status;
}

bool IsQuarantineWord(std::string_view suffix) {
  return suffix.starts_with(kDamaged) || suffix.starts_with(kDiverged);
}

// Returns the places of checkpoints: the root, and the slots of rolling ones.
std::vector<std::string> Places() {
  std::vector<std::string> places = {""};
  places.insert(places.end(), kRollingSlots.begin(), kRollingSlots.end());
  return places;
}

// Returns the quarantined checkpoints of earlier resumes that are still in the folder. A slot may
// have folders, in which checkpoints are.
absl::StatusOr<std::vector<std::string>> ListQuarantined(Storage& storage) {
  std::vector<std::string> found;
  std::vector<std::string> places = Places();
  const size_t slots_end = places.size();
  const std::string manifest = absl::StrCat(std::string(kManifestFileName), ".");
  for (size_t i = 0; i < places.size(); ++i) {
    const std::string place = places[i];
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolders(storage, place));
    for (const std::string_view name : names) {
      const std::string directory = JoinPath(place, name);
      const size_t dot = name.find('.');
      if (!ParseStepDirectoryName(name.substr(0, dot)).has_value()) {
        if (i > 0 && i < slots_end) places.push_back(directory);
        continue;
      }
      if (dot != name.npos) {
        if (IsQuarantineWord(name.substr(dot + 1))) found.push_back(directory);
        continue;
      }
      // Where directories cannot be renamed, the manifest is.
      TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                               ListIfThere(storage, directory));
      for (const std::string_view file : files) {
        if (file.starts_with(manifest) && IsQuarantineWord(file.substr(manifest.size()))) {
          found.push_back(JoinPath(directory, file));
        }
      }
    }
  }
  return found;
}

// The state of a resume on rank 0.
class ResumeSearch {
 public:
  ResumeSearch(Storage* storage, const ResumeRules& rules) : storage_(storage), rules_(rules) {}

  // Returns the next checkpoint to load as a message, which is empty if none is left.
  absl::StatusOr<std::string> FindLatestValid() {
    if (storage_ == nullptr) return std::string();
    if (seen_.empty() && rules_.quarantine) {
      // A checkpoint that was committed while its directory was being discarded gets its name back.
      for (const std::string& place : Places()) SettleDiscarded(*storage_, place).IgnoreError();
    }
    std::vector<CheckpointInfo> unreadable;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> saved,
                             ListForResume(*storage_, &unreadable));
    if (rules_.step.has_value()) return FindStep(saved);
    for (const CheckpointInfo& checkpoint : saved) {
      if (seen_.contains(checkpoint.directory)) continue;
      // Each of these may be a later checkpoint.
      for (const CheckpointInfo& dir : unreadable) {
        if (dir.step > checkpoint.step) return dir.readable;
      }
      TESSERA_ASSIGN_OR_RETURN(const bool valid, SkipUnlessValid(checkpoint));
      if (valid) return Offer();
    }
    if (!unreadable.empty()) return unreadable.back().readable;
    return Skipped().SerializeAsString();
  }

  // Judges the checkpoint that was offered last, in which ranks have found damage. Returns OK if
  // the next one is to be offered, and otherwise the error that ends the call.
  absl::Status Judge(const absl::Status& status, const std::vector<DamagedPart>& parts) {
    absl::Status read = ReadAgain();
    if (read.ok()) read = VerifyParts(*storage_, offered_.directory, manifest_, parts);
    if (MayBeDamage(read)) return Skip(offered_, read);
    TESSERA_RETURN_IF_ERROR(read);
    return Disagreement(status, parts);
  }

  // Returns an error if the rules require a checkpoint. Precondition: none was offered.
  absl::Status CheckNoneIsExpected() {
    if (storage_ == nullptr || rules_.ignore_no_valid) return absl::OkStatus();
    std::vector<std::string> lines;
    for (const SkippedCheckpoint& skipped : skipped_) {
      lines.push_back(
          absl::StrCat(skipped.directory, ": ",
                       WithoutDirectory(*storage_, skipped.directory, skipped.reason.message())));
    }
    if (lines.empty()) {
      TESSERA_ASSIGN_OR_RETURN(lines, ListQuarantined(*storage_));
      if (lines.empty()) return absl::OkStatus();
    }
    return WithProblem(absl::FailedPreconditionError(
                           absl::StrCat("no checkpoint in ", storage_->Describe(""), " is valid (",
                                        JoinFirst(lines, "; "), "); nothing was renamed")),
                       kNoneValid);
  }

  // Renames skipped checkpoints and, if an earlier step was requested, later ones.
  absl::Status Quarantine() {
    reading_ = ReadLock();
    const bool goes_back = rules_.step.has_value() && storage_ != nullptr;
    if (!rules_.quarantine) return absl::OkStatus();
    // A job that was suspended and has lost its folder ends before it saves.
    if (rules_.lock != nullptr) TESSERA_RETURN_IF_ERROR(rules_.lock->Confirm());
    if (goes_back) {
      TESSERA_ASSIGN_OR_RETURN(abandoned_, AbandonLater(*storage_, *rules_.step));
    }
    for (SkippedCheckpoint& skipped : skipped_) {
      const auto judged = manifests_.find(skipped.directory);
      absl::StatusOr<std::string> moved_to = Removal::In(*storage_)->Quarantine(
          skipped.directory, skipped.word, judged == manifests_.end() ? nullptr : &judged->second);
      // Another process has moved or replaced it.
      if (absl::IsNotFound(moved_to.status()) || absl::IsAborted(moved_to.status())) continue;
      TESSERA_RETURN_IF_ERROR(moved_to.status());
      skipped.moved_to = *std::move(moved_to);
    }
    return absl::OkStatus();
  }

  // Adds the fate of the other checkpoints to rank 0's result.
  void Report(ResumeResult& result) {
    result.skipped = std::move(skipped_);
    result.abandoned = std::move(abandoned_);
  }

 private:
  absl::Status Disagreement(const absl::Status& status,
                            const std::vector<DamagedPart>& parts) const {
    const std::vector<std::string> lines =
        absl::StrSplit(WithoutDirectory(*storage_, offered_.directory, status.message()), '\n');
    const bool others = std::ranges::any_of(parts, [](const DamagedPart& p) { return p.rank > 0; });
    return absl::UnavailableError(absl::StrCat(
        storage_->Describe(offered_.directory), " reads well on rank 0, but could not be loaded (",
        JoinFirst(lines, "; "), "); nothing was renamed",
        others ? ": make sure that every rank sees the same files there" : ""));
  }

  // Returns the requested checkpoint.
  absl::StatusOr<std::string> FindStep(const std::vector<CheckpointInfo>& saved) {
    const auto found = std::ranges::find(saved, *rules_.step, &CheckpointInfo::step);
    if (found == saved.end()) {
      const absl::Status none = NoSuchCheckpoint(*storage_, saved);
      return WithProblem(
          WithMessage(none, absl::StrCat("step ", *rules_.step, ": ", none.message())),
          kNoSuchStep);
    }
    TESSERA_RETURN_IF_ERROR(Choose(*found));
    return Offer();
  }

  std::string Offer() const {
    ResumeOffer offer = Skipped();
    offer.set_found(true);
    offer.set_directory(offered_.directory);
    offer.set_manifest(manifest_.SerializeAsString());
    return offer.SerializeAsString();
  }

  absl::Status Choose(const CheckpointInfo& checkpoint) {
    offered_ = checkpoint;
    reading_ = ReadLock(*storage_, checkpoint.directory);
    return ReadAgain();
  }

  // Returns whether the checkpoint can be offered. Skips it, otherwise, if it is still there.
  absl::StatusOr<bool> SkipUnlessValid(const CheckpointInfo& checkpoint) {
    const absl::Status read = Choose(checkpoint);
    if (MayBeDamage(read)) {
      TESSERA_RETURN_IF_ERROR(Skip(checkpoint, read));
      return false;
    }
    TESSERA_RETURN_IF_ERROR(read);
    seen_.insert(checkpoint.directory);
    if (IsHealthy(manifest_)) return true;
    skipped_.push_back(Diverged(checkpoint, manifest_));
    return false;
  }

  // Reads the manifest of `offered_`, and the sizes and headers of its files.
  absl::Status ReadAgain() {
    const absl::StatusOr<std::string> bytes =
        ReadAll(*storage_, JoinPath(offered_.directory, kManifestFileName), kMaxManifestBytes);
    if (bytes.ok()) manifests_[offered_.directory] = *bytes;
    TESSERA_ASSIGN_OR_RETURN(manifest_, ReadIntact(*storage_, offered_.directory));
    return absl::OkStatus();
  }

  // Records the checkpoint as damaged, unless its manifest is gone, because another process is
  // deleting it.
  absl::Status Skip(const CheckpointInfo& checkpoint, const absl::Status& reason) {
    seen_.insert(checkpoint.directory);
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(*storage_, checkpoint.directory));
    if (!committed) return absl::OkStatus();
    skipped_.push_back({checkpoint.directory, "", std::string(kDamaged), reason});
    return absl::OkStatus();
  }

  ResumeOffer Skipped() const {
    ResumeOffer offer;
    for (const SkippedCheckpoint& skipped : skipped_) {
      ResumeOffer::Skipped& offered = *offer.add_skipped();
      offered.set_directory(skipped.directory);
      offered.set_damaged(skipped.word == kDamaged);
      offered.set_reason(WithoutDirectory(*storage_, skipped.directory, skipped.reason.message()));
    }
    return offer;
  }

  Storage* const storage_;
  const ResumeRules& rules_;
  std::set<std::string> seen_;  // directories that are not offered again
  std::vector<SkippedCheckpoint> skipped_;
  std::vector<std::string> abandoned_;
  // By directory, at the time of the judgement. A job that is suspended afterwards may find another
  // job's checkpoint in the same directory.
  std::map<std::string, std::string> manifests_;
  CheckpointInfo offered_;
  Manifest manifest_;  // of offered_
  ReadLock reading_;
};

// The damage that loading ranks have found, by directory.
using PartsOfLoads = std::map<std::string, std::vector<DamagedPart>>;

// Returns what another rank sees that rank 0 does not, worded to follow "rank 3 "; or nothing.
absl::StatusOr<std::string> Contradict(Storage* storage, const ResumeOffer& offer,
                                       const ResumeRules& rules, PartsOfLoads& parts) {
  if (storage == nullptr) return std::string();
  for (const ResumeOffer::Skipped& skipped : offer.skipped()) {
    if (!skipped.damaged()) continue;
    const absl::StatusOr<Manifest> manifest = ReadIntact(*storage, skipped.directory());
    absl::Status read = manifest.status();
    if (read.ok()) {
      read = VerifyParts(*storage, skipped.directory(), *manifest, parts[skipped.directory()]);
    }
    if (MayBeDamage(read)) continue;
    TESSERA_RETURN_IF_ERROR(read);
    return absl::StrCat("reads ", storage->Describe(skipped.directory()),
                        " well, which rank 0 finds damaged (", skipped.reason(), ")");
  }
  if (offer.found() || offer.skipped_size() > 0 || rules.ignore_no_valid) return std::string();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> saved, ListForResume(*storage));
  if (saved.empty()) return std::string();
  return absl::StrCat("finds ", storage->Describe(saved.front().directory),
                      ", and rank 0 finds no checkpoint");
}

absl::Status CheckNoneContradicts(const std::vector<std::string>& seen) {
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank].empty()) continue;
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " ", seen[rank],
                     ": make sure that every rank sees the same files there; nothing was renamed"));
  }
  return absl::OkStatus();
}

// Returns the checkpoint of rank 0's message on this rank, whose storage may lack the folder.
absl::StatusOr<std::optional<Checkpoint>> Decode(const std::string& bytes,
                                                 const std::shared_ptr<Storage>& storage,
                                                 ResumeOffer& offer) {
  TESSERA_ASSIGN_OR_RETURN(offer, MessageFrom<ResumeOffer>(0, bytes));
  TESSERA_ASSIGN_OR_RETURN(Manifest manifest, MessageFrom<Manifest>(0, offer.manifest()));
  if (!offer.found()) return std::nullopt;
  if (storage == nullptr) {
    return absl::UnavailableError(
        "no folder, in which rank 0 finds checkpoints: make sure that every rank sees the same "
        "files there");
  }
  return CheckpointOfManifest(storage, offer.directory(), std::move(manifest));
}

}  // namespace

ResumeProblem ProblemOf(const absl::Status& status) {
  if (status.GetPayload(kNoSuchStep).has_value()) return ResumeProblem::kNoSuchStep;
  if (status.GetPayload(kNoneValid).has_value()) return ResumeProblem::kNoneValid;
  return ResumeProblem::kNone;
}

std::string Describe(const Storage& storage, const SkippedCheckpoint& skipped) {
  return absl::StrCat("skipped ", storage.Describe(skipped.directory), ": ",
                      WithoutDirectory(storage, skipped.directory, skipped.reason.message()), "; ",
                      skipped.moved_to.empty()
                          ? "it is left where it is"
                          : absl::StrCat("it is now called ", skipped.moved_to));
}

absl::StatusOr<ResumeResult> ResumeFromLatest(const std::shared_ptr<Storage>& storage,
                                              ProcessGroup& group, const ResumeRules& rules,
                                              const LoadOnThisRank& load) {
  ResumeSearch search(storage.get(), rules);
  absl::Status loaded;
  std::vector<DamagedPart> damaged;  // according to `loaded`
  PartsOfLoads all_damaged;
  ResumeOffer offer;
  ResumeResult result;
  while (true) {
    const Combine judge_and_offer =
        [&](const std::vector<std::string>&) -> absl::StatusOr<std::string> {
      if (!loaded.ok()) TESSERA_RETURN_IF_ERROR(search.Judge(loaded, damaged));
      return search.FindLatestValid();
    };
    TESSERA_ASSIGN_OR_RETURN(const std::string reply,
                             Agree(group, std::string(), judge_and_offer, rules.timeout));
    absl::StatusOr<std::optional<Checkpoint>> offered = Decode(reply, storage, offer);
    TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, offered.status(), rules.timeout));
    result.checkpoint = *std::move(offered);
    if (!result.checkpoint.has_value()) break;
    loaded = CatchExceptionsIn(group, "load", [&] { return load(*result.checkpoint); });
    if (loaded.ok()) break;
    if (rules.step.has_value()) return loaded;
    damaged = FindDamagedParts(loaded).value_or(std::vector<DamagedPart>());
    const bool agreed = group.size() == 1 || std::ranges::all_of(damaged, [](const DamagedPart& p) {
                          return p.rank >= 0;
                        });
    if (damaged.empty() || !agreed) return loaded;
    all_damaged[offer.directory()] = damaged;
  }

  absl::StatusOr<std::string> seen = std::string();
  if (group.rank() != 0) seen = Contradict(storage.get(), offer, rules, all_damaged);
  const Combine finish = [&](const std::vector<std::string>& all) -> absl::StatusOr<std::string> {
    TESSERA_RETURN_IF_ERROR(CheckNoneContradicts(all));
    if (!offer.found()) TESSERA_RETURN_IF_ERROR(search.CheckNoneIsExpected());
    TESSERA_RETURN_IF_ERROR(search.Quarantine());
    return std::string();
  };
  TESSERA_RETURN_IF_ERROR(Agree(group, seen, finish, rules.timeout).status());
  search.Report(result);
  return result;
}

}  // namespace tessera::ckpt
