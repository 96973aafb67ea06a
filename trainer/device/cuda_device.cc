#include "trainer/device/cuda_device.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "trainer/device/kernel_reducer.h"
#include "trainer/device/training_device.h"
#include "trainer/kernels/cuda/cublaslt_api.h"
#include "trainer/kernels/cuda/cublaslt_library.h"
#include "trainer/kernels/cuda/cublaslt_products.h"
#include "trainer/kernels/cuda/device_backend.h"
#include "trainer/kernels/cuda/products.h"
#include "trainer/tensor/cuda_runtime.h"
#include "trainer/tensor/device.h"
#include "trainer/tensor/device_runtime.h"
#include "trainer/tensor/device_tensors.h"
#include "trainer/tensor/host_copies.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

int CudaDeviceCount() { return CountCudaDevices(); }

absl::Status SelectCudaDevice(int index) { return UseCudaDevice(index); }

absl::StatusOr<std::unique_ptr<TrainingDevice>> OpenCudaDevice(int index,
                                                               const CudaDeviceOptions& options) {
  auto opened = std::make_unique<TrainingDevice>();
  opened->device = {DeviceType::kCuda, index};
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime, MakeCudaRuntime(index));
  opened->context = std::make_unique<DeviceContext>(std::move(runtime));
  TESSERA_ASSIGN_OR_RETURN(Stream compute, Stream::Create(*opened->context));
  opened->compute = std::make_unique<Stream>(std::move(compute));
  opened->tensors = std::make_unique<DeviceTensors>(opened->device, *opened->compute);
  TESSERA_ASSIGN_OR_RETURN(opened->copies, HostCopies::Create(*opened->compute));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<CublasLtApi> cublaslt, OpenCublasLt(CublasLtPlaces()));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Products> products,
                           cuda::MakeCublasLtProducts(std::move(cublaslt), *opened->compute,
                                                      {.allow_tf32 = options.allow_tf32}));
  opened->backend = cuda::MakeDeviceBackend(opened->device, *opened->compute, std::move(products));
  opened->reducer = MakeKernelReducer();
  return opened;
}

}  // namespace tessera
