#include "checkpoint/testing/simulated_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "checkpoint/plan/rank_states.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kGarbage = 0xDB;

void* Map(size_t bytes, int protection) {
  return mmap(nullptr, RoundUp(std::max<size_t>(bytes, 1), kPageBytes), protection,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void Unmap(void* memory, size_t bytes) {
  munmap(memory, RoundUp(std::max<size_t>(bytes, 1), kPageBytes));
}

// Calls fn(offset, index) for the elements of a box in row-major order: the offset in memory with
// these strides, and the number of the element.
template <typename Function>
void ForEachElement(const Box& box, const std::vector<int64_t>& strides, Function&& fn) {
  const int64_t count = ElementCount(box.shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0, rest = i;
    for (size_t d = box.shape.size(); d-- > 0;) {
      at += (box.global_offset[d] + rest % box.shape[d]) * strides[d];
      rest /= box.shape[d];
    }
    fn(at, i);
  }
}

}  // namespace

class SimulatedDevice::Copy final : public PendingCopy {
 public:
  Copy(SimulatedDevice& device, int64_t number, Direction direction)
      : device_(device), number_(number), direction_(direction) {}
  ~Copy() override {
    const MutexLock lock(&device_.mutex_);
    device_.ExecuteUntil(number_);
    device_.log_.push_back({Call::kRelease, number_, direction_, 0});
    device_.in_flight_.erase(number_);
  }
  absl::Status Wait() override {
    MutexLock lock(&device_.mutex_);
    const std::function<void()> hook = device_.before_wait_;
    lock.Unlock();
    hook();
    lock.Lock();
    TESSERA_RETURN_IF_ERROR(device_.Enter({Call::kWait, number_, direction_, 0}));
    device_.ExecuteUntil(number_);
    return absl::OkStatus();
  }

 private:
  SimulatedDevice& device_;
  const int64_t number_;
  const Direction direction_;
};

SimulatedDevice::~SimulatedDevice() { Forget(); }

void SimulatedDevice::Forget() {
  const MutexLock lock(&mutex_);
  for (const Array& array : arrays_) Unmap(array.address, array.elements.size());
  arrays_.clear();
}

void SimulatedDevice::Take(Shard& shard, DType dtype) {
  const MutexLock lock(&mutex_);
  Array array = {.host = shard, .dtype = dtype, .strides = ShardStrides(shard)};
  int64_t elements = shard.box.empty() ? 0 : 1;
  for (size_t d = 0; d < array.strides.size() && elements > 0; ++d) {
    elements += array.strides[d] * (shard.box.shape[d] - 1);
  }
  const size_t bytes = elements * ElementSize(dtype);
  auto* const host = static_cast<std::byte*>(shard.data);
  array.elements.assign(host, host + bytes);
  std::memset(host, kGarbage, bytes);
  array.address = Map(bytes, PROT_NONE);
  shard.data = array.address;
  shard.device = std::shared_ptr<DeviceMemory>(std::shared_ptr<void>(), this);
  arrays_.push_back(std::move(array));
  shard.handle = &arrays_.back();
}

void SimulatedDevice::Take(StateDict& state) {
  for (ShardedTensor& tensor : state.tensors) {
    for (Shard& shard : tensor.shards) Take(shard, DTypeOf(tensor));
  }
}

std::vector<Shard> SimulatedDevice::ReadBack() {
  const MutexLock lock(&mutex_);
  for (; !queue_.empty(); queue_.pop_front()) queue_.front().execute();
  std::vector<Shard> shards;
  for (const Array& array : arrays_) {
    if (!array.elements.empty()) {
      std::memcpy(array.host.data, array.elements.data(), array.elements.size());
    }
    shards.push_back(array.host);
  }
  return shards;
}

void SimulatedDevice::StartToFill(std::byte value) {
  const MutexLock lock(&mutex_);
  Work work = {.copy = 0};
  work.execute = [this, value, count = arrays_.size()]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (size_t i = 0; i < std::min(count, arrays_.size()); ++i) {
      std::ranges::fill(arrays_[i].elements, value);
    }
  };
  queue_.push_back(std::move(work));
}

void SimulatedDevice::FailFrom(Call call, int64_t n) {
  const MutexLock lock(&mutex_);
  fail_in_.erase(call);
  if (n > 0) fail_in_[call] = n;
}

void SimulatedDevice::BeforeWait(std::function<void()> hook) {
  const MutexLock lock(&mutex_);
  before_wait_ = std::move(hook);
}

std::vector<SimulatedDevice::Event> SimulatedDevice::log() const {
  const MutexLock lock(&mutex_);
  return log_;
}

size_t SimulatedDevice::Count(Call call) const {
  const MutexLock lock(&mutex_);
  return std::ranges::count(log_, call, &Event::call);
}

size_t SimulatedDevice::most_in_flight() const {
  const MutexLock lock(&mutex_);
  return most_in_flight_;
}

size_t SimulatedDevice::allocated_bytes() const {
  const MutexLock lock(&mutex_);
  return allocated_bytes_;
}

size_t SimulatedDevice::most_allocated_bytes() const {
  const MutexLock lock(&mutex_);
  return most_allocated_bytes_;
}

std::vector<std::string> SimulatedDevice::problems() const {
  const MutexLock lock(&mutex_);
  return problems_;
}

absl::Status SimulatedDevice::Enter(const Event& event) {
  log_.push_back(event);
  const auto fail = fail_in_.find(event.call);
  if (fail == fail_in_.end() || --fail->second > 0) return absl::OkStatus();
  constexpr const char* kNames[] = {"start", "wait", "allocate"};
  return absl::UnavailableError(
      absl::StrCat("the device has fallen off the bus: ", kNames[static_cast<int>(event.call)]));
}

absl::StatusOr<std::unique_ptr<PendingCopy>> SimulatedDevice::StartCopies(
    std::span<const BoxCopy> copies, Direction direction) {
  const MutexLock lock(&mutex_);
  const int64_t number = ++copies_;
  TESSERA_RETURN_IF_ERROR(Enter({Call::kStart, number, direction, copies.size()}));
  Work work = {.copy = number};
  for (const BoxCopy& copy : copies) {
    const size_t bytes = ElementCount(copy.box.shape) * ElementSize(copy.host_dtype);
    work.memory.push_back(AllocationOf(copy.host, bytes));
    if (work.memory.back() == nullptr) return absl::InternalError(problems_.back());
    if (direction == Direction::kToHost) std::memset(copy.host, kGarbage, bytes);
  }
  work.execute = [this, all = std::vector<BoxCopy>(copies.begin(), copies.end()), direction]()
                     ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       for (const BoxCopy& copy : all) CopyBox(copy, direction);
                     };
  queue_.push_back(std::move(work));
  log_.back().started = true;
  in_flight_[number] = direction;
  most_in_flight_ = std::max(most_in_flight_, in_flight_.size());
  return std::make_unique<Copy>(*this, number, direction);
}

absl::StatusOr<std::byte*> SimulatedDevice::Allocate(size_t size_bytes) {
  const MutexLock lock(&mutex_);
  TESSERA_RETURN_IF_ERROR(Enter({Call::kAllocate, 0, Direction::kToHost, 0}));
  auto* const memory = static_cast<std::byte*>(Map(size_bytes, PROT_READ | PROT_WRITE));
  std::memset(memory, kGarbage, size_bytes);
  allocations_[memory] = size_bytes;
  allocated_bytes_ += size_bytes;
  most_allocated_bytes_ = std::max(most_allocated_bytes_, allocated_bytes_);
  return memory;
}

void SimulatedDevice::Free(std::byte* memory) {
  const MutexLock lock(&mutex_);
  log_.push_back({Call::kFree, 0, Direction::kToHost, 0});
  for (const Work& work : queue_) {
    if (std::ranges::count(work.memory, memory) > 0) problems_.push_back("frees memory in use");
  }
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) {
    problems_.push_back("frees what is not allocated");
    return;
  }
  Unmap(memory, found->second);
  allocated_bytes_ -= found->second;
  allocations_.erase(found);
}

void SimulatedDevice::ExecuteUntil(int64_t copy) {
  while (std::ranges::count(queue_, copy, &Work::copy) > 0) {
    queue_.front().execute();
    queue_.pop_front();
  }
}

void SimulatedDevice::CopyBox(const BoxCopy& copy, Direction direction) {
  Array& array = *static_cast<Array*>(copy.handle);
  const absl::Status inside = CheckBoxInside(array.host.box.shape, copy.box);
  const bool to_device = direction == Direction::kToDevice;
  const auto is_half = [](DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; };
  const DType from = to_device ? copy.host_dtype : array.dtype;
  const DType to = to_device ? array.dtype : copy.host_dtype;
  const bool converts =
      to_device && ((from == DType::kF32 && is_half(to)) || (is_half(from) && to == DType::kF32));
  if (!inside.ok()) problems_.emplace_back(inside.message());
  if (from != to && !converts) problems_.push_back("a conversion that no device has to know");
  if (!inside.ok() || (from != to && !converts)) return;
  const int64_t device_size = ElementSize(array.dtype), host_size = ElementSize(copy.host_dtype);
  const CopyElements copy_elements = FindCopy(from, to);
  ForEachElement(copy.box, array.strides, [&](int64_t at, int64_t index) {
    std::byte* const on_device = array.elements.data() + at * device_size;
    std::byte* const on_host = copy.host + index * host_size;
    copy_elements(to_device ? on_host : on_device, to_device ? on_device : on_host, 1, 1);
  });
}

std::byte* SimulatedDevice::AllocationOf(const std::byte* memory, size_t bytes) {
  for (const auto& [begin, size] : allocations_) {
    if (memory >= begin && memory + bytes <= begin + size) return begin;
  }
  problems_.push_back("a copy from or to memory that is not page-locked");
  return nullptr;
}

}  // namespace tessera::ckpt
