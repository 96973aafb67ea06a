#include "checkpoint/elements/device_copies.h"

#include <utility>

#include "base/no_memory.h"
#include "base/status_macros.h"

namespace tessera::ckpt {

absl::StatusOr<PageLockedMemory> AllocatePageLocked(std::shared_ptr<DeviceMemory> device,
                                                    size_t size_bytes) {
  TESSERA_ASSIGN_OR_RETURN(std::byte* const memory, device->Allocate(size_bytes));
  return PageLockedMemory(
      memory, [device = std::move(device)](std::byte* allocated) { device->Free(allocated); });
}

void DeviceCopies::Add(DeviceMemory* device, void* handle, const std::vector<int64_t>& origin,
                       std::vector<Box> boxes, std::byte* host, DType host_dtype) {
  for (Box& box : boxes) {
    for (size_t d = 0; d < origin.size(); ++d) box.global_offset[d] -= origin[d];
    const int64_t bytes = ElementCount(box.shape) * ElementSize(host_dtype);
    added_[device].push_back({handle, std::move(box), host, host_dtype});
    host += bytes;
  }
}

absl::Status DeviceCopies::Start(DeviceMemory::Direction direction) {
  const auto added = std::exchange(added_, {});
  started_.reserve(added.size());
  for (const auto& batch : added) {
    auto started =
        CatchExceptions("copy", [&] { return batch.first->StartCopies(batch.second, direction); });
    if (!started.ok()) {
      started_.clear();
      return started.status();
    }
    started_.push_back(*std::move(started));
  }
  return absl::OkStatus();
}

absl::Status DeviceCopies::Wait() {
  const auto started = std::exchange(started_, {});
  for (const auto& copy : started) TESSERA_RETURN_IF_ERROR(copy->Wait());
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
