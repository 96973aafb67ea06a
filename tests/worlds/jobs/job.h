#ifndef TESSERA_TESTS_WORLDS_JOBS_JOB_H_
#define TESSERA_TESTS_WORLDS_JOBS_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "tests/worlds/jobs/model.h"
#include "tests/worlds/jobs/run_case.h"
#include "tests/worlds/jobs/site.h"

namespace tessera::simulation {

// A job that a CheckpointManager resumes and saves, with one process for each rank. It outlives its
// processes, of which some may have been killed.
class Job {
 public:
  Job(int number, const Phase& phase, const Script& script, Site& site, Model& model)
      : number_(number), phase_(phase), script_(script), site_(site), model_(model) {}

  // Starts the processes.
  void Start();
  bool IsOver() const;
  const std::vector<int>& processes() const { return processes_; }
  // Returns rank 0's result; nullopt if it did not end by itself.
  const std::optional<absl::Status>& result() const { return result_; }
  // Records that the stop file has been written.
  void NoteStopFile() { stop_file_is_there_ = true; }
  // Sets the older checkpoint from which Phase::goes_back continues.
  void set_asked_step(int64_t step) { asked_step_ = step; }

 private:
  struct Rank;
  absl::Status Run(int rank);
  absl::Status OpenManager(Rank& rank);
  absl::Status Resume(Rank& rank);
  absl::Status LoadFrom(Rank& rank, const ckpt::Checkpoint& checkpoint);
  absl::Status Train(Rank& rank);
  // Returns a rank's state after a step, which may differ from the other ranks'.
  ckpt::StepState After(const Rank& rank, int64_t step) const;
  void Committed(const ckpt::SaveReport& report);
  // One of the ranks, by the job and `salt`.
  int Chosen(uint64_t salt) const;
  int64_t IdOf(int64_t step) const { return number_ * 1000 + step * 2; }

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
