#ifndef TESSERA_TESTS_WORLDS_JOBS_WORLD_H_
#define TESSERA_TESTS_WORLDS_JOBS_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/storage.h"
#include "tests/worlds/jobs/job.h"
#include "tests/worlds/jobs/model.h"
#include "tests/worlds/jobs/run_case.h"
#include "tests/worlds/jobs/site.h"

namespace tessera::simulation {

// Plays a case: starts its jobs, makes the events of the case happen to them and to the storage,
// and compares with the model. Findings are in the Journal. A process has one World, which uses the
// process's Scheduler, Disk, Faults and Journal.
class World {
 public:
  // `stop` ends the process if all threads wait for ever.
  World(const Case& what, const std::string& root, std::function<void()> stop);
  void Run();

 private:
  void Begin(const Phase& phase);
  // Makes events happen beside a job.
  void Disturb(const Phase& phase, Job& job);
  void JumpClocks(const Phase& phase, const Job& job);
  absl::Status Tend();
  void VerifyAll(Storage& storage);
  void AwaitJobs();
  void CheckNoneFailedWithoutReason() const;
  void End();
  void Die(int process, bool all);
  void Kill(int process);
  void LosePower();

  const Script script_;
  const uint64_t seed_;
  const std::function<void()> stop_;
  Model model_;
  std::unique_ptr<Site> site_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<int> tenders_;  // processes
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_WORLDS_JOBS_WORLD_H_
