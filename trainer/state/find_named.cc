#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/read_lock.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/reading.h"
#include "convert/open_foreign.h"
#include "trainer/config/config.h"
#include "trainer/config/load_content.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/run_state.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_run.h"
#include "trainer/state/saved_run.pb.h"

namespace tessera {
namespace {

// Adds to a manifest what its writer did not know and the settings state: the step, and the
// position in the data.
void StateWhatIsUnknown(const CheckpointConfig& config, ckpt::Manifest& manifest) {
  if (!ckpt::convert::TellsStep(manifest)) {
    if (!config.has_ckpt_step() && LoadContentOf(config).scheduler) return;
    manifest.mutable_trainer()->mutable_extra()->erase(ckpt::convert::kUnknownStepEntry);
    manifest.mutable_trainer()->set_best_loss(std::numeric_limits<double>::infinity());
    if (config.has_ckpt_step()) manifest.mutable_trainer()->set_step(config.ckpt_step());
  }
  if (config.has_consumed_samples() && !manifest.trainer().has_data()) {
    manifest.mutable_trainer()->mutable_data()->set_consumed_samples(config.consumed_samples());
  }
}

// `name` is itself a checkpoint.
absl::StatusOr<SavedRun> TakeSingleCheckpoint(const std::string& name,
                                              std::unique_ptr<Storage> storage,
                                              absl::StatusOr<ckpt::Manifest> manifest,
                                              const CheckpointConfig& config,
                                              std::shared_ptr<const ckpt::ReadLock> reading = {}) {
  TESSERA_RETURN_IF_ERROR(manifest.status());
  StateWhatIsUnknown(config, *manifest);
  if (config.has_ckpt_step() && config.ckpt_step() != manifest->trainer().step()) {
    return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(), ": ", name,
                                            " is a single checkpoint, of step ",
                                            manifest->trainer().step()));
  }
  return SavedRun{.checkpoint = ckpt::CheckpointOfManifest(
                      std::move(storage), "", *std::move(manifest), std::move(reading))};
}

// Returns options for this format, or for any format if it is empty.
ckpt::convert::OpenForeignOptions ForeignOptions(const CheckpointConfig& config,
                                                 const std::string& format) {
  return {.format = format,
          .stores = StoresOf(config),
          .parameter_names_file = config.parameter_to_structured_name(),
          .needs_trainer_files = LoadContentOf(config).optimizer};
}

absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> OpenForeign(
    const TrainConfig& config, const std::string& name, const std::string& format) {
  const ckpt::ModelProto model = ToProto(config.model());
  ckpt::convert::OpenForeignOptions options = ForeignOptions(config.checkpoint(), format);
  options.model = &model;
  return ckpt::convert::OpenForeign(name, options);
}

// Tensors under other names than a model's are of no use, unless some of them suffice.
absl::Status CheckIsModel(const std::string& name, const ckpt::convert::ForeignStorage& storage,
                          const ckpt::Manifest& manifest, const CheckpointConfig& config) {
  if (manifest.has_model() || storage.notes().empty() || config.allow_missing() ||
      config.allow_unexpected() || !config.load_tensors().empty()) {
    return absl::OkStatus();
  }
  return ckpt::convert::WithNotes(
      absl::FailedPreconditionError(
          absl::StrCat(name, " (", storage.format(), ") does not have this model's tensors")),
      storage.notes());
}

// Counts the position in the data in samples of this length, where the other framework's have
// another one and the tokens make whole samples. Returns a sentence about it, or "".
std::string InSamplesOf(int64_t seq_length, ckpt::Manifest& manifest) {
  if (!manifest.trainer().has_data() || seq_length <= 0) return "";
  ckpt::DataState& data = *manifest.mutable_trainer()->mutable_data();
  const int64_t samples = data.consumed_samples(), length = data.sequence_length();
  int64_t tokens = 0;
  if (length <= 0 || length == seq_length || __builtin_mul_overflow(samples, length, &tokens) ||
      tokens % seq_length != 0) {
    return "";
  }
  data.set_consumed_samples(tokens / seq_length);
  data.set_sequence_length(seq_length);
  return absl::StrCat(samples, " consumed samples of ", length, " tokens are ",
                      data.consumed_samples(), " of ", seq_length);
}

// Finds another framework's checkpoint, or a run of such, in `load`. NotFound if it is something
// else.
absl::StatusOr<SavedRun> FindForeign(const TrainConfig& settings, const NoteSink& notes) {
  const CheckpointConfig& config = settings.checkpoint();
  const absl::StatusOr<ckpt::convert::FoundForeign> known = ckpt::convert::FindForeign(
      config.load(), config.has_ckpt_step() ? std::optional(config.ckpt_step()) : std::nullopt,
      ForeignOptions(config, config.load_format()));
  if (absl::IsNotFound(known.status())) return NothingToLoad(config);
  TESSERA_ASSIGN_OR_RETURN(const ckpt::convert::FoundForeign found, known);
  absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> storage =
      OpenForeign(settings, found.name, config.load_format());
  if (absl::IsNotFound(storage.status())) return NothingToLoad(config);
  TESSERA_RETURN_IF_ERROR(storage.status());
  std::vector<std::string> all_notes = found.notes;
  all_notes.insert(all_notes.end(), (*storage)->notes().begin(), (*storage)->notes().end());
  for (const std::string& note : all_notes) notes(absl::StrCat("load=", config.load(), ": ", note));
  std::string format = (*storage)->format();
  absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(**storage, "");
  if (manifest.ok()) {
    const std::string sentence = InSamplesOf(settings.training().seq_length(), *manifest);
    if (!sentence.empty()) notes(absl::StrCat("load=", config.load(), ": ", sentence));
  }
  if (manifest.ok())
    TESSERA_RETURN_IF_ERROR(CheckIsModel(found.name, **storage, *manifest, config));
  TESSERA_ASSIGN_OR_RETURN(SavedRun run, TakeSingleCheckpoint(found.name, *std::move(storage),
                                                              std::move(manifest), config));
  run.foreign_name = found.name;
  run.foreign_format = std::move(format);
  return run;
}

// Takes the checkpoint of ckpt_step, or the one that ChooseToRead() finds, from a folder of
// checkpoints; nullopt if it has none.
absl::StatusOr<std::optional<SavedRun>> TakeFromFolder(std::unique_ptr<Storage> storage,
                                                       const CheckpointConfig& config,
                                                       const NoteSink& notes) {
  std::vector<ckpt::CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> saved,
                           ckpt::ListForResume(*storage, &unreadable));
  for (const ckpt::CheckpointInfo& checkpoint : unreadable) {
    // It was requested, or it may be the only one.
    const bool needed =
        config.has_ckpt_step() ? checkpoint.step == config.ckpt_step() : saved.empty();
    if (needed) return checkpoint.readable;
  }
  if (saved.empty()) return std::nullopt;
  auto chosen = saved.end();
  std::vector<SkippedRun> skipped;
  if (config.has_ckpt_step()) {
    chosen = std::ranges::find(saved, config.ckpt_step(), &ckpt::CheckpointInfo::step);
  } else {
    const ckpt::FoundCheckpoint choice = ckpt::ChooseToRead(*storage, saved);
    chosen =
        std::ranges::find(saved, choice.checkpoint.directory, &ckpt::CheckpointInfo::directory);
    for (const std::string& note : choice.notes) {
      notes(absl::StrCat("WARNING: ", note));
      // Without newer checkpoints, the note is one about the folder.
      if (chosen != saved.begin()) skipped.push_back({"diverged", note});
    }
  }
  if (chosen == saved.end()) {
    return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(), ": ",
                                            ckpt::NoSuchCheckpoint(*storage, saved).message()));
  }
  const auto older = std::find_if(chosen, saved.end(), [&](const ckpt::CheckpointInfo& other) {
    return other.step < chosen->step;
  });
  std::optional<int64_t> older_step;
  if (older != saved.end()) older_step = older->step;
  auto reading = std::make_shared<const ckpt::ReadLock>(*storage, chosen->directory);
  absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(*storage, chosen->directory);
  if (!manifest.ok()) return WithOlderStep(manifest.status(), older_step);
  StateWhatIsUnknown(config, *manifest);
  return SavedRun{
      .checkpoint = ckpt::CheckpointOfManifest(std::move(storage), chosen->directory,
                                               *std::move(manifest), std::move(reading)),
      .older_step = older_step,
      .skipped = std::move(skipped)};
}

// Finds the checkpoint that `load` names.
absl::StatusOr<SavedRun> Find(const TrainConfig& settings, const NoteSink& notes) {
  const CheckpointConfig& config = settings.checkpoint();
  const std::string& format = config.load_format();
  const bool is_ours = format == kTesseraFormat;
  const bool is_foreign = !format.empty() || !config.parameter_to_structured_name().empty();
  if (NamesAFile(config.load()) && !is_ours) return FindForeign(settings, notes);
  absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(config.load(), StoresOf(config));
  if (absl::IsNotFound(storage.status())) return NothingToLoad(config);
  TESSERA_RETURN_IF_ERROR(storage.status());
  if (is_foreign && !is_ours) return FindForeign(settings, notes);
  auto reading = std::make_shared<const ckpt::ReadLock>(**storage, "");
  absl::StatusOr<ckpt::Manifest> single = ckpt::ReadManifest(**storage, "");
  if (!absl::IsNotFound(single.status())) {
    return TakeSingleCheckpoint(config.load(), *std::move(storage), std::move(single), config,
                                std::move(reading));
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<SavedRun> found,
                           TakeFromFolder(*std::move(storage), config, notes));
  if (found.has_value()) return *std::move(found);
  if (!is_ours) return FindForeign(settings, notes);
  return NothingToLoad(config);
}

// Rank 0's message to the others about the checkpoint that it has found.
std::string Encode(const SavedRun& run) {
  SavedRunMessage message;
  message.set_directory(run.checkpoint.directory());
  if (run.older_step.has_value()) message.set_older_step(*run.older_step);
  message.set_foreign_name(run.foreign_name);
  message.set_foreign_format(run.foreign_format);
  message.set_manifest(run.manifest().SerializeAsString());
  return message.SerializeAsString();
}

absl::StatusOr<SavedRun> Decode(const std::string& bytes, const TrainConfig& settings) {
  const CheckpointConfig& config = settings.checkpoint();
  SavedRunMessage message;
  ckpt::Manifest manifest;
  if (!message.ParseFromString(bytes) || !manifest.ParseFromString(message.manifest())) {
    return absl::InternalError("rank 0's message about the checkpoint does not parse");
  }
  std::shared_ptr<Storage> storage;
  if (!message.foreign_format().empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        storage, OpenForeign(settings, message.foreign_name(), message.foreign_format()));
  } else {
    TESSERA_ASSIGN_OR_RETURN(storage, OpenStorage(config.load(), StoresOf(config)));
  }
  SavedRun run = {.checkpoint = ckpt::CheckpointOfManifest(std::move(storage), message.directory(),
                                                           std::move(manifest)),
                  .foreign_name = message.foreign_name(),
                  .foreign_format = message.foreign_format()};
  if (message.has_older_step()) run.older_step = message.older_step();
  return run;
}

}  // namespace

absl::StatusOr<SavedRun> FindNamed(const TrainConfig& config, const RankGroup& group,
                                   const NoteSink& notes) {
  if (group.ranks.rank() != 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::string found, group.ranks.Broadcast("", group.timeout));
    return Decode(found, config);
  }
  TESSERA_ASSIGN_OR_RETURN(SavedRun run, Find(config, notes));
  TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast(Encode(run), group.timeout).status());
  return run;
}

}  // namespace tessera
