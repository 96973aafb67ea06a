#ifndef TESSERA_TRAINER_APP_GPU_MEMORY_H_
#define TESSERA_TRAINER_APP_GPU_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/device/training_device.h"
#include "trainer/app/host_share.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// The checks of host_memory.h for ranks that compute on a GPU each. ResourceExhausted, with the
// sizes.

// Checks the state of this rank against the memory that its GPU has left, before any of it is
// allocated.
absl::Status CheckModelFitsGpu(const TrainConfig& config, bool trains, TrainingDevice& gpu);

// Checks that a machine with `available` bytes left has room for the pinned memory of all its
// ranks, `staged` being this rank's. Returns each rank's part of the rest. Collective over the
// world of `host`.
absl::StatusOr<int64_t> SpareBesideStaging(int64_t staged, int64_t available,
                                           const HostShare& host);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_GPU_MEMORY_H_
