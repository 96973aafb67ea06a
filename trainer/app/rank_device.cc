#include "trainer/app/rank_device.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {
namespace {

int ThreadCount(const TrainConfig& config, const HostShare& host) {
  if (config.training().threads() > 0) return static_cast<int>(config.training().threads());
  return host.threads();
}

DeviceNumerics DeviceNumericsOf(const TrainConfig& config) {
  if (config.parallel().numerics() == Numerics::EXACT) return DeviceNumerics::kExact;
  return config.training().exact_products() ? DeviceNumerics::kExactProducts
                                            : DeviceNumerics::kFast;
}

// Computes the examples of the contract on a GPU. FailedPrecondition if it has other bits than
// processors.
absl::StatusOr<NumericsFingerprint> ExactNumericsOf(TrainingDevice& gpu) {
  const NumericsFingerprint& contract = ExactNumericsFingerprint(/*bf16=*/false);
  const FixedResults results = ComputeFixedResults(*gpu.backend, /*bf16=*/false);
  NumericsFingerprint found = contract;
  found.products_hash = results.products_hash;
  found.loops_hash = results.loops_hash;
  const std::vector<std::string> differences = NumericsDifferences(contract, found, "there");
  if (differences.empty()) return found;
  return absl::FailedPreconditionError(
      absl::StrCat("device=cuda: the GPU (", gpu.type, ") is faulty, or has another build: EXACT ",
                   "numerics have ", absl::StrJoin(differences, ", "), " there"));
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
    device->numerics_ =
        exact ? ExactNumericsFingerprint(config.training().bf16()) : CpuNumericsFingerprint();
  }
  return device;
}

absl::Status RankDevice::OpenGpu(const TrainConfig& config, const HostShare& host,
                                 Communicator* world, ComputeDevices& devices) {
  TESSERA_ASSIGN_OR_RETURN(const int index, ChooseGpu(host, devices));
  const DeviceNumerics numerics = DeviceNumericsOf(config);
  TESSERA_ASSIGN_OR_RETURN(gpu_, devices.Open(index, numerics));
  if (numerics == DeviceNumerics::kExact) {
    TESSERA_ASSIGN_OR_RETURN(numerics_, ExactNumericsOf(*gpu_));
  } else {
    numerics_ = devices.Numerics(*gpu_);
  }
  if (numerics == DeviceNumerics::kExactProducts) {
    numerics_.library = ExactNumericsFingerprint(/*bf16=*/false).library;
  }
  if (world == nullptr || world->size() == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(nccl_, devices.OpenNccl(*gpu_));
  TESSERA_ASSIGN_OR_RETURN(nccl_world_,
                           NcclWorld::Create(*world, *nccl_, *gpu_->compute, *gpu_->reducer));
  return absl::OkStatus();
}

}  // namespace tessera
