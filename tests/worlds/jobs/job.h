#ifndef TESSERA_TESTS_WORLDS_JOBS_JOB_H_
#define TESSERA_TESTS_WORLDS_JOBS_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/thread_process_group.h"
#include "checkpoint/save/save_hooks.h"
#include "storage/storage.h"
#include "tests/worlds/jobs/model.h"
#include "tests/worlds/jobs/run_case.h"
#include "tests/worlds/jobs/site.h"

namespace tessera::simulation {

// A job as a trainer runs it: the same calls of the library in the same order, one process for each
// rank. It outlives its processes, of which some may have been killed.
class Job {
 public:
  Job(int number, const Phase& phase, const Script& script, Site& site, Model& model)
      : number_(number), phase_(phase), script_(script), site_(site), model_(model) {}

  // Starts the processes.
  void Start();
  bool IsOver() const;
  const std::vector<int>& processes() const { return processes_; }
  // Rank 0's; nullopt: it did not end by itself.
  const std::optional<absl::Status>& result() const { return result_; }
  // The stop file has been written.
  void NoteStopFile() { stop_file_is_there_ = true; }
  // The older checkpoint that Phase::goes_back continues from.
  void set_asked_step(int64_t step) { asked_step_ = step; }

 private:
  struct Rank;
  absl::Status Run(int rank);
  absl::Status Lock(Rank& rank);
  absl::Status Resume(Rank& rank);
  absl::Status GoBack(Rank& rank);
  absl::Status LoadFrom(Rank& rank, const std::string& directory, int64_t id);
  void OpenSaver(Rank& rank);
  ckpt::SaveHooks Hooks(Rank& rank);
  absl::Status Train(Rank& rank);
  struct StepAgreement;
  absl::StatusOr<StepAgreement> AgreeOnStep(Rank& rank);
  static void NoteSaves(Rank& rank, const std::vector<ckpt::SaveOutcome>& outcomes);
  absl::Status SaveStep(Rank& rank, int64_t step, bool rolling, bool healthy);
  absl::Status Confirm(Rank& rank);
  absl::StatusOr<std::string> ChooseRoot(Rank& rank, const ckpt::PlannedSave& planned);
  void AfterCommit(Rank& rank, const ckpt::SaveReport& report);
  absl::Status Agree(Rank& rank, const absl::Status& mine);
  int64_t IdOf(int64_t step, bool rolling) const {
    return number_ * 1000 + step * 2 + (rolling ? 1 : 0);
  }

  const int number_;
  const Phase phase_;
  const Script& script_;
  Site& site_;
  Model& model_;
  std::unique_ptr<ckpt::ThreadGroupHub> hub_, save_hub_;
  std::vector<int> processes_;
  std::optional<absl::Status> result_;
  std::optional<int64_t> asked_step_;
  bool stop_file_is_there_ = false;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_WORLDS_JOBS_JOB_H_
