#include "trainer/state/run_saver.h"

#include "base/status_macros.h"
#include "base/trace.h"
#include "trainer/state/save_storage.h"

namespace tessera {
namespace {

// A stalling disk delays saves, not training: a missing rank is detected by the training's own
// messages long before.
constexpr absl::Duration kBackgroundTimeout = absl::Hours(24);

ckpt::SaveScheduleOptions ToSchedule(const TrainConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint();
  return {.saves = Saves(config),
          .interval_steps = checkpoint.save_interval(),
          .interval = absl::Minutes(checkpoint.save_interval_minutes()),
          .continuous = checkpoint.save_continuously(),
          .rolling_interval_steps = checkpoint.non_persistent_save_interval(),
          .last_step = config.training().train_iters(),
          .saves_last_step = checkpoint.save_last_step(),
          .exit_interval_steps = config.training().exit_interval(),
          .saves_at_signals = checkpoint.exit_signal_handler()};
}

ckpt::FailedSavesOptions ToFailures(const CheckpointConfig& config) {
  const double minutes = config.max_minutes_without_checkpoint();
  return {
      .max_failed_saves = config.max_failed_saves(),
      .max_without_checkpoint = minutes > 0 ? absl::Minutes(minutes) : absl::InfiniteDuration()};
}

ckpt::RetentionOptions ToRetention(const CheckpointConfig& config) {
  return {.newest = config.max_checkpoint_keep(),
          .every_steps = config.save_retain_interval(),
          .best = config.save_top_k(),
          .within = absl::Minutes(config.save_retain_minutes()),
          .awaits_healthy_step = true};
}

}  // namespace

RunSaver::RunSaver(const TrainConfig& config, Communicator* world, RunSaverHooks hooks)
    : config_(config),
      hooks_(std::move(hooks)),
      ranks_(MakeProcessGroup(world)),
      group_(GroupOf(*ranks_, config)) {}

RunSaver::~RunSaver() {
  if (mirrored_.has_value()) StartMirrored();
}

absl::StatusOr<std::unique_ptr<RunSaver>> RunSaver::Open(const TrainConfig& config,
                                                         Communicator* world, RunSaverHooks hooks,
                                                         absl::Duration lock_wait) {
  std::unique_ptr<RunSaver> saver(new RunSaver(config, world, std::move(hooks)));
  const CheckpointConfig& checkpoint = config.checkpoint();
  if (Saves(config) && checkpoint.async_save()) {
    if (world != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(saver->background_communicator_,
                               world->Split(/*color=*/0, world->rank(), "saves"));
    }
    saver->background_group_ = MakeProcessGroup(saver->background_communicator_.get());
  }
  ckpt::CheckpointManagerOptions options = saver->ManagerOptions();
  options.lock_wait = lock_wait;
  auto manager = ckpt::JobSaves::Open(checkpoint.save(), std::move(options), StoresOf(checkpoint));
  TESSERA_RETURN_IF_ERROR(OfSave(checkpoint, manager.status()));
  saver->manager_ = *std::move(manager);
  return saver;
}

absl::Status RunSaver::Begin(std::vector<StateChunk> chunks, SavedBefore before) {
  chunks_ = std::move(chunks);
  before_ = std::move(before);
  if (!config_.checkpoint().no_save_optim()) {
    const OptimizerConfig& optimizer =
        before_.optimizer != nullptr ? *before_.optimizer : config_.optimizer();
    TESSERA_ASSIGN_OR_RETURN(optimizer_names_,
                             OptimizerNames(chunks_, optimizer, group_.ranks, group_.timeout));
    if (before_.loaded != nullptr) KeepForeignNames(*before_.loaded, *optimizer_names_);
  }
  manager_->Prepare(State());
  return absl::OkStatus();
}

absl::Status RunSaver::DeleteReplicas() {
  return before_.replicas == nullptr ? absl::OkStatus() : before_.replicas->replicas().Remove();
}

ckpt::CheckpointManagerOptions RunSaver::ManagerOptions() const {
  const CheckpointConfig& checkpoint = config_.checkpoint();
  ckpt::CheckpointManagerOptions options;
  options.save.group = &group_.ranks;
  options.save.timeout = group_.timeout;
  options.save.before_commit = hooks_.before_commit;
  if (background_group_ != nullptr) options.background = BackgroundOptions();
  options.schedule = ToSchedule(config_);
  options.failures = ToFailures(checkpoint);
  options.keep = ToRetention(checkpoint);
  options.async_upload = checkpoint.async_upload();
  options.async_upload_tmp_folder = checkpoint.async_upload_tmp_folder();
  if (group_.ranks.rank() == 0) options.stop_file_path = checkpoint.stop_file_path();
  options.notes = hooks_.notes;
  return options;
}

ckpt::AsyncSaveOptions RunSaver::BackgroundOptions() const {
  ckpt::AsyncSaveOptions options;
  options.save.group = background_group_.get();
  options.save.timeout = kBackgroundTimeout;
  options.save.before_commit = hooks_.before_commit;
  options.available_memory_bytes = hooks_.available_memory_bytes;
  // The mirror keeps its contents until the next save: a small part of it in copies is enough.
  if (config_.training().device() == ComputeDevice::CUDA)
    options.save.staging_bytes = ckpt::SaveOptions().staging_bytes;
  if (config_.checkpoint().async_save_memory() > 0) {
    options.save.staging_bytes = static_cast<uint64_t>(config_.checkpoint().async_save_memory());
    options.copy_ahead_bytes = options.save.staging_bytes;
  }
  if (config_.checkpoint().async_save_skip()) {
    options.when_busy = ckpt::AsyncSaveOptions::WhenBusy::kSkip;
  }
  return options;
}

ckpt::StateDict RunSaver::State() const {
  ckpt::StateDict state = WeightState(chunks_);
  if (config_.checkpoint().no_save_optim()) return state;
  for (ckpt::ShardedTensor& tensor : OptimizerTensors(chunks_).tensors) {
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

ckpt::SaveRequest RunSaver::RequestOf(ckpt::Manifest run) const {
  ckpt::SaveRequest request = {.step = run.trainer().step()};
  if (optimizer_names_.has_value()) *run.mutable_optimizer() = *optimizer_names_;
  request.metadata = ckpt::ToMetadata(std::move(run));
  return request;
}

absl::Status RunSaver::Save(ckpt::Manifest run, ckpt::SaveKind kind) {
  const TimeSpent spent(TimeUse::kSaving);
  ckpt::SaveRequest request = RequestOf(std::move(run));
  if (mirror() == nullptr) return manager_->Save(request, State(), kind);
  StartMirror();
  if (config_.checkpoint().async_save()) {
    mirrored_ = {.request = std::move(request), .save = kind};
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(mirror()->FinishDownload());
  return manager_->Save(request, State(), kind);
}

void RunSaver::Replicate(ckpt::Manifest run) {
  const TimeSpent spent(TimeUse::kSaving);
  ckpt::SaveRequest request = RequestOf(std::move(run));
  if (mirror() == nullptr) return before_.replicas->replicas().Start(request, State());
  if (mirrored_.has_value() && mirrored_->request.step == request.step) {
    mirrored_->replicates = true;
    return;
  }
  StartMirror();
  mirrored_ = {.request = std::move(request), .replicates = true};
}

void RunSaver::StartMirror() {
  if (mirrored_.has_value()) StartMirrored();
  manager_->WaitUntilAllCopied();
  if (before_.replicas != nullptr) before_.replicas->replicas().WaitUntilAllCopied();
  mirror()->StartDownload();
}

void RunSaver::StartMirrored() {
  const Mirrored mirrored = *std::exchange(mirrored_, std::nullopt);
  const absl::Status copied = mirror()->FinishDownload();
  if (mirrored.save != ckpt::SaveKind::kNone) {
    if (copied.ok()) {
      // In the background: errors are outcomes.
      manager_->Save(mirrored.request, State(), mirrored.save).IgnoreError();
    } else {
      manager_->Refuse(mirrored.request.step, copied);
    }
  }
  if (!mirrored.replicates) return;
  if (copied.ok()) {
    before_.replicas->replicas().Start(mirrored.request, State());
  } else {
    before_.replicas->replicas().Refuse(mirrored.request.step, copied);
  }
}

void RunSaver::BeforeOverwrite(const TensorView& memory) {
  const TimeSpent spent(TimeUse::kSaving);
  if (mirror() != nullptr) return mirror()->BeforeOverwrite(memory);
  manager_->WaitUntilCopied(memory.data(), static_cast<uint64_t>(memory.bytes()));
  if (before_.replicas == nullptr) return;
  before_.replicas->replicas().WaitUntilCopied(memory.data(),
                                               static_cast<uint64_t>(memory.bytes()));
}

std::vector<ckpt::SaveOutcome> RunSaver::PollReplicas() {
  if (before_.replicas == nullptr) return {};
  return before_.replicas->replicas().Poll();
}

std::vector<ckpt::SaveOutcome> RunSaver::FinishReplicas() {
  const TimeSpent spent(TimeUse::kSaving);
  if (before_.replicas == nullptr) return {};
  if (mirrored_.has_value()) StartMirrored();
  return before_.replicas->replicas().Finish();
}

std::vector<ckpt::SaveOutcome> RunSaver::Poll() {
  const TimeSpent spent(TimeUse::kSaving);
  if (mirrored_.has_value()) {
    // An error of the copy is found once more, and reported, by StartMirrored().
    const absl::StatusOr<bool> copied = mirror()->IsDownloaded();
    if (!copied.ok() || *copied) StartMirrored();
  }
  return manager_->Poll();
}

absl::StatusOr<ckpt::Manifest> RunSaver::Saved(const std::string& directory) const {
  TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint,
                           ckpt::Checkpoint::Open(manager_->storage(), directory));
  return checkpoint.manifest();
}

std::vector<ckpt::SaveOutcome> RunSaver::Finish() {
  const TimeSpent spent(TimeUse::kSaving);
  if (mirrored_.has_value()) StartMirrored();
  return manager_->Finish();
}

}  // namespace tessera
