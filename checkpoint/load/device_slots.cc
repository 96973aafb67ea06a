#include "checkpoint/load/device_slots.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "storage/storage.h"

namespace tessera::ckpt {

DeviceSlots::DeviceSlots(PageLockedMemory memory, uint64_t slot_bytes, uint64_t count)
    : slot_bytes_(slot_bytes), memory_(std::move(memory)) {
  for (uint64_t i = 0; i < count; ++i) {
    open_.push_back(&slots_.emplace_back(Slot{memory_.get() + i * slot_bytes}));
  }
}

absl::StatusOr<std::unique_ptr<DeviceSlots>> DeviceSlots::Create(
    std::shared_ptr<DeviceMemory> device, uint64_t total_bytes, uint64_t limit_bytes, int threads) {
  // A start of copies costs as much as copying some hundred KiB.
  constexpr uint64_t kLeastBytes = uint64_t{1} << 20, kMostBytes = uint64_t{16} << 20;
  const uint64_t most = 2 * static_cast<uint64_t>(threads);
  limit_bytes = std::max(limit_bytes / kIoAlignmentBytes * kIoAlignmentBytes, kIoAlignmentBytes);
  const uint64_t wanted =
      std::clamp(std::min(limit_bytes, total_bytes) / most, kLeastBytes, kMostBytes);
  const uint64_t slot_bytes = RoundUp(std::min(wanted, limit_bytes), kIoAlignmentBytes);
  const uint64_t count =
      std::min({most, limit_bytes / slot_bytes, CeilDivide(total_bytes, slot_bytes)});
  TESSERA_ASSIGN_OR_RETURN(PageLockedMemory memory,
                           AllocatePageLocked(std::move(device), count * slot_bytes));
  return std::unique_ptr<DeviceSlots>(new DeviceSlots(std::move(memory), slot_bytes, count));
}

absl::Status DeviceSlots::Fill(uint64_t bytes,
                               const std::function<void(std::byte*, DeviceCopies&)>& fill) {
  constexpr uint64_t kAlignmentBytes = 64;
  TESSERA_ASSIGN_OR_RETURN(Slot* const slot, Take(bytes));
  const absl::Status filled = CatchNoMemory("copy to a device", [&] {
    fill(slot->memory + slot->used_bytes, slot->copies);
    return absl::OkStatus();
  });
  slot->used_bytes += RoundUp(bytes, kAlignmentBytes);
  const MutexLock lock(&mutex_);
  open_.push_front(slot);
  changed_.NotifyAll();
  return filled;
}

// No thread holds a slot while it waits here, so all slots in use are returned.
absl::StatusOr<DeviceSlots::Slot*> DeviceSlots::Take(uint64_t bytes) {
  const MutexLock lock(&mutex_);
  while (true) {
    if (open_.empty() && in_flight_.empty()) {
      changed_.Wait(&mutex_);
    } else if (open_.empty()) {
      TESSERA_RETURN_IF_ERROR(AwaitFirst());
    } else if (open_.front()->used_bytes + bytes > slot_bytes_) {
      TESSERA_RETURN_IF_ERROR(StartFirst());
    } else {
      Slot* const slot = open_.front();
      open_.pop_front();
      return slot;
    }
  }
}

absl::Status DeviceSlots::StartFirst() {
  Slot* const slot = open_.front();
  open_.pop_front();
  mutex_.unlock();
  const absl::Status started = CatchNoMemory(
      "copy to a device", [&] { return slot->copies.Start(DeviceMemory::Direction::kToDevice); });
  mutex_.lock();
  in_flight_.push_back(slot);
  changed_.NotifyAll();
  return started;
}

absl::Status DeviceSlots::AwaitFirst() {
  Slot* const slot = in_flight_.front();
  in_flight_.pop_front();
  mutex_.unlock();
  const absl::Status ended = CatchNoMemory("copy to a device", [&] { return slot->copies.Wait(); });
  mutex_.lock();
  slot->used_bytes = 0;
  open_.push_back(slot);
  changed_.NotifyAll();
  return ended;
}

absl::Status DeviceSlots::Finish() {
  const MutexLock lock(&mutex_);
  while (!open_.empty()) TESSERA_RETURN_IF_ERROR(StartFirst());
  while (!in_flight_.empty()) TESSERA_RETURN_IF_ERROR(AwaitFirst());
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
