#include "tensor/device_tensors.h"

#include <glog/logging.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "tensor/memory.h"

namespace tessera {
namespace {

struct DeviceContexts {
  Mutex mutex;
  std::map<int, DeviceContext*> by_device ABSL_GUARDED_BY(mutex);
};

DeviceContexts& Contexts() {
  static DeviceContexts& contexts = *new DeviceContexts;
  return contexts;
}

}  // namespace

DeviceRuntime::MemoryInfo DeviceMemory(Device device) {
  DeviceContexts& contexts = Contexts();
  const MutexLock lock(&contexts.mutex);
  return contexts.by_device.at(device.index)
      ->runtime()
      .Memory()
      .value_or(DeviceRuntime::MemoryInfo());
}

DeviceTensors::DeviceTensors(Device device, Stream& stream) : device_(device) {
  CHECK(device.type == DeviceType::kCuda);
  {
    const MutexLock lock(&Contexts().mutex);
    Contexts().by_device[device.index] = &stream.context();
  }
  SetDeviceMemory(device.index, [&stream](int64_t bytes) -> absl::StatusOr<std::shared_ptr<void>> {
    TESSERA_ASSIGN_OR_RETURN(
        DeviceBuffer buffer,
        DeviceBuffer::Allocate(stream, bytes,
                               std::string(MemoryCategoryName(CurrentMemoryCategory()))));
    stream.Zero(buffer.data(), bytes);
    const auto owner = std::make_shared<DeviceBuffer>(std::move(buffer));
    return std::shared_ptr<void>(owner, owner->data());
  });
}

DeviceTensors::~DeviceTensors() {
  SetDeviceMemory(device_.index, nullptr);
  const MutexLock lock(&Contexts().mutex);
  Contexts().by_device.erase(device_.index);
}

}  // namespace tessera
