#include "trainer/state/run_saver.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage/tiered/staging_folder.h"
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

SaveOutcome ToOutcome(const ckpt::SaveOutcome& outcome) {
  if (!outcome.report.ok()) return {.step = outcome.step, .report = outcome.report.status()};
  return {.step = outcome.step, .report = outcome.report->save};
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
  TESSERA_RETURN_IF_ERROR(saver->OpenSaves());
  saver->retention_.emplace(*saver->storage_, "", ToRetention(config.checkpoint()));
  if (!config.checkpoint().no_save_optim()) {
    TESSERA_ASSIGN_OR_RETURN(
        saver->optimizer_names_,
        OptimizerNames(saver->chunks_, config.optimizer(), group.ranks, group.deadline));
  }
  if (config.checkpoint().async_save()) {
    TESSERA_RETURN_IF_ERROR(saver->OpenBackground(world));
  }
  return saver;
}

absl::Status RunSaver::OpenSaves() {
  TESSERA_ASSIGN_OR_RETURN(storage_, OpenSaveStorage(config_.checkpoint(), /*create_root=*/true));
  upload_ = AsUploadStorage(*storage_);
  if (upload_ == nullptr) return absl::OkStatus();
  if (hooks_.available_memory_bytes) {
    upload_->LimitRoom(
        [this](uint64_t size_bytes) { return size_bytes <= hooks_.available_memory_bytes() / 2; });
  }
  return upload_->ForgetAllBut(hooks_.resumed_directory);
}

absl::Status RunSaver::ForgetNearbyCopies() {
  if (upload_ == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(upload_->ForgetAllBut(""));
  ckpt::RemoveStagingFolder(upload_->staging());
  return absl::OkStatus();
}

absl::Status RunSaver::OpenBackground(Communicator* world) {
  if (world != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(background_communicator_,
                             world->Split(/*color=*/0, world->rank(), "saves"));
  }
  background_group_ = MakeProcessGroup(background_communicator_.get());
  ckpt::AsyncSaveOptions options;
  const uint64_t staging_bytes = options.save.staging_bytes;
  options.save = Options();
  options.save.staging_bytes = staging_bytes;
  options.save.group = background_group_.get();
  options.save.deadline = kBackgroundDeadline;
  options.available_memory_bytes = hooks_.available_memory_bytes;
  // The mirror keeps its contents until the next save: a small part of it in copies is enough.
  if (mirror() != nullptr) options.save.staging_bytes = ckpt::SaveOptions().staging_bytes;
  if (config_.checkpoint().async_save_memory() > 0) {
    options.save.staging_bytes = static_cast<uint64_t>(config_.checkpoint().async_save_memory());
  }
  if (config_.checkpoint().async_save_skip()) {
    options.when_busy = ckpt::AsyncSaveOptions::WhenBusy::kSkip;
  }
  options.on_committed = [this](ckpt::AsyncSaveReport& report) { AfterCommit(report.save); };
  background_ = std::make_unique<ckpt::AsyncSaver>(*storage_, "", options);
  background_->Prepare(State());
  return absl::OkStatus();
}

ckpt::StateDict RunSaver::State() const {
  ckpt::StateDict state = WeightState(chunks_);
  if (config_.checkpoint().no_save_optim()) return state;
  for (ckpt::ShardedTensor& tensor : OptimizerTensors(chunks_).tensors) {
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

absl::Status RunSaver::Save(ckpt::Manifest run, ckpt::SaveKind kind) {
  const int64_t step = run.trainer().step();
  if (kind == ckpt::SaveKind::kRolling) {
    const MutexLock lock(&mutex_);
    rolling_steps_.insert(step);
  }
  ++started_;
  if (optimizer_names_.has_value()) *run.mutable_optimizer() = *optimizer_names_;
  ckpt::Metadata metadata = ckpt::ToMetadata(std::move(run));
  if (mirror() != nullptr) TESSERA_RETURN_IF_ERROR(StartMirror());
  if (background_ == nullptr) return SaveInForeground(step, std::move(metadata));
  if (mirror() != nullptr) {
    mirrored_ = {.step = step, .metadata = std::move(metadata)};
    return absl::OkStatus();
  }
  background_->Start(step, State(), metadata);
  return absl::OkStatus();
}

absl::Status RunSaver::StartMirror() {
  if (mirrored_.has_value()) StartMirrored();
  if (background_ != nullptr) background_->WaitUntilAllCopied();
  mirror()->StartDownload();
  return absl::OkStatus();
}

void RunSaver::StartMirrored() {
  const MirroredSave save = *std::exchange(mirrored_, std::nullopt);
  if (const absl::Status copied = mirror()->FinishDownload(); !copied.ok()) {
    background_->Refuse(save.step, copied);
    return;
  }
  background_->Start(save.step, State(), save.metadata);
}

absl::Status RunSaver::SaveInForeground(int64_t step, ckpt::Metadata metadata) {
  if (mirror() != nullptr) TESSERA_RETURN_IF_ERROR(mirror()->FinishDownload());
  ckpt::SaveOptions options = Options();
  options.group = &group_.ranks;
  options.deadline = group_.deadline;
  options.plan_cache = &plan_cache_;
  options.metadata = std::move(metadata);
  TESSERA_ASSIGN_OR_RETURN(ckpt::SaveReport report,
                           ckpt::Save(*storage_, "", step, State(), options));
  AfterCommit(report);
  done_.push_back({.step = step, .report = std::move(report)});
  return absl::OkStatus();
}

ckpt::SaveOptions RunSaver::Options() {
  ckpt::SaveOptions options;
  options.before_commit = hooks_.before_commit;
  options.choose_root = [this](const ckpt::PlannedSave& planned) { return ChooseRoot(planned); };
  return options;
}

absl::StatusOr<std::string> RunSaver::ChooseRoot(const ckpt::PlannedSave& planned) {
  bool rolling;
  {
    const MutexLock lock(&mutex_);
    rolling = rolling_steps_.erase(planned.step) > 0;
  }
  std::string root;
  if (rolling) {
    TESSERA_ASSIGN_OR_RETURN(root, ckpt::EmptyRollingSlot(*storage_, ""));
  }
  TESSERA_RETURN_IF_ERROR(MakeRoom(planned, rolling));
  return root;
}

absl::Status RunSaver::MakeRoom(const ckpt::PlannedSave& planned, bool rolling) {
  room_note_.clear();
  // The manifest and the file system's own records are small beside the data.
  const uint64_t needed_bytes = planned.data_bytes + planned.data_bytes / 64 + (64 << 10);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> deleted,
      retention_->MakeRoom({planned.step, rolling, needed_bytes}, absl::Now()));
  if (!deleted.empty()) {
    room_note_ = absl::StrCat("the disk is full: ", absl::StrJoin(deleted, " and "),
                              " made room for step ", planned.step);
  }
  return absl::OkStatus();
}

void RunSaver::AfterCommit(ckpt::SaveReport& report) {
  Prune(report);
  if (!room_note_.empty()) {
    absl::StrAppend(&report.note, report.note.empty() ? "" : "; ", room_note_);
  }
  if (upload_ == nullptr) return;
  if (const absl::Status forgotten = upload_->ForgetAllBut(report.directory); !forgotten.ok()) {
    absl::StrAppend(&report.note, report.note.empty() ? "" : "; ",
                    "older copies are still there: ", forgotten.message());
  }
}

void RunSaver::Prune(ckpt::SaveReport& report) {
  const bool permanent = report.directory.find('/') == report.directory.npos;
  if (group_.ranks.rank() != 0 || !permanent) return;
  if (const absl::Status pruned = retention_->Apply(absl::Now()); !pruned.ok()) {
    absl::StrAppend(&report.note, report.note.empty() ? "" : "; ",
                    "older checkpoints are still there: ", pruned.message());
  }
}

void RunSaver::BeforeOverwrite(const TensorView& memory) {
  if (mirror() != nullptr) return mirror()->BeforeOverwrite(memory);
  if (background_ == nullptr) return;
  background_->WaitUntilCopied(memory.data(), static_cast<uint64_t>(memory.bytes()));
}

std::vector<SaveOutcome> RunSaver::Poll() {
  if (mirrored_.has_value()) {
    // An error of the copy is found once more, and reported, by StartMirrored().
    const absl::StatusOr<bool> copied = mirror()->IsDownloaded();
    if (!copied.ok() || *copied) StartMirrored();
  }
  std::vector<SaveOutcome> outcomes = std::exchange(done_, {});
  if (background_ != nullptr) {
    while (const std::optional<ckpt::SaveOutcome> outcome = background_->Poll()) {
      outcomes.push_back(ToOutcome(*outcome));
    }
  }
  finished_ += static_cast<int64_t>(outcomes.size());
  return outcomes;
}

std::vector<SaveOutcome> RunSaver::Finish() {
  if (background_ == nullptr) return Poll();
  if (mirrored_.has_value()) StartMirrored();
  std::vector<SaveOutcome> outcomes = std::exchange(done_, {});
  for (const ckpt::SaveOutcome& outcome : background_->Finish()) {
    outcomes.push_back(ToOutcome(outcome));
  }
  finished_ += static_cast<int64_t>(outcomes.size());
  return outcomes;
}

}  // namespace tessera
