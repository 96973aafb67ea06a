#include "tests/device/simulated_gpus.h"

#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "comm/nccl/nccl_world.h"
#include "comm/nccl/testing/fake_nccl.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cuda/testing/simt_host.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {

absl::Status RunOnSimulatedGpus(
    int ranks, const SimulationSettings& settings,
    const std::function<absl::Status(Communicator& host, Communicator& devices,
                                     SimulatedDevice& gpu)>& main) {
  const std::shared_ptr<FakeFabric> fabric = std::make_shared<FakeFabric>();
  FakeNcclNet net(fabric);
  const auto seed_of = [&](int rank) {
    return settings.seed == 0 ? 0 : settings.seed * 100 + static_cast<uint64_t>(rank);
  };
  std::vector<std::unique_ptr<SimulatedDevice>> gpus;
  for (int rank = 0; rank < ranks; ++rank) {
    gpus.push_back(OpenSimulatedDevice(
        rank, {.seed = seed_of(rank), .fabric = fabric, .drops_wait = settings.drops_wait},
        settings.numerics));
  }
  ThreadWorld world(ranks);
  return world.Run([&](Communicator& host) -> absl::Status {
    simt::SetSimulatorOptions({.seed = settings.seed + 1});
    SimulatedDevice& gpu = *gpus[static_cast<size_t>(host.rank())];
    TESSERA_RETURN_IF_ERROR(gpu.runtime->Select());
    FakeNccl nccl(net, *gpu.runtime, {.seed = seed_of(host.rank())});
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> devices,
                             NcclWorld::Create(host, nccl, *gpu.compute, *gpu.reducer));
    const absl::Status status = main(host, devices->world(), gpu);
    // Before the communicators are destroyed, which wait for the other ranks.
    if (!status.ok()) host.Abort(status);
    return status;
  });
}

}  // namespace tessera
