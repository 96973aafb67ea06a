#include "compute/device/cuda_device.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_library.h"
#include "compute/device/kernel_reducer.h"
#include "compute/kernels/cuda/cublaslt_api.h"
#include "compute/kernels/cuda/cublaslt_products.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/products.h"
#include "tensor/cuda_runtime.h"
#include "tensor/device.h"
#include "tensor/device_runtime.h"
#include "tensor/device_tensors.h"
#include "tensor/host_copies.h"
#include "tensor/tensor.h"

namespace tessera {

int CudaDeviceCount() { return CountCudaDevices(); }

namespace {

// The kernels' machine code is for 8.0 and later.
constexpr int kLeastMajor = 8;
constexpr int kHopper = 9;

absl::Status Describe(int index, TrainingDevice* opened) {
  TESSERA_ASSIGN_OR_RETURN(const CudaDeviceInfo info, DescribeCudaDevice(index));
  opened->type = TypeOf(info);
  opened->shared_bytes_of_block = info.shared_bytes_of_block;
  opened->multiplies_by_warpgroups = info.major == kHopper && info.minor == 0;
  opened->choices = {.gelu = info.major >= kHopper, .gelu_gradient = info.major >= kHopper};
  if (info.major >= kLeastMajor) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("GPU ", index, " (", opened->type, ") is too old: sm_80 or later is needed"));
}

class CudaDevices final : public ComputeDevices {
 public:
  absl::StatusOr<std::vector<std::string>> Find() override {
    TESSERA_ASSIGN_OR_RETURN(const int count, FindCudaDevices());
    std::vector<std::string> names;
    for (int index = 0; index < count; ++index) {
      TESSERA_ASSIGN_OR_RETURN(const CudaDeviceInfo info, DescribeCudaDevice(index));
      names.push_back(info.uuid);
    }
    return names;
  }
  absl::StatusOr<std::unique_ptr<TrainingDevice>> Open(int index,
                                                       DeviceNumerics numerics) override {
    return OpenCudaDevice(index, numerics);
  }
  NumericsFingerprint Numerics(TrainingDevice& device) override {
    const FixedResults results = ComputeFixedResults(*device.backend);
    return {.instruction_set = device.type,
            .library = device.products,
            .products_hash = results.products_hash,
            .loops_hash = results.loops_hash};
  }
  absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(TrainingDevice& /*device*/) override {
    return tessera::OpenNccl(NcclPlaces());
  }
};

}  // namespace

std::unique_ptr<ComputeDevices> MakeCudaDevices() { return std::make_unique<CudaDevices>(); }

absl::StatusOr<std::unique_ptr<TrainingDevice>> OpenCudaDevice(int index, DeviceNumerics numerics) {
  auto opened = std::make_unique<TrainingDevice>();
  opened->device = {DeviceType::kCuda, index};
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime, MakeCudaRuntime(index));
  TESSERA_RETURN_IF_ERROR(Describe(index, opened.get()));
  opened->context = std::make_unique<DeviceContext>(std::move(runtime));
  TESSERA_ASSIGN_OR_RETURN(Stream compute, Stream::Create(*opened->context));
  opened->compute = std::make_unique<Stream>(std::move(compute));
  opened->tensors = std::make_unique<DeviceTensors>(opened->device, *opened->compute);
  TESSERA_ASSIGN_OR_RETURN(opened->copies, HostCopies::Create(*opened->compute));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<CublasLtApi> cublaslt, OpenCublasLt(CublasLtPlaces()));
  opened->products = DescribeCublasLt(cublaslt->GetVersion());
  opened->make_backend =
      [&device = *opened, cublaslt,
       numerics](const cuda::ProductChoices& choices) -> absl::StatusOr<std::unique_ptr<Backend>> {
    TESSERA_RETURN_IF_ERROR(CheckChoices(device, choices));
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<cuda::Products> products,
        cuda::MakeCublasLtProducts(cublaslt, *device.compute, {.choices = choices}));
    return cuda::MakeDeviceBackend(device.device, *device.compute, std::move(products), numerics,
                                   choices);
  };
  TESSERA_ASSIGN_OR_RETURN(opened->backend, opened->make_backend(opened->choices));
  opened->make_exact_backend = [&device = *opened] {
    return cuda::MakeDeviceBackend(device.device, *device.compute, /*products=*/nullptr,
                                   DeviceNumerics::kExact);
  };
  opened->reducer = MakeKernelReducer();
  if (numerics == DeviceNumerics::kExact) {
    TESSERA_RETURN_IF_ERROR(cuda::CheckArithmetic(
        absl::StrCat("GPU ", index, " (", opened->type, ")"), *opened->compute, *opened->copies));
  }
  return opened;
}

}  // namespace tessera
