#include "trainer/app/start.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tokenizer/files/load_tokenizer.h"
#include "trainer/config/load_content.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

// Returns the part of the saved progress that `content` takes. The rest is as in a run that has not
// begun.
Progress TakenOver(const Progress& saved, const LoadContent& content) {
  Progress progress;
  if (content.scheduler) {
    progress.step = saved.step;
    progress.last_loss = saved.last_loss;
    progress.last_learning_rate = saved.last_learning_rate;
    progress.best_loss = saved.best_loss;
    progress.best_training_loss = saved.best_training_loss;
    progress.best_loss_data = saved.best_loss_data;
    progress.partial_resumes = saved.partial_resumes;
  }
  if (content.optimizer) {
    progress.updates = saved.updates;
    // Updates of the moments that this run's own steps do not count.
    progress.earlier_updates = content.scheduler ? saved.earlier_updates : saved.updates;
  }
  if (content.sampler) {
    progress.consumed_samples = saved.consumed_samples;
    progress.data_seed = saved.data_seed;
  }
  progress.ledger = saved.ledger;
  return progress;
}

// Marks a progress that continues from some parts or tensors of a checkpoint only: the chain is of
// one computation, and what is taken in parts begins another one.
void MarkPartialResume(const LoadContent& content, const LoadPolicy& policy, Progress& progress) {
  const bool has_parts = content.model && content.optimizer && content.scheduler && content.sampler;
  if (!has_parts || policy.partial()) progress.ledger.clear();
  if (!content.scheduler) return;
  std::string left_out = LeftOut(content);
  if (!policy.patterns.empty()) {
    absl::StrAppend(&left_out, left_out.empty() ? "" : ", ", "tensors that load_tensors excludes");
  }
  if (!left_out.empty()) AddPartialResume(left_out, progress);
}

// Returns the checkpoint's progress, as far as the settings permit.
absl::StatusOr<Progress> ProgressFrom(const TrainConfig& config,
                                      const std::optional<SavedRun>& saved) {
  const uint64_t seed = static_cast<uint64_t>(config.training().seed());
  const LoadContent content = LoadContentOf(config.checkpoint());
  Progress progress;
  bool same_random_numbers = false;
  if (saved.has_value() && content.continues()) {
    TESSERA_RETURN_IF_ERROR(CheckTellsProgress(*saved, config));
    const absl::StatusOr<Progress> saved_progress = ReadProgress(saved->manifest());
    TESSERA_RETURN_IF_ERROR(InCheckpoint(*saved, saved_progress.status()));
    progress = TakenOver(*saved_progress, content);
    MarkPartialResume(content, PolicyOf(config.checkpoint(), /*trains=*/true), progress);
    if (content.rng && saved->manifest().trainer().has_rng()) {
      TESSERA_RETURN_IF_ERROR(InCheckpoint(*saved, CheckSameRandomNumbers(saved->manifest())));
      progress.seed = saved_progress->seed;
      same_random_numbers = true;
    }
  }
  if (!same_random_numbers) progress.seed = seed;
  // An epoch in progress continues in its original order.
  const bool same_order = same_random_numbers && content.sampler;
  const bool has_order = saved.has_value() && content.sampler && KnowsItsData(saved->manifest());
  if (!has_order || (!same_order && progress.consumed_samples == 0)) progress.data_seed = seed;
  return progress;
}

}  // namespace

absl::Status InCheckpoint(const SavedRun& saved, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(saved.Describe(), ": ", status.message()));
}

void AddPartialResume(const std::string& left_out, Progress& progress) {
  absl::StrAppend(&progress.partial_resumes, progress.partial_resumes.empty() ? "" : "; ", "step ",
                  progress.step, " without ", left_out);
}

absl::StatusOr<Progress> StartingPoint(const std::optional<SavedRun>& saved, TrainConfig* config) {
  *config = SettingsFor(*config, saved);
  TESSERA_ASSIGN_OR_RETURN(const Progress progress, ProgressFrom(*config, saved));
  if (saved.has_value() && config->checkpoint().use_checkpoint_opt_param_scheduler()) {
    TESSERA_RETURN_IF_ERROR(InCheckpoint(*saved, TakeSavedSchedule(saved->manifest(), config)));
  }
  return progress;
}

bool ResumesInPart(const SavedRun& saved, const CheckpointConfig& given) {
  const LoadContent content = LoadContentOf(given);
  const bool optimizer = content.optimizer || given.no_save_optim();
  const bool is_whole = content.model && optimizer && content.sampler;
  return saved.is_own && LoadsItsOwn(given) && !(is_whole && given.load_tensors().empty());
}

absl::Status CheckModel(const SavedRun& saved, const TrainConfig& config, const NoteSink& notes) {
  if (config.checkpoint().strict_topology()) {
    const absl::Status same = CheckSameTopology(saved.manifest(), config);
    if (!same.ok()) {
      return absl::Status(same.code(), absl::StrCat(saved.Describe(), " would be ", same.message(),
                                                    ", which --strict-topology refuses"));
    }
  }
  if (!LoadContentOf(config.checkpoint()).has_tensors()) return absl::OkStatus();
  const absl::Status same = CheckSameModel(saved.manifest(), config.model());
  const LoadPolicy policy = PolicyOf(config.checkpoint(), /*has_optimizer=*/true);
  if (!same.ok() && !policy.partial() && !policy.allow_unexpected) {
    return absl::Status(
        same.code(),
        absl::StrCat(saved.Describe(), ": ", same.message(),
                     "; --allow-unexpected skips tensors that this model does not "
                     "have, --allow-missing begins those anew that were not saved, and "
                     "--load-tensors those that its patterns do not match, as where shapes "
                     "differ"));
  }
  if (!same.ok()) notes(std::string(same.message()));
  return absl::OkStatus();
}

absl::StatusOr<SavedRun> FindLlmcFile(const TrainConfig& config, const RankGroup& group) {
  CheckpointConfig file;
  file.set_load(config.checkpoint().llmc_filepath());
  file.set_load_format("llmc");
  file.set_load_content("model");
  file.set_s3_endpoint(config.checkpoint().s3_endpoint());
  TrainConfig settings = config;
  *settings.mutable_checkpoint() = file;
  TESSERA_ASSIGN_OR_RETURN(std::optional<SavedRun> saved,
                           FindSavedRun(settings, group, [](const std::string&) {}));
  TESSERA_RETURN_IF_ERROR(InCheckpoint(*saved, CheckSameModel(saved->manifest(), config.model())));
  return *std::move(saved);
}

absl::Status InSetting(const char* setting, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(setting, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<TokenDataset>> OpenTokens(const char* setting,
                                                         const std::string& pattern,
                                                         const TrainConfig& config) {
  auto dataset =
      TokenDataset::Open(pattern, config.training().seq_length(), config.model().vocab_size());
  TESSERA_RETURN_IF_ERROR(InSetting(setting, dataset.status()));
  return dataset;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const TrainConfig& config) {
  constexpr char kSetting[] = "tokenizer_model";
  auto tokenizer = LoadTokenizer(config.data().tokenizer_model());
  TESSERA_RETURN_IF_ERROR(InSetting(kSetting, tokenizer.status()));
  const int64_t tokens = (*tokenizer)->vocab_size(), wanted = config.model().vocab_size();
  if (tokens == wanted) return tokenizer;
  return InSetting(kSetting, absl::InvalidArgumentError(
                                 absl::StrCat(config.data().tokenizer_model(), " has ", tokens,
                                              " tokens, the model's vocab_size is ", wanted)));
}

}  // namespace tessera
