#ifndef TESSERA_CHECKPOINT_ELEMENTS_DEVICE_COPIES_H_
#define TESSERA_CHECKPOINT_ELEMENTS_DEVICE_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/device_memory.h"

namespace tessera::ckpt {

// Page-locked host memory, which keeps its device alive.
using PageLockedMemory = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;
absl::StatusOr<PageLockedMemory> AllocatePageLocked(std::shared_ptr<DeviceMemory> device,
                                                    size_t size_bytes);

// Copies between host memory and the shards of devices that are started together: add copies, start
// them, wait, and begin anew. The devices must outlive the copies in flight. The destructor waits
// until the host memory is not touched any more. Not thread-safe.
class DeviceCopies {
 public:
  // Adds copies of boxes of a shard, whose first element has the coordinates `origin`. In host
  // memory, each box is contiguous and begins where the one before it ends.
  void Add(DeviceMemory* device, void* handle, const std::vector<int64_t>& origin,
           std::vector<Box> boxes, std::byte* host, DType host_dtype);

  // Starts what was added: one call for each device. After an error nothing is in flight.
  absl::Status Start(DeviceMemory::Direction direction);
  // Waits for what was started. The host memory is no longer touched afterwards, error or not.
  absl::Status Wait();

 private:
  std::map<DeviceMemory*, std::vector<DeviceMemory::BoxCopy>> added_;
  std::vector<std::unique_ptr<PendingCopy>> started_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ELEMENTS_DEVICE_COPIES_H_
