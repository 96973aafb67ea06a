#include "trainer/app/rank_device.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "compute/kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

int ThreadCount(const TrainConfig& config, const HostShare& host) {
  if (config.training().threads() > 0) return static_cast<int>(config.training().threads());
  return host.threads();
}

// Returns the GPU of this rank among those that it sees.
absl::StatusOr<int> ChooseGpu(const HostShare& host, ComputeDevices& devices) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gpus, devices.Find());
  TESSERA_ASSIGN_OR_RETURN(const HostShare::Place place, host.Among(absl::StrJoin(gpus, "\n")));
  if (place.count <= static_cast<int>(gpus.size())) return place.index;
  return absl::FailedPreconditionError(
      absl::StrCat("device=cuda: ", place.count, " processes of this machine share ", gpus.size(),
                   gpus.size() == 1 ? " GPU" : " GPUs", ", but each needs one of its own"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> RankDevice::Open(const TrainConfig& config,
                                                             const HostShare& host,
                                                             Communicator* world,
                                                             ComputeDevices& devices) {
  std::unique_ptr<RankDevice> device(new RankDevice);
  if (config.training().device() == ComputeDevice::CUDA) {
    TESSERA_RETURN_IF_ERROR(device->OpenGpu(config, host, world, devices));
  } else {
    const bool exact = config.parallel().numerics() == Numerics::EXACT;
    device->cpu_ = MakeCpuBackend(ThreadCount(config, host), exact);
    device->numerics_ = CpuNumericsFingerprint(exact);
  }
  return device;
}

absl::Status RankDevice::OpenGpu(const TrainConfig& config, const HostShare& host,
                                 Communicator* world, ComputeDevices& devices) {
  TESSERA_ASSIGN_OR_RETURN(const int index, ChooseGpu(host, devices));
  TESSERA_ASSIGN_OR_RETURN(gpu_, devices.Open(index, config.training().exact_products()));
  numerics_ = devices.Numerics(*gpu_);
  if (config.training().exact_products()) {
    numerics_.library = CpuNumericsFingerprint(/*exact=*/true).library;
  }
  if (world == nullptr || world->size() == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(nccl_, devices.OpenNccl(*gpu_));
  TESSERA_ASSIGN_OR_RETURN(nccl_world_,
                           NcclWorld::Create(*world, *nccl_, *gpu_->compute, *gpu_->reducer));
  return absl::OkStatus();
}

}  // namespace tessera
