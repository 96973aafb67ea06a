// Memory of a device that the program's callbacks copy.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/c/handles.h"

namespace tessera::ckpt::c {
namespace {

class CallbackCopy final : public PendingCopy {
 public:
  CallbackCopy(const tessera_device& device, void* pending) : device_(device), pending_(pending) {}
  ~CallbackCopy() override { device_.release(device_.context, pending_); }
  absl::Status Wait() override {
    return CallBack([&] { return device_.wait(device_.context, pending_); });
  }

 private:
  const tessera_device& device_;
  void* const pending_;
};

class CallbackDevice final : public DeviceMemory {
 public:
  explicit CallbackDevice(const tessera_device& device) : device_(device) {}

  absl::StatusOr<std::unique_ptr<PendingCopy>> StartCopies(std::span<const BoxCopy> copies,
                                                           Direction direction) override {
    std::vector<tessera_box_copy> boxes;
    boxes.reserve(copies.size());
    for (const BoxCopy& copy : copies) {
      boxes.push_back({copy.handle, static_cast<int32_t>(copy.box.shape.size()),
                       copy.box.global_offset.data(), copy.box.shape.data(), copy.host,
                       static_cast<int32_t>(copy.host_dtype)});
    }
    void* pending = nullptr;
    TESSERA_RETURN_IF_ERROR(CallBack([&] {
      return device_.start_copies(device_.context, boxes.data(), boxes.size(),
                                  direction == Direction::kToDevice ? 1 : 0, &pending);
    }));
    return std::make_unique<CallbackCopy>(device_, pending);
  }

  absl::StatusOr<std::byte*> Allocate(size_t size_bytes) override {
    void* memory = nullptr;
    TESSERA_RETURN_IF_ERROR(
        CallBack([&] { return device_.allocate(device_.context, size_bytes, &memory); }));
    if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % kIoAlignmentBytes != 0) {
      return absl::InternalError("device: allocate() has set no memory aligned to 4096 bytes");
    }
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory) override { device_.free(device_.context, memory); }

 private:
  const tessera_device device_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceMemory>> MakeDevice(const tessera_device* device) {
  TESSERA_RETURN_IF_ERROR(CheckPointer(device, "device"));
  TESSERA_ASSIGN_OR_RETURN(tessera_device copy, ReadStruct(device, "device"));
  if (copy.start_copies == nullptr || copy.wait == nullptr || copy.release == nullptr ||
      copy.allocate == nullptr || copy.free == nullptr) {
    return absl::InvalidArgumentError("device: a callback is NULL");
  }
  // Savers keep memory of a device for the next state, which has the same device.
  static Mutex mutex;
  static auto& devices = *new std::map<std::string, std::weak_ptr<DeviceMemory>>();
  copy.struct_bytes = sizeof(copy);
  const std::string key(reinterpret_cast<const char*>(&copy), sizeof(copy));
  const MutexLock lock(&mutex);
  std::erase_if(devices, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<DeviceMemory> known = devices[key].lock();
  if (known == nullptr) devices[key] = known = std::make_shared<CallbackDevice>(copy);
  return known;
}

}  // namespace tessera::ckpt::c
