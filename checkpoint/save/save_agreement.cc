#include "checkpoint/save/save_agreement.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/save/save_messages.pb.h"

// The agreement of the ranks of a save on one plan, and its reuse.
//
// A plan depends only on the structure of the state: every rank's description (names, roles,
// dtypes, shapes, boxes), its rank and the number of ranks, and the layout options. Each rank keeps
// its part of the last plan together with its own serialized description, which is compared
// completely, since a hash could collide. Rank 0 also keeps the manifest.
//
// No rank needs to know whether the others are unchanged. Before data is written, every rank waits
// for rank 0 to create the directory: one small message in each direction is needed in any case.
// These messages carry the state of the cache:
//
// 1. Every rank sends rank 0 the step and, if its own structure is the cached one, the number of
//    its cached plan; otherwise its description.
// 2. If all ranks name the plan that rank 0 has, they have parts of the same plan and nothing has
//    changed on any rank: rank 0 prepares the directory and answers with its name. No planning
//    happened, and no description was sent.
// 3. If all ranks sent a description, as in the first save, rank 0 makes a plan and sends each rank
//    its part.
// 4. Otherwise some ranks have changed and the descriptions of the others are needed again: rank 0
//    asks for them, all ranks send their descriptions, and 3 follows.
//
// The first message also has a digest of the entries to merge (Metadata::merge). If a rank's digest
// differs from rank 0's, rank 0 asks for the entries, in the same message as in 4.
//
// An error on any rank ends the save on all ranks.

namespace tessera::ckpt {
namespace {

// Returns a key that has everything that one rank contributes to a plan.
std::string CacheKey(const ProcessGroup& group, std::string_view description,
                     const SavePlanOptions& options) {
  std::string key = absl::StrCat(group.rank(), "/", group.size(), " ", options.max_file_bytes, " ",
                                 options.min_split_bytes, " ", options.checksum_chunk_bytes, "\n");
  key.append(description);
  return key;
}

// Refuses an option of a rank that is not rank 0's.
absl::Status CheckSame(std::string_view option, uint64_t of_rank_0, uint64_t other, size_t rank) {
  if (other == of_rank_0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(View(option), " is ", of_rank_0, " on rank 0, ", other, " on rank ", rank));
}

uint64_t NewPlanId() {
  return RandomBits() | 1;  // 0 means no plan
}

}  // namespace

struct PlanCache::Entry {
  std::string key;  // everything that the plan depends on, as this rank sees it
  uint64_t plan_id;
  RankPlan mine;
  Manifest manifest;  // on rank 0: tensors and files, without checksums and digests
};

// One rank's side of an agreement.
class SaveAgreement {
 public:
  explicit SaveAgreement(const SaveProposal& proposal) : save_(proposal) {}

  absl::StatusOr<SaveTask> Run(const absl::StatusOr<RankState>& local) {
    if (local.ok()) {
      description_ = local->SerializeAsString();
      key_ = CacheKey(save_.group, description_, save_.options);
    }
    const bool hit = local.ok() && save_.cache.entry_ != nullptr && save_.cache.entry_->key == key_;
    const absl::StatusOr<std::string> message =
        local.ok() ? absl::StatusOr<std::string>(FirstMessage(hit)) : local.status();
    TESSERA_ASSIGN_OR_RETURN(
        SaveVerdict verdict,
        Round(message, [&](const std::vector<std::string>& all) { return Answer(all); }));
    if (verdict.wants_description() || verdict.wants_entries()) {
      TESSERA_ASSIGN_OR_RETURN(
          verdict, Round(Details(verdict),
                         [&](const std::vector<std::string>& all) { return AnswerDetails(all); }));
    }
    return Finish(std::move(verdict));
  }

 private:
  absl::StatusOr<SaveVerdict> Round(const absl::StatusOr<std::string>& mine,
                                    const CombineEach& combine) {
    TESSERA_ASSIGN_OR_RETURN(const std::string reply,
                             AgreeEach(save_.group, mine, combine, save_.timeout));
    return AnswerFrom<SaveVerdict>(save_.group, reply);
  }

  std::string FirstMessage(bool hit) {
    SaveBegin begin;
    begin.set_step(save_.step);
    begin.set_overwrite(save_.overwrite);
    begin.set_checksum_chunk_bytes(save_.options.checksum_chunk_bytes);
    if (hit) {
      begin.set_plan_id(save_.cache.entry_->plan_id);
    } else {
      begin.set_description(description_);
      begin.set_max_file_bytes(save_.options.max_file_bytes);
    }
    begin.set_entries_digest(EntriesDigest());
    return begin.SerializeAsString();
  }

  // Returns this rank's bytes of an entry.
  std::string Entry(const std::string& name) const {
    const auto found = save_.metadata.entries.find(name);
    return found == save_.metadata.entries.end() ? "" : found->second;
  }

  std::string EntriesDigest() const {
    if (save_.metadata.merge.empty()) return "";
    std::string all;
    for (const auto& [name, merge] : save_.metadata.merge) {
      const std::string entry = Entry(name);
      absl::StrAppend(&all, name.size(), " ", entry.size(), " ", name, entry);
    }
    const LogicalDigest sum = DigestRun(0, all.data(), all.size(), 1);
    return absl::StrCat(sum.lo, " ", sum.hi);
  }

  // Protobuf makes an empty text, without an error, of a message above 2 GiB.
  absl::StatusOr<std::string> Details(const SaveVerdict& asked) const {
    SaveDetails details;
    if (asked.wants_description()) {
      details.set_description(description_);
      details.set_max_file_bytes(save_.options.max_file_bytes);
    }
    if (asked.wants_entries() && asked.entries_digest() != EntriesDigest()) {
      uint64_t bytes = 0;
      for (const auto& [name, merge] : save_.metadata.merge) {
        const std::string& entry = (*details.mutable_entries())[name] = Entry(name);
        bytes += name.size() + entry.size();
        if (bytes <= save_.max_entries_bytes) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "the entry ", name, " has ", entry.size(), " bytes; all entries that a rank sends to ",
            "be merged may have at most ", save_.max_entries_bytes));
      }
    }
    return details.SerializeAsString();
  }

  // Compares the size in a message that has a description. A cached plan has been compared before.
  absl::Status CheckFileSize(size_t rank, const auto& message) const {
    return CheckSame("max_file_bytes", save_.options.max_file_bytes, message.max_file_bytes(),
                     rank);
  }

  // Returns rank 0's answers to the first message of every rank.
  absl::StatusOr<std::vector<std::string>> Answer(const std::vector<std::string>& all) {
    SaveVerdict verdict;
    verdict.set_entries_digest(EntriesDigest());
    bool all_described = true;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      TESSERA_ASSIGN_OR_RETURN(auto begin, MessageFrom<SaveBegin>(rank, all[rank]));
      if (begin.step() != save_.step) {
        return absl::InvalidArgumentError(absl::StrCat("rank 0 saves step ", save_.step, ", rank ",
                                                       rank, " step ", begin.step()));
      }
      if (begin.overwrite() != save_.overwrite) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", save_.overwrite ? 0 : rank, " overwrites a checkpoint of the step, ", "rank ",
            save_.overwrite ? rank : 0, " does not"));
      }
      TESSERA_RETURN_IF_ERROR(CheckSame("checksum_chunk_bytes", save_.options.checksum_chunk_bytes,
                                        begin.checksum_chunk_bytes(), rank));
      if (begin.plan_id() == 0) TESSERA_RETURN_IF_ERROR(CheckFileSize(rank, begin));
      all_hit_ &= save_.cache.entry_ != nullptr && begin.plan_id() == save_.cache.entry_->plan_id;
      all_described &= begin.plan_id() == 0;
      descriptions_.push_back(std::move(*begin.mutable_description()));
      if (begin.entries_digest() != verdict.entries_digest()) verdict.set_wants_entries(true);
    }
    verdict.set_wants_description(!all_hit_ && !all_described);
    if (!verdict.wants_description() && !verdict.wants_entries()) return AnswerWithPlan();
    if (verdict.wants_description()) descriptions_.clear();
    return std::vector<std::string>(all.size(), verdict.SerializeAsString());
  }

  // Receives, on rank 0, the answers to its requests.
  absl::StatusOr<std::vector<std::string>> AnswerDetails(const std::vector<std::string>& all) {
    const bool takes_descriptions = descriptions_.empty();
    std::map<std::string, std::map<int, std::string>> entries;
    for (const auto& [name, merge] : save_.metadata.merge) entries[name][0] = Entry(name);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      TESSERA_ASSIGN_OR_RETURN(auto details, MessageFrom<SaveDetails>(rank, all[rank]));
      if (takes_descriptions) {
        TESSERA_RETURN_IF_ERROR(CheckFileSize(rank, details));
        descriptions_.push_back(std::move(*details.mutable_description()));
      }
      for (auto& [name, bytes] : *details.mutable_entries()) {
        if (bytes != entries[name][0]) entries[name][static_cast<int>(rank)] = std::move(bytes);
      }
    }
    for (const auto& [name, by_rank] : entries) {
      if (by_rank.size() == 1) continue;
      const auto merge = save_.metadata.merge.find(name);
      if (merge == save_.metadata.merge.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the entry ", name, " is merged on other ranks than rank 0"));
      }
      TESSERA_ASSIGN_OR_RETURN(merged_[name], merge->second(by_rank));
    }
    return AnswerWithPlan();
  }

  absl::Status Prepare(const Manifest& layout, bool is_new, SaveVerdict& verdict) {
    TESSERA_ASSIGN_OR_RETURN(SaveTarget target,
                             save_.prepare({layout, is_new, std::move(merged_)}));
    verdict.set_directory(std::move(target.directory));
    verdict.set_attempt(std::move(target.attempt));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> AnswerWithPlan() {
    SaveVerdict verdict;
    if (all_hit_) {
      TESSERA_RETURN_IF_ERROR(Prepare(save_.cache.entry_->manifest, /*is_new=*/false, verdict));
      return std::vector<std::string>(save_.group.size(), verdict.SerializeAsString());
    }
    TESSERA_ASSIGN_OR_RETURN(SavePlan plan, PlanSave(descriptions_, save_.options));
    TESSERA_RETURN_IF_ERROR(Prepare(plan.manifest, /*is_new=*/true, verdict));
    verdict.set_plan_id(NewPlanId());
    planned_ = std::move(plan.manifest);
    std::vector<std::string> answers;
    answers.reserve(plan.ranks.size());
    for (const RankPlan& part : plan.ranks) {
      verdict.set_plan(part.SerializeAsString());
      answers.push_back(verdict.SerializeAsString());
    }
    return answers;
  }

  absl::StatusOr<SaveTask> Finish(SaveVerdict verdict) {
    SaveTask task;
    task.directory = std::move(*verdict.mutable_directory());
    task.from_cache = verdict.plan_id() == 0;
    if (task.from_cache) {
      task.plan = save_.cache.entry_->mine;
    } else {
      save_.cache.entry_.reset();
      TESSERA_ASSIGN_OR_RETURN(task.plan, AnswerFrom<RankPlan>(save_.group, verdict.plan()));
      save_.cache.entry_ = std::make_shared<const PlanCache::Entry>(
          PlanCache::Entry{std::move(key_), verdict.plan_id(), task.plan, std::move(planned_)});
    }
    for (FilePlan& file : *task.plan.mutable_files()) {
      file.set_path(DataFileName(file.path(), verdict.attempt()));
    }
    return task;
  }

  const SaveProposal& save_;
  std::string description_, key_;
  // On rank 0.
  bool all_hit_ = true;                        // all ranks have the cached plan
  std::vector<std::string> descriptions_;      // by rank; empty: asked for
  std::map<std::string, std::string> merged_;  // entries
  Manifest planned_;
};

absl::StatusOr<SaveTask> AgreeOnSave(const absl::StatusOr<RankState>& local,
                                     const SaveProposal& proposal) {
  return SaveAgreement(proposal).Run(local);
}

}  // namespace tessera::ckpt
