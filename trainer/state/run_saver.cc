#include "trainer/state/run_saver.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "trainer/state/communicator_group.h"

namespace tessera {
namespace {

// A stalling disk delays saves, not training: a missing rank is detected by the training's own
// messages long before.
constexpr absl::Duration kBackgroundDeadline = absl::Hours(24);

SaveOutcome ToOutcome(const ckpt::SaveOutcome& outcome) {
  if (!outcome.report.ok()) return {.step = outcome.step, .report = outcome.report.status()};
  return {.step = outcome.step, .report = outcome.report->save};
}

}  // namespace

RunSaver::RunSaver(const TrainConfig& config, std::vector<StateChunk> chunks,
                   const RankGroup& group, RunSaverHooks hooks)
    : config_(config), chunks_(std::move(chunks)), group_(group), hooks_(std::move(hooks)) {}

RunSaver::~RunSaver() = default;

absl::StatusOr<std::unique_ptr<RunSaver>> RunSaver::Create(const TrainConfig& config,
                                                           std::vector<StateChunk> chunks,
                                                           const RankGroup& group,
                                                           Communicator* world,
                                                           RunSaverHooks hooks) {
  std::unique_ptr<RunSaver> saver(new RunSaver(config, std::move(chunks), group, std::move(hooks)));
  TESSERA_ASSIGN_OR_RETURN(saver->storage_,
                           ckpt::OpenStorage(config.checkpoint().save(), {.create_root = true}));
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

absl::Status RunSaver::OpenBackground(Communicator* world) {
  if (world != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(background_communicator_,
                             world->Split(/*color=*/0, world->rank(), "saves"));
  }
  background_group_ = MakeProcessGroup(background_communicator_.get());
  ckpt::AsyncSaveOptions options;
  options.save.group = background_group_.get();
  options.save.deadline = kBackgroundDeadline;
  options.save.before_commit = hooks_.before_commit;
  options.available_memory_bytes = hooks_.available_memory_bytes;
  if (config_.checkpoint().async_save_memory() > 0) {
    options.save.staging_bytes = static_cast<uint64_t>(config_.checkpoint().async_save_memory());
  }
  if (config_.checkpoint().async_save_skip()) {
    options.when_busy = ckpt::AsyncSaveOptions::WhenBusy::kSkip;
  }
  options.on_committed = [this](ckpt::AsyncSaveReport& report) { Prune(report.save); };
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

absl::Status RunSaver::Save(ckpt::Manifest run) {
  const int64_t step = run.trainer().step();
  if (optimizer_names_.has_value()) *run.mutable_optimizer() = *optimizer_names_;
  ckpt::Metadata metadata = ckpt::ToMetadata(std::move(run));
  if (background_ == nullptr) return SaveInForeground(step, std::move(metadata));
  background_->Start(step, State(), metadata);
  return absl::OkStatus();
}

absl::Status RunSaver::SaveInForeground(int64_t step, ckpt::Metadata metadata) {
  TESSERA_ASSIGN_OR_RETURN(ckpt::SaveReport report,
                           ckpt::Save(*storage_, "", step, State(),
                                      {.group = &group_.ranks,
                                       .deadline = group_.deadline,
                                       .plan_cache = &plan_cache_,
                                       .metadata = std::move(metadata),
                                       .before_commit = hooks_.before_commit}));
  Prune(report);
  done_.push_back({.step = step, .report = std::move(report)});
  return absl::OkStatus();
}

void RunSaver::Prune(ckpt::SaveReport& report) const {
  const int keep = static_cast<int>(config_.checkpoint().max_checkpoint_keep());
  if (keep == 0 || group_.ranks.rank() != 0) return;
  if (const absl::Status pruned = ckpt::Prune(*storage_, "", keep); !pruned.ok()) {
    absl::StrAppend(&report.note, report.note.empty() ? "" : "; ",
                    "older checkpoints are still there: ", pruned.message());
  }
}

void RunSaver::BeforeOverwrite(const TensorView& memory) {
  if (background_ == nullptr) return;
  background_->WaitUntilCopied(memory.data(), static_cast<uint64_t>(memory.bytes()));
}

std::vector<SaveOutcome> RunSaver::Poll() {
  if (background_ == nullptr) return std::exchange(done_, {});
  std::vector<SaveOutcome> outcomes;
  while (const std::optional<ckpt::SaveOutcome> outcome = background_->Poll()) {
    outcomes.push_back(ToOutcome(*outcome));
  }
  return outcomes;
}

std::vector<SaveOutcome> RunSaver::Finish() {
  if (background_ == nullptr) return Poll();
  std::vector<SaveOutcome> outcomes;
  for (const ckpt::SaveOutcome& outcome : background_->Finish()) {
    outcomes.push_back(ToOutcome(outcome));
  }
  return outcomes;
}

}  // namespace tessera
