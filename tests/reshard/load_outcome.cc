#include "tests/reshard/load_outcome.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "tensor/memory.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/saved_run.h"

namespace tessera::testing {
namespace {

constexpr uint64_t kSomethingElse = 0x5eed;

// Adds up what the ranks of one load tell.
class LoadOutcomeCollector {
 public:
  absl::Status Add(int rank, const LoadNotes& notes, const TrainingRank& training) {
    const MutexLock lock(&mutex_);
    if (ranks_++ == 0) outcome_.progress = training.progress();
    if (const std::string differs = FirstProgressDifference(outcome_.progress, training.progress());
        !differs.empty()) {
      return absl::InternalError("ranks disagree about " + differs);
    }
    if (rank == 0) outcome_.notes = notes.sentences;
    outcome_.bytes_needed += notes.report.bytes_needed;
    outcome_.bytes_read += notes.report.bytes_read;
    outcome_.largest_buffer_bytes =
        std::max(outcome_.largest_buffer_bytes, notes.report.buffer_bytes);
    return absl::OkStatus();
  }

  StateCollector& state() { return state_; }
  void SetSizes(int64_t tensor_bytes, uint64_t stored_bytes) {
    const MutexLock lock(&mutex_);
    outcome_.tensor_bytes = tensor_bytes;
    outcome_.stored_bytes = stored_bytes;
  }

  absl::StatusOr<LoadOutcome> Take() {
    TESSERA_RETURN_IF_ERROR(state_.CheckComplete());
    const MutexLock lock(&mutex_);
    outcome_.state = state_.Take();
    return std::move(outcome_);
  }

 private:
  Mutex mutex_;
  int ranks_ ABSL_GUARDED_BY(mutex_) = 0;
  LoadOutcome outcome_ ABSL_GUARDED_BY(mutex_);
  StateCollector state_;
};

uint64_t StoredBytes(const ckpt::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const ckpt::DataFile& file : manifest.files()) bytes += file.size_bytes();
  return bytes;
}

absl::Status Land(const CheckpointConfig& from, Communicator& world, TrainingRank& training,
                  LoadOutcomeCollector& collector) {
  const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&world);
  FillState(training.trainer().chunks(), kSomethingElse);
  TrainConfig config;
  *config.mutable_checkpoint() = from;
  TESSERA_ASSIGN_OR_RETURN(const std::optional<SavedRun> saved,
                           FindSavedRun(config, {.ranks = *group}, [](const std::string&) {}));
  if (!saved.has_value()) return absl::NotFoundError(from.load());
  // Threads share the counter of tensors: rank 0 looks while all others stand still.
  TESSERA_RETURN_IF_ERROR(world.Barrier());
  const int64_t before = TensorMemory().live_bytes;
  if (world.rank() == 0) ResetPeakMemory();
  TESSERA_RETURN_IF_ERROR(world.Barrier());
  TESSERA_ASSIGN_OR_RETURN(const LoadNotes notes, training.Load(*saved));
  TESSERA_RETURN_IF_ERROR(world.Barrier());
  if (world.rank() == 0) {
    collector.SetSizes(TensorMemory().peak_bytes - before, StoredBytes(saved->manifest()));
  }
  TESSERA_RETURN_IF_ERROR(world.Barrier());
  TESSERA_RETURN_IF_ERROR(collector.Add(world.rank(), notes, training));
  return collector.state().Add(training.trainer().chunks());
}

}  // namespace

absl::StatusOr<LogicalState> SaveFilled(TrainConfig config, const std::string& folder,
                                        const Progress& progress, uint64_t seed) {
  config.mutable_checkpoint()->set_save(folder);
  config.mutable_checkpoint()->set_save_interval(1);
  StateCollector collector;
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> training,
                             TrainingRank::Create(config, seed, &rank, /*log=*/nullptr));
    FillState(training->trainer().chunks(), seed);
    training->set_progress(progress);
    TESSERA_RETURN_IF_ERROR(training->Save());
    TESSERA_RETURN_IF_ERROR(training->FinishSaves().status());
    return collector.Add(training->trainer().chunks());
  }));
  TESSERA_RETURN_IF_ERROR(collector.CheckComplete());
  return collector.Take();
}

absl::StatusOr<std::vector<LoadOutcome>> LoadAll(const TrainConfig& config,
                                                 const std::vector<std::string>& folders) {
  std::vector<LoadOutcomeCollector> collectors(folders.size());
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> training,
                             TrainingRank::Create(config, /*seed=*/0, &rank, /*log=*/nullptr));
    for (size_t i = 0; i < folders.size(); ++i) {
      CheckpointConfig from;
      from.set_load(folders[i]);
      TESSERA_RETURN_IF_ERROR(Land(from, rank, *training, collectors[i]));
    }
    return absl::OkStatus();
  }));
  std::vector<LoadOutcome> outcomes;
  for (LoadOutcomeCollector& collector : collectors) {
    TESSERA_ASSIGN_OR_RETURN(LoadOutcome outcome, collector.Take());
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace tessera::testing
