#include "trainer/app/rank_device.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"
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

// Returns the contents of rank 0's file. Collective: InvalidArgument on all ranks if it cannot be
// read there.
absl::StatusOr<std::string> ReadOnRank0(const std::string& path, Communicator* world) {
  // The file behind a '+', or a reason behind a '-'.
  std::string result;
  if (world == nullptr || world->rank() == 0) {
    const absl::StatusOr<std::string> text = ReadWholeFile(path);
    result = text.ok() ? "+" + *text : absl::StrCat("-", text.status().message());
  }
  if (world != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        result, world->BroadcastBytes(result, /*root=*/0, {.what = "the table of products"}));
  }
  if (result.starts_with('+')) return result.substr(1);
  return absl::InvalidArgumentError(absl::StrCat("product_table=", path, ": ", result.substr(1)));
}

// Lets a GPU that is not used yet take the products of a table, whose digest becomes a part of the
// name of its library: it is a cause of bits. Collective.
absl::Status UseProductTable(const std::string& path, Communicator* world, const NoteSink& notes,
                             TrainingDevice* gpu) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadOnRank0(path, world));
  const absl::StatusOr<cuda::ProductTable> table = cuda::ParseProductTable(text);
  if (!table.ok()) {
    notes(absl::StrCat("product_table=", path, " is not used: ", table.status().message()));
    return absl::OkStatus();
  }
  const std::string device = cuda::DeviceName(gpu->type, gpu->products);
  const auto found = table->find(device);
  if (found == table->end() || found->second.empty()) {
    notes(absl::StrCat("product_table=", path, " is not used: it has no products of ", device));
    return absl::OkStatus();
  }
  gpu->choices.measured = std::make_shared<const cuda::ProductProposals>(found->second);
  absl::StrAppend(&gpu->products, " with product table ", cuda::DigestOf(found->second));
  gpu->backend = nullptr;
  TESSERA_ASSIGN_OR_RETURN(gpu->backend, gpu->make_backend(gpu->choices));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> RankDevice::Open(const TrainConfig& config,
                                                             const HostShare& host,
                                                             Communicator* world,
                                                             ComputeDevices& devices,
                                                             const NoteSink& notes) {
  std::unique_ptr<RankDevice> device(new RankDevice);
  if (config.training().device() == ComputeDevice::CUDA) {
    TESSERA_RETURN_IF_ERROR(device->OpenGpu(config, host, world, devices, notes));
  } else {
    const bool exact = config.parallel().numerics() == Numerics::EXACT;
    device->cpu_ = MakeCpuBackend(ThreadCount(config, host), exact);
    device->numerics_ =
        exact ? ExactNumericsFingerprint(config.training().bf16()) : CpuNumericsFingerprint();
  }
  return device;
}

absl::Status RankDevice::OpenGpu(const TrainConfig& config, const HostShare& host,
                                 Communicator* world, ComputeDevices& devices,
                                 const NoteSink& notes) {
  TESSERA_ASSIGN_OR_RETURN(const int index, ChooseGpu(host, devices));
  const DeviceNumerics numerics = DeviceNumericsOf(config);
  TESSERA_ASSIGN_OR_RETURN(gpu_, devices.Open(index, numerics));
  if (const std::string& table = config.training().product_table(); !table.empty()) {
    TESSERA_RETURN_IF_ERROR(UseProductTable(table, world, notes, gpu_.get()));
  }
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
