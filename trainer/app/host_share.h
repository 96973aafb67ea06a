#ifndef TESSERA_TRAINER_APP_HOST_SHARE_H_
#define TESSERA_TRAINER_APP_HOST_SHARE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/processors.h"
#include "comm/communicator.h"
#include "compute/device/training_device.h"
#include "trainer/config/config.pb.h"
#include "trainer/step/trainer.h"

namespace tessera {

// The share of its machine that a rank may use, next to other ranks of the same run.
class HostShare {
 public:
  // Finds the ranks of this host. Collective over `world`, which must outlive the share; null: this
  // process is alone. `quota` is this process's own.
  static absl::StatusOr<HostShare> Find(Communicator* world,
                                        const ProcessorQuota& quota = FindProcessorQuota());

  int ranks() const { return static_cast<int>(on_this_host_.size()); }
  // Returns this rank's number of threads: the processors on which it may run, divided by the ranks
  // that share them, but no more than its part of the quota; at least 1.
  int threads() const { return threads_; }

  // Returns the sum of `mine` over the ranks of this host. Collective over the world.
  absl::StatusOr<int64_t> Sum(int64_t mine) const;

  // This rank's place among the ranks of this host with an equal `description`. Collective over the
  // world.
  struct Place {
    int index = 0;  // of these, in the order of ranks
    int count = 1;
  };
  absl::StatusOr<Place> Among(const std::string& description) const;

 private:
  HostShare(Communicator* world, std::vector<int> on_this_host, int threads)
      : world_(world), on_this_host_(std::move(on_this_host)), threads_(threads) {}

  Communicator* world_;
  std::vector<int> on_this_host_;  // world ranks
  int threads_;
};

// The kinds of a rank's memory by the names that users see.
inline constexpr std::pair<const char*, int64_t Trainer::Memory::*> kMemoryKinds[] = {
    {"weights", &Trainer::Memory::weights},       {"gradients", &Trainer::Memory::gradients},
    {"optimizer", &Trainer::Memory::optimizer},   {"activations", &Trainer::Memory::activations},
    {"evaluation", &Trainer::Memory::evaluation}, {"workspace", &Trainer::Memory::workspace},
    {"driver", &Trainer::Memory::driver}};

// Returns the sizes of one rank's part of a model's state, without activations, known before any of
// it is allocated.
Trainer::Memory EstimateState(const TrainConfig& config, bool trains);

// Returns the memory of a rank's GPU that is taken at the peak of its use:
// - that of the trainer, which has been allocated;
// - the activations of an evaluation, if the run has any;
// - workspaces of the library of products and of operations;
// - what the driver has taken for itself, for the rounding of allocations, NCCL and other
//   processes.
// Buffers of exchanges between ranks that last less than a step are left out.
absl::StatusOr<Trainer::Memory> GpuMemory(const TrainConfig& config, const Trainer& trainer,
                                          TrainingDevice& gpu);

int64_t SumOf(const Trainer::Memory& memory);
// Returns "weights 1.00 GiB, gradients ...", the memory of each kind that is not zero.
std::string Describe(const Trainer::Memory& memory);

// The two checks below compare the memory of a machine's ranks with the `available` bytes.
// Allocated memory is not taken before it is touched, so without them a run would end somewhere in
// its first step. Collective over the world of `host`. ResourceExhausted, with the sizes.

// Checks weights and the memory that depends on them, before anything of that size is allocated.
absl::Status CheckModelFits(const TrainConfig& config, bool trains, int64_t available,
                            const HostShare& host);

// Checks all memory that has been allocated but hardly touched; `mine` is this rank's. Returns each
// rank's part of the rest.
absl::StatusOr<int64_t> SpareMemory(const Trainer::Memory& mine, int64_t available,
                                    const HostShare& host);

// The two checks below are for ranks that compute on a GPU each. ResourceExhausted, with the sizes.

// Checks the state of this rank against the memory that its GPU has left, and attention's kernels
// against the shared memory of its multiprocessors, before any of it is allocated.
absl::Status CheckModelFitsGpu(const TrainConfig& config, bool trains, TrainingDevice& gpu);

// Checks that a machine with `available` bytes left has room for the pinned memory of all its
// ranks; `staged` is this rank's. Returns each rank's part of the rest. Collective over the world
// of `host`.
absl::StatusOr<int64_t> SpareBesideStaging(int64_t staged, int64_t available,
                                           const HostShare& host);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_HOST_SHARE_H_
