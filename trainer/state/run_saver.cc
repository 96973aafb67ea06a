#include "trainer/state/run_saver.h"

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "storage/tiered/staging_folder.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/save_storage.h"

namespace tessera {
namespace {

// A stalling disk delays saves, not training: a missing rank is detected by the training's own
// messages long before.
constexpr absl::Duration kBackgroundDeadline = absl::Hours(24);

ckpt::RetentionOptions ToRetention(const CheckpointConfig& config) {
  return {.newest = config.max_checkpoint_keep(),
          .every_steps = config.save_retain_interval(),
          .best = config.save_top_k(),
          .within = absl::Minutes(config.save_retain_minutes())};
}

}  // namespace

RunSaver::RunSaver(const TrainConfig& config, std::vector<StateChunk> chunks,
                   const RankGroup& group, RunSaverHooks hooks)
    : config_(config), chunks_(std::move(chunks)), group_(group), hooks_(std::move(hooks)) {}

RunSaver::~RunSaver() {
  if (mirrored_.has_value()) StartMirrored();
}

absl::StatusOr<std::unique_ptr<RunSaver>> RunSaver::Create(const TrainConfig& config,
                                                           std::vector<StateChunk> chunks,
                                                           const RankGroup& group,
                                                           Communicator* world,
                                                           RunSaverHooks hooks) {
  std::unique_ptr<RunSaver> saver(new RunSaver(config, std::move(chunks), group, std::move(hooks)));
  TESSERA_RETURN_IF_ERROR(saver->OpenStorage());
  if (!config.checkpoint().no_save_optim()) {
    TESSERA_ASSIGN_OR_RETURN(
        saver->optimizer_names_,
        OptimizerNames(saver->chunks_, config.optimizer(), group.ranks, group.deadline));
    if (saver->hooks_.loaded != nullptr) {
      KeepForeignNames(*saver->hooks_.loaded, *saver->optimizer_names_);
    }
  }
  TESSERA_RETURN_IF_ERROR(saver->OpenManager(world));
  return saver;
}

absl::Status RunSaver::OpenStorage() {
  const auto has_room = [this](uint64_t size_bytes) {
    return !hooks_.available_memory_bytes || size_bytes <= hooks_.available_memory_bytes() / 2;
  };
  TESSERA_ASSIGN_OR_RETURN(storage_,
                           OpenSaveStorage(config_.checkpoint(), /*create_root=*/true, has_room));
  Storage* const staging = storage_->staging();
  if (staging == nullptr) return absl::OkStatus();
  return ForgetCopiesBut(*staging, hooks_.resumed_directory);
}

absl::Status RunSaver::ForgetNearbyCopies() {
  if (hooks_.replicas != nullptr) TESSERA_RETURN_IF_ERROR(hooks_.replicas->replicas().Remove());
  Storage* const staging = storage_->staging();
  if (staging == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(ForgetCopiesBut(*staging, ""));
  RemoveStagingFolder(*staging);
  return absl::OkStatus();
}

absl::Status RunSaver::OpenManager(Communicator* world) {
  ckpt::CheckpointManagerOptions options;
  options.keep = ToRetention(config_.checkpoint());
  options.save.group = &group_.ranks;
  options.save.deadline = group_.deadline;
  options.save.before_commit = hooks_.before_commit;
  if (config_.checkpoint().async_save()) {
    if (world != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(background_communicator_,
                               world->Split(/*color=*/0, world->rank(), "saves"));
    }
    background_group_ = MakeProcessGroup(background_communicator_.get());
    options.background = BackgroundOptions();
  }
  manager_ = std::make_unique<ckpt::CheckpointManager>(storage_, std::move(options));
  if (config_.checkpoint().async_save()) manager_->Prepare(State());
  return absl::OkStatus();
}

ckpt::AsyncSaveOptions RunSaver::BackgroundOptions() const {
  ckpt::AsyncSaveOptions options;
  options.save.group = background_group_.get();
  options.save.deadline = kBackgroundDeadline;
  options.save.before_commit = hooks_.before_commit;
  options.available_memory_bytes = hooks_.available_memory_bytes;
  // The mirror keeps its contents until the next save: a small part of it in copies is enough.
  if (mirror() != nullptr) options.save.staging_bytes = ckpt::SaveOptions().staging_bytes;
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
  request.rolling = kind == ckpt::SaveKind::kRolling;
  if (mirror() == nullptr) return manager_->Save(request, State());
  TESSERA_RETURN_IF_ERROR(StartMirror());
  if (config_.checkpoint().async_save()) {
    mirrored_ = {.request = std::move(request), .saves = true};
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(mirror()->FinishDownload());
  return manager_->Save(request, State());
}

absl::Status RunSaver::Replicate(ckpt::Manifest run) {
  const TimeSpent spent(TimeUse::kSaving);
  ckpt::SaveRequest request = RequestOf(std::move(run));
  if (mirror() == nullptr) {
    hooks_.replicas->replicas().Start(request, State());
    return absl::OkStatus();
  }
  if (mirrored_.has_value() && mirrored_->request.step == request.step) {
    mirrored_->replicates = true;
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(StartMirror());
  mirrored_ = {.request = std::move(request), .replicates = true};
  return absl::OkStatus();
}

absl::Status RunSaver::StartMirror() {
  if (mirrored_.has_value()) StartMirrored();
  manager_->WaitUntilAllCopied();
  if (hooks_.replicas != nullptr) hooks_.replicas->replicas().WaitUntilAllCopied();
  mirror()->StartDownload();
  return absl::OkStatus();
}

void RunSaver::StartMirrored() {
  const Mirrored mirrored = *std::exchange(mirrored_, std::nullopt);
  const absl::Status copied = mirror()->FinishDownload();
  if (mirrored.saves) {
    if (copied.ok()) {
      // In the background: errors are outcomes.
      manager_->Save(mirrored.request, State()).IgnoreError();
    } else {
      manager_->Refuse(mirrored.request.step, copied);
    }
  }
  if (!mirrored.replicates) return;
  if (copied.ok()) {
    hooks_.replicas->replicas().Start(mirrored.request, State());
  } else {
    hooks_.replicas->replicas().Refuse(mirrored.request.step, copied);
  }
}

void RunSaver::BeforeOverwrite(const TensorView& memory) {
  const TimeSpent spent(TimeUse::kSaving);
  if (mirror() != nullptr) return mirror()->BeforeOverwrite(memory);
  manager_->WaitUntilCopied(memory.data(), static_cast<uint64_t>(memory.bytes()));
  if (hooks_.replicas == nullptr) return;
  hooks_.replicas->replicas().WaitUntilCopied(memory.data(), static_cast<uint64_t>(memory.bytes()));
}

std::vector<ckpt::SaveOutcome> RunSaver::PollReplicas() {
  if (hooks_.replicas == nullptr) return {};
  return hooks_.replicas->replicas().Poll();
}

std::vector<ckpt::SaveOutcome> RunSaver::FinishReplicas() {
  const TimeSpent spent(TimeUse::kSaving);
  if (hooks_.replicas == nullptr) return {};
  if (mirrored_.has_value()) StartMirrored();
  return hooks_.replicas->replicas().Finish();
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
                           ckpt::Checkpoint::Open(*storage_, directory));
  return checkpoint.manifest();
}

std::vector<ckpt::SaveOutcome> RunSaver::Finish() {
  const TimeSpent spent(TimeUse::kSaving);
  if (mirrored_.has_value()) StartMirrored();
  return manager_->Finish();
}

}  // namespace tessera
