#include "tests/interop/foreign_run.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert/formats/open_foreign.h"
#include "checkpoint/manifest.h"
#include "tests/exact/training.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/threads/thread_world.h"
#include "trainer/config/config.h"
#include "trainer/convert/model_rules.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/load_tensors.h"

namespace tessera::testing {

absl::StatusOr<SavedRun> OpenForeignRun(const std::string& folder) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::convert::ForeignStorage> storage,
                           ckpt::convert::OpenForeign(folder, {.rules = &RegisteredModelRules()}));
  TESSERA_ASSIGN_OR_RETURN(ckpt::Manifest manifest, ckpt::ReadManifest(*storage, ""));
  return SavedRun{.storage = std::move(storage), .manifest = std::move(manifest)};
}

absl::StatusOr<ContinuedRun> ContinueRun(const SavedRun& saved, const TrainConfig& config) {
  ContinuedRun continued;
  StateCollector collector;
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> rank,
                             TrainingRank::Create(config, 1, comm, nullptr));
    const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&comm);
    TESSERA_RETURN_IF_ERROR(
        LoadTensors(saved, rank->state(), LoadPolicy(), {.ranks = *group}).status());
    TESSERA_RETURN_IF_ERROR(collector.Add(rank->trainer().chunks()));
    Progress progress = rank->progress();
    progress.step = progress.updates = saved.manifest.trainer().step();
    rank->set_progress(progress);
    rank->trainer().set_updates(progress.updates);
    for (int step = 0; step < 2; ++step) {
      TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank->Step());
      if (comm.rank() == 0) continued.losses.push_back(result.loss);
    }
    return absl::OkStatus();
  }));
  TESSERA_RETURN_IF_ERROR(collector.CheckComplete());
  continued.state = collector.Take();
  return continued;
}

}  // namespace tessera::testing
