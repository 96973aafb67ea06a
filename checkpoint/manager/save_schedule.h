#ifndef TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
#define TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_

// The policy of when a run saves and ends: without I/O and without a clock. Only AddOverRanks()
// communicates.

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/manager/stop_file.h"

namespace tessera::ckpt {

// The request of a stop file after a step.
enum class StopFileAsks { kNothing, kSave, kSaveAndEnd };

// Acts once on each request of a stop file. Deterministic. Not thread-safe.
class StopRequests {
 public:
  // `resumed_step` is the step from which the run continues, 0 for a new run. A request for a step
  // up to it, if it is there when the run begins, is ignored: an earlier run has acted upon it.
  explicit StopRequests(int64_t resumed_step = 0) : resumed_step_(resumed_step) {}

  // Returns the request after a step. Call once after each step, in order.
  StopFileAsks AfterStep(int64_t step, const StopRequest& request);

  // Returns the version of the request that was acted upon last; 0: none.
  int64_t handled_version() const { return handled_version_; }

 private:
  int64_t resumed_step_;
  int64_t handled_version_ = 0;
};

// The facts that are known after a step, of one rank, or of all together.
struct KnownFacts {
  int64_t step = 0;
  int stop_signal = 0;  // to any rank
  bool program_ends = false;
  bool healthy = true;
  StopFileAsks stop_file = StopFileAsks::kNothing;
  // Facts of rank 0; other ranks contribute nothing.
  absl::Duration elapsed;       // since the run began
  bool save_in_flight = false;  // a save in the background is not finished
  SaveTrouble trouble = SaveTrouble::kNone;
};

// The facts of one rank after a step, or the sum of several ranks' counts.
struct StepFacts {
  static constexpr int kCounts = 9;
  std::array<int64_t, kCounts> counts = {};

  StepFacts& operator+=(const StepFacts& other) {
    for (int i = 0; i < kCounts; ++i) counts[i] += other.counts[i];
    return *this;
  }
};

// Encodes the facts of one rank, with times in whole microseconds, for an exchange in which ranks
// add them up.
StepFacts Encode(const KnownFacts& of_rank, bool is_rank_0);

// Returns the sum of all ranks' facts, on every rank. Collective.
absl::StatusOr<StepFacts> AddOverRanks(ProcessGroup& group, const StepFacts& mine,
                                       absl::Duration timeout);

// Decodes the sum over all ranks. A signal, a request or an end of the program on any rank is one
// of all. The run is healthy if all ranks are.
KnownFacts Decode(int64_t step, const StepFacts& sum);

// The schedule of saves, which remembers what is due. Deterministic. Not thread-safe.
class SaveSchedule {
 public:
  explicit SaveSchedule(const SaveScheduleOptions& options) : options_(options) {}

  // Call once after each step, in order. Ranks that pass equal facts decide equally.
  JobDecision AfterStep(const KnownFacts& facts);

 private:
  EndReason End(const KnownFacts& facts) const;
  void NoteDue(const KnownFacts& facts);

  SaveScheduleOptions options_;
  absl::Duration last_permanent_;   // elapsed time at the last one
  SaveKind due_ = SaveKind::kNone;  // not saved yet
};

// The policy of when a run that cannot save ends: pure, without I/O and without a clock. Call Add()
// with the outcome of each save, in order, then Judge(). Times are since the run began.
// Deterministic. Not thread-safe.
class FailedSaves {
 public:
  explicit FailedSaves(const FailedSavesOptions& options) : options_(options) {}

  // Adds the outcome of a save. Cancelled means that the save was skipped, which is neither a
  // failure nor a checkpoint. All other errors are failures, also Aborted, which the coordinator
  // returns if files of the save are gone.
  void Add(const absl::Status& outcome, absl::Duration elapsed);

  SaveTrouble Judge(absl::Duration elapsed) const;

  const absl::Status& last() const { return last_; }  // the last outcome that was not skipped

 private:
  const FailedSavesOptions options_;
  int64_t in_a_row_ = 0;
  absl::Status last_;
  absl::Duration last_checkpoint_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_SAVE_SCHEDULE_H_
