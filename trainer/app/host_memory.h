#ifndef TESSERA_TRAINER_APP_HOST_MEMORY_H_
#define TESSERA_TRAINER_APP_HOST_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/app/host_share.h"
#include "trainer/config/config.pb.h"
#include "trainer/step/trainer.h"

namespace tessera {

// Whether a machine with `available` bytes left has room for its ranks. Memory that is allocated is
// not taken before it is touched: without these checks a run would end somewhere in its first step.
// Collective over the world of `host`. ResourceExhausted, with the sizes.

// For the weights and what belongs to them, before anything of that size is made.
absl::Status CheckModelFits(const TrainConfig& config, bool trains, int64_t available,
                            const HostShare& host);

// For all that has been allocated, of which this rank has `mine`, and, so far, hardly touched.
// Returns each rank's part of what is left.
absl::StatusOr<int64_t> SpareMemory(const Trainer::Memory& mine, int64_t available,
                                    const HostShare& host);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_HOST_MEMORY_H_
