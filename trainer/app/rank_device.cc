#include "trainer/app/rank_device.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"

namespace tessera {
namespace {

constexpr int64_t kMaxTableBytes = int64_t{16} << 20;
constexpr CallOptions kTableCall = {.what = "the table of products"};

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
absl::StatusOr<NumericsFingerprint> ExactNumericsOf(ComputeDevices& devices, TrainingDevice& gpu) {
  const NumericsFingerprint& contract = ExactNumericsFingerprint(/*bf16=*/false);
  const FixedResults results = devices.ExactResults(gpu);
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

// Returns rank 0's text on all ranks.
absl::StatusOr<std::string> FromRank0(const std::string& text, Communicator* world) {
  if (world == nullptr) return text;
  return world->BroadcastBytes(text, /*root=*/0, kTableCall);
}

// What a file has: the text of a table behind a '+', why it has none behind a '-', or why it cannot
// be read behind a '!'.
std::string ReadTable(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxTableBytes);
  if (!text.ok()) return absl::StrCat("!", text.status().message());
  const absl::Status status = cuda::ParseProductTable(*text).status();
  return status.ok() ? "+" + *text : absl::StrCat("-", status.message());
}

// Returns why no rank uses a table; empty if all have the same ways and proposals for their GPUs,
// without which replicas would differ in bits, and can compute in these ways. `mine` is what the
// table has for this rank's GPU, `possible` why it cannot be used there. Collective.
absl::StatusOr<std::string> ReasonAgainst(const cuda::MeasuredProducts& mine,
                                          const absl::Status& possible, const std::string& device,
                                          Communicator* world) {
  const std::string own = mine.empty()    ? "-" + device
                          : possible.ok() ? "+" + cuda::DigestOf(mine)
                                          : absl::StrCat("!", possible.message());
  std::vector<std::string> all = {own};
  if (world != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(all, world->GatherBytes(own, /*root=*/0, kTableCall));
  }
  std::string reason;
  for (size_t rank = 0; rank < all.size() && reason.empty(); ++rank) {
    if (all[rank].starts_with('-')) {
      reason = absl::StrCat("it has nothing for ", all[rank].substr(1), ", the GPU of rank ", rank);
    } else if (all[rank].starts_with('!')) {
      reason = absl::StrCat("the GPU of rank ", rank, " cannot: ", all[rank].substr(1));
    } else if (all[rank] != all[0]) {
      reason = absl::StrCat("it has other products for the GPU of rank ", rank,
                            " than for the GPU of rank 0");
    }
  }
  return FromRank0(reason, world);
}

// Lets a GPU that is not used yet take the ways and products of a table, whose digest becomes a
// part of the name of its library: it is a cause of bits. Collective.
absl::Status UseProductTable(const std::string& path, Communicator* world, const NoteSink& notes,
                             TrainingDevice* gpu) {
  const bool reads = world == nullptr || world->rank() == 0;
  TESSERA_ASSIGN_OR_RETURN(const std::string read,
                           FromRank0(reads ? ReadTable(path) : std::string(), world));
  const std::string text = read.substr(1);
  if (read.starts_with('!')) {
    return absl::InvalidArgumentError(absl::StrCat("product_table: ", text));
  }
  if (read.starts_with('-')) {
    notes(absl::StrCat("product_table=", path, " is not used: ", text));
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const cuda::ProductTable table, cuda::ParseProductTable(text));
  const std::string device = cuda::DeviceName(gpu->type, gpu->products);
  const auto found = table.find(device);
  const cuda::MeasuredProducts mine =
      found == table.end() ? cuda::MeasuredProducts() : found->second;
  cuda::ProductChoices choices = cuda::WithWays(gpu->choices, mine.ways);
  TESSERA_ASSIGN_OR_RETURN(const std::string reason,
                           ReasonAgainst(mine, CheckChoices(*gpu, choices), device, world));
  if (!reason.empty()) {
    notes(absl::StrCat("product_table=", path, " is not used: ", reason));
    return absl::OkStatus();
  }
  choices.measured = std::make_shared<const cuda::ProductProposals>(mine.proposals);
  gpu->choices = choices;
  absl::StrAppend(&gpu->products, " with product table ", cuda::DigestOf(mine));
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
    TESSERA_ASSIGN_OR_RETURN(numerics_, ExactNumericsOf(devices, *gpu_));
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
