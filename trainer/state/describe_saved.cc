#include "trainer/state/describe_saved.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/open_foreign.h"
#include "convert/source_place.h"
#include "trainer/config/load_content.h"
#include "trainer/state/save_storage.h"

namespace tessera {
namespace {

absl::StatusOr<std::unique_ptr<Storage>> Open(const std::string& folder,
                                              const CheckpointConfig& config) {
  return OpenStorage(folder, StoresOf(config));
}

// Returns why a directory cannot be read, for a sentence that has named it already.
std::string WhyUnreadable(const Storage& storage, const ckpt::CheckpointInfo& info) {
  const std::string name = storage.Describe(info.directory);
  return absl::StrReplaceAll(info.readable.message(),
                             {{absl::StrCat(name, "/"), ""}, {absl::StrCat(name, ": "), ""}});
}

absl::Status CheckLaterOnThisRank(const CheckpointConfig& config, int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage, Open(config.save(), config));
  const bool leaves_step_out = LoadsItsOwn(config) && !LoadContentOf(config).scheduler;
  const absl::Status found = ckpt::CheckLaterSteps(
      *storage, step,
      leaves_step_out ? "resume with the step, which --finetune and --load-content leave out, or "
                        "save to another folder"
                      : "resume from there, or save to another folder");
  if (!absl::IsFailedPrecondition(found)) return found;
  return absl::FailedPreconditionError(absl::StrCat("save: ", found.message()));
}

}  // namespace

bool NamesAFile(const std::string& name) {
  std::error_code error;
  const std::optional<std::string> local = LocalPathOfName(name);
  return local.has_value() && std::filesystem::is_regular_file(*local, error);
}

absl::Status NothingToLoad(const CheckpointConfig& config) {
  const absl::StatusOr<std::unique_ptr<Storage>> storage = Open(config.load(), config);
  const std::string& format = config.load_format();
  std::string text = absl::StrCat("load=", config.load(), " ");
  if (NamesAFile(config.load())) {
    absl::StrAppend(&text, "is no checkpoint in ",
                    format.empty() ? "a known format" : absl::StrCat("the format ", format),
                    View(ckpt::convert::DescribeFile(config.load())));
  } else if (storage.ok()) {
    absl::StrAppend(&text, "holds no checkpoint",
                    format.empty() ? "" : absl::StrCat(" in the format ", format), ": ",
                    ckpt::convert::DescribeContents(**storage));
  } else {
    absl::StrAppend(&text, ckpt::convert::DescribeAbsence(config.load()));
  }
  return absl::NotFoundError(absl::StrCat(text, "; without load, a run begins at step 0"));
}

absl::Status WithOlderStep(const absl::Status& status, std::optional<int64_t> older_step) {
  if (!older_step.has_value()) return status;
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; --ckpt-step=", *older_step,
                                                  " resumes from the checkpoint before"));
}

absl::Status InSettings(const absl::Status& status, const CheckpointConfig& config) {
  const bool loads_other = !LoadsItsOwn(config) && !config.load().empty();
  switch (ckpt::ProblemOf(status)) {
    case ckpt::ResumeProblem::kNone:
      return status;
    case ckpt::ResumeProblem::kNoSuchStep:  // "step 400: no such ..."
      return absl::Status(status.code(), absl::StrCat("ckpt_", status.message()));
    case ckpt::ResumeProblem::kNoneValid:
      return absl::Status(
          status.code(),
          absl::StrCat(status.message(), "; --resume-ignore-no-valid-checkpoint begins ",
                       loads_other ? "from load" : "at step 0"));
  }
  return status;
}

absl::Status CheckTellsProgress(const SavedRun& saved, const TrainConfig& config) {
  const CheckpointConfig& settings = config.checkpoint();
  const LoadContent content = LoadContentOf(settings);
  const std::string who = saved.foreign_format.empty()
                              ? saved.Describe()
                              : absl::StrCat(saved.Describe(), " (", saved.foreign_format, ")");
  const ckpt::TrainerState& trainer = saved.manifest().trainer();
  if (content.scheduler && !ckpt::convert::TellsStep(saved.manifest())) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " does not tell its step; --finetune takes the weights alone and starts ",
                     "at step 0, --ckpt-step=N states the step"));
  }
  if (content.sampler && !trainer.has_data()) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, " does not tell its position in the data; --load-content=model,optimizer,scheduler ",
        "reads the data from the beginning, --consumed-samples=N continues after N samples"));
  }
  if (settings.has_consumed_samples() &&
      settings.consumed_samples() != trainer.data().consumed_samples()) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, " tells its position in the data, ", trainer.data().consumed_samples(),
        " samples, which differs from consumed_samples=", settings.consumed_samples()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DescribeSkipped(const std::string& folder, int64_t step,
                                            const CheckpointConfig& config) {
  absl::StatusOr<std::unique_ptr<Storage>> storage = Open(folder, config);
  if (absl::IsNotFound(storage.status())) return "";
  TESSERA_RETURN_IF_ERROR(storage.status());
  const ckpt::CheckpointFolder opened(*std::move(storage));
  TESSERA_ASSIGN_OR_RETURN(const ckpt::FolderContents contents, opened.ListAll());
  std::vector<std::string> later, cannot_be_read, sentences;
  for (const ckpt::CheckpointInfo& dir : contents.uncommitted) {
    if (dir.step > step) later.push_back(dir.directory);
  }
  for (const ckpt::CheckpointInfo& dir : contents.unreadable) {
    cannot_be_read.push_back(absl::StrCat(dir.directory, ", which cannot be read (",
                                          WhyUnreadable(opened.storage(), dir), ")"));
  }
  if (!later.empty()) {
    sentences.push_back(absl::StrCat(JoinFirst(later, ", "),
                                     later.size() == 1 ? ", a save that was" : ", saves that were",
                                     " never completed (no manifest.pb)"));
  }
  if (!cannot_be_read.empty()) sentences.push_back(JoinFirst(cannot_be_read, "; "));
  if (sentences.empty()) return "";
  return absl::StrCat("skipped in ", folder, ": ", absl::StrJoin(sentences, "; "));
}

absl::Status CheckLaterSteps(const TrainConfig& config, int64_t step, bool from_own,
                             const RankGroup& group) {
  if (!Saves(config) || from_own) return absl::OkStatus();
  if (group.ranks.rank() == 0) {
    TESSERA_RETURN_IF_ERROR(CheckLaterOnThisRank(config.checkpoint(), step));
  }
  return group.ranks.Broadcast("", group.timeout).status();
}

}  // namespace tessera
