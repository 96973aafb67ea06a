#include "tensor/cuda_runtime.h"

#include <cuda_runtime.h>
#include <glog/logging.h>

#include <cstddef>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status ToStatus(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  const char* const text = cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

void LogError(const char* what, cudaError_t error) {
  if (error != cudaSuccess) LOG(ERROR) << what << ": " << cudaGetErrorString(error);
}

cudaStream_t AsStream(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t AsEvent(void* handle) { return static_cast<cudaEvent_t>(handle); }

// More streams than CUDA has connections to a device wait for each other. The driver reads the
// number when it starts; one that the user has set stays.
void ChooseConnections() {
  static const int chosen = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/0);
  if (chosen != 0) LOG(WARNING) << "CUDA_DEVICE_MAX_CONNECTIONS cannot be set";
}

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int device) : device_(device) {}

  absl::Status Select() override { return UseCudaDevice(device_); }
  absl::StatusOr<StreamHandle> CreateStream() override {
    cudaStream_t stream = nullptr;
    // Does not wait for the default stream, which nothing uses.
    TESSERA_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return stream;
  }
  void DestroyStream(StreamHandle stream) override {
    LogError("a stream cannot be destroyed", cudaStreamDestroy(AsStream(stream)));
  }
  absl::Status SynchronizeStream(StreamHandle stream) override {
    return ToStatus(cudaStreamSynchronize(AsStream(stream)));
  }

  absl::StatusOr<EventHandle> CreateEvent() override {
    cudaEvent_t event = nullptr;
    TESSERA_RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return event;
  }
  void DestroyEvent(EventHandle event) override {
    LogError("an event cannot be destroyed", cudaEventDestroy(AsEvent(event)));
  }
  absl::Status RecordEvent(EventHandle event, StreamHandle stream) override {
    return ToStatus(cudaEventRecord(AsEvent(event), AsStream(stream)));
  }
  absl::Status WaitEvent(StreamHandle stream, EventHandle event) override {
    return ToStatus(cudaStreamWaitEvent(AsStream(stream), AsEvent(event), 0));
  }
  absl::Status SynchronizeEvent(EventHandle event) override {
    return ToStatus(cudaEventSynchronize(AsEvent(event)));
  }
  absl::StatusOr<bool> IsEventDone(EventHandle event) override {
    const cudaError_t error = cudaEventQuery(AsEvent(event));
    if (error == cudaErrorNotReady) return false;
    TESSERA_RETURN_IF_ERROR(ToStatus(error));
    return true;
  }

  absl::StatusOr<void*> Allocate(StreamHandle stream, int64_t bytes) override {
    void* memory = nullptr;
    TESSERA_RETURN_IF_ERROR(
        ToStatus(cudaMallocAsync(&memory, AtLeastOne(bytes), AsStream(stream))));
    return memory;
  }
  absl::Status Free(StreamHandle stream, void* memory) override {
    return ToStatus(cudaFreeAsync(memory, AsStream(stream)));
  }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    void* memory = nullptr;
    TESSERA_RETURN_IF_ERROR(ToStatus(cudaMallocHost(&memory, AtLeastOne(bytes))));
    return memory;
  }
  void FreePinned(void* memory) override {
    LogError("pinned memory cannot be given back", cudaFreeHost(memory));
  }

  absl::Status Copy(StreamHandle stream, const void* from, int64_t bytes, void* to) override {
    return ToStatus(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, AsStream(stream)));
  }
  absl::Status Zero(StreamHandle stream, void* memory, int64_t bytes) override {
    return ToStatus(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), AsStream(stream)));
  }

  // Errors of single calls are forgotten; only those of failed kernels stay.
  bool HasFailed() override {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess;
  }

  void TrimMemory() override {
    cudaMemPool_t pool = nullptr;
    LogError("no pool of memory", cudaDeviceGetDefaultMemPool(&pool, device_));
    if (pool != nullptr) LogError("memory cannot be trimmed", cudaMemPoolTrimTo(pool, 0));
  }

  absl::StatusOr<MemoryInfo> Memory() override {
    size_t free_bytes = 0, total_bytes = 0;
    TESSERA_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free_bytes, &total_bytes)));
    // What was given back stays in the pool, for the next allocations.
    cudaMemPool_t pool = nullptr;
    uint64_t reserved = 0, used = 0;
    TESSERA_RETURN_IF_ERROR(ToStatus(cudaDeviceGetDefaultMemPool(&pool, device_)));
    TESSERA_RETURN_IF_ERROR(
        ToStatus(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved)));
    TESSERA_RETURN_IF_ERROR(
        ToStatus(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used)));
    return MemoryInfo{static_cast<int64_t>(free_bytes + reserved - used),
                      static_cast<int64_t>(total_bytes)};
  }

 private:
  // An empty buffer has an address, too.
  static size_t AtLeastOne(int64_t bytes) { return bytes == 0 ? 1 : static_cast<size_t>(bytes); }

  const int device_;
};

}  // namespace

int CountCudaDevices() {
  ChooseConnections();
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

absl::StatusOr<int> FindCudaDevices() {
  ChooseConnections();
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return devices;
  if (error == cudaErrorInsufficientDriver) {
    return absl::NotFoundError(
        "no GPU is usable here: NVIDIA's driver is missing, or too old for this program's CUDA");
  }
  return absl::NotFoundError(
      absl::StrCat("no GPU is usable here: ",
                   error == cudaSuccess ? "the driver sees none" : cudaGetErrorString(error)));
}

absl::StatusOr<CudaDeviceInfo> DescribeCudaDevice(int device) {
  cudaDeviceProp properties;
  TESSERA_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device)));
  return CudaDeviceInfo{
      .name = properties.name,
      .major = properties.major,
      .minor = properties.minor,
      .multiprocessors = properties.multiProcessorCount,
      .shared_bytes_of_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
      .uuid = std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes))};
}

std::string TypeOf(const CudaDeviceInfo& info) {
  return absl::StrCat(info.name, ", sm_", info.major, info.minor, ", ", info.multiprocessors,
                      " multiprocessors");
}

absl::Status UseCudaDevice(int device) { return ToStatus(cudaSetDevice(device)); }

absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeCudaRuntime(int device) {
  ChooseConnections();
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || device < 0 || device >= devices) {
    return absl::NotFoundError(absl::StrCat(
        "no GPU ", device, ": there are ", devices,
        error == cudaSuccess ? "" : absl::StrCat(" (", cudaGetErrorString(error), ")")));
  }
  TESSERA_RETURN_IF_ERROR(ToStatus(cudaSetDevice(device)));
  cudaMemPool_t pool = nullptr;
  TESSERA_RETURN_IF_ERROR(ToStatus(cudaDeviceGetDefaultMemPool(&pool, device)));
  uint64_t keep = std::numeric_limits<uint64_t>::max();
  TESSERA_RETURN_IF_ERROR(
      ToStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep)));
  return std::make_unique<CudaRuntime>(device);
}

}  // namespace tessera
