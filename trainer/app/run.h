#ifndef TESSERA_TRAINER_APP_RUN_H_
#define TESSERA_TRAINER_APP_RUN_H_

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "compute/device/compute_devices.h"
#include "trainer/app/launch.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Runs one rank from its config to the end: builds, trains or only evaluates, exports, samples.
// Rank 0 prints for the user and writes the run folder's config and metrics; the others write a log
// there. `world` is null for one process. With device=cuda each rank computes on one of `devices`.
// Sets `stopped_by` to the signal that ended training early, the same on every rank, or 0.
absl::Status RunRank(const TrainConfig& resolved_config, const Launch& launch, Communicator* world,
                     ComputeDevices& devices, int* stopped_by);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_RUN_H_
