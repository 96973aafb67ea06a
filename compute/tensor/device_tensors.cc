#include "compute/tensor/device_tensors.h"

#include <glog/logging.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "compute/tensor/device.h"
#include "compute/tensor/memory.h"
#include "compute/tensor/tensor.h"

namespace tessera {

DeviceTensors::DeviceTensors(Device device, Stream& stream) : device_(device) {
  CHECK(device.type == DeviceType::kCuda);
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

DeviceTensors::~DeviceTensors() { SetDeviceMemory(device_.index, nullptr); }

}  // namespace tessera
