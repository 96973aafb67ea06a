#include "tensor/testing/fake_device_runtime.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr char kPoison = static_cast<char>(0xff);
constexpr size_t kAlignment = 256;

thread_local const FakeDeviceRuntime* current_device = nullptr;

}  // namespace

std::shared_ptr<FakeFabric> FakeFabric::OverHostMemory() {
  auto fabric = std::make_shared<FakeFabric>();
  fabric->guarded = nullptr;
  return fabric;
}

FakeDeviceRuntime::FakeDeviceRuntime(const FakeDeviceOptions& options)
    : options_(options),
      fabric_(options.fabric != nullptr ? options.fabric : std::make_shared<FakeFabric>()),
      random_(options.seed) {
  current_device = this;
}

FakeDeviceRuntime::~FakeDeviceRuntime() {
  const MutexLock lock(&fabric_->mutex);
  for (const std::unique_ptr<FakeStream>& stream : streams_) {
    while (!stream->queue.empty() && RunOne(*stream)) {
    }
  }
}

absl::Status FakeDeviceRuntime::Select() {
  current_device = this;
  return absl::OkStatus();
}

absl::Status FakeDeviceRuntime::CheckSelected(const char* what) const {
  if (failed_) return Failure();
  if (current_device == this) return absl::OkStatus();
  return absl::FailedPreconditionError(
      std::string(what) + " on a device that is not the current one of the calling thread");
}

void FakeDeviceRuntime::Add(StreamHandle stream, Work work) {
  static_cast<FakeStream*>(stream)->queue.push_back(std::move(work));
  if (options_.at_once) {
    while (RunOne(*static_cast<FakeStream*>(stream))) {
    }
  }
  RunSome();
  Notify();
}

void FakeDeviceRuntime::Enqueue(StreamHandle stream, std::function<void()> work) {
  EnqueueShared(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

FakeDeviceRuntime::Calls FakeDeviceRuntime::calls() const {
  const MutexLock lock(&fabric_->mutex);
  return calls_;
}

void FakeDeviceRuntime::CountKernel() {
  const MutexLock lock(&fabric_->mutex);
  ++calls_.kernels;
}

void FakeDeviceRuntime::Fail(StreamHandle stream) {
  Enqueue(stream, [this] { failed_ = true; });
}

absl::Status FakeDeviceRuntime::Failure() {
  return absl::InternalError("an illegal memory access was encountered");
}

void FakeDeviceRuntime::EnqueueShared(StreamHandle stream, std::function<bool()> try_run) {
  const MutexLock lock(&fabric_->mutex);
  error_.Update(CheckSelected("a kernel"));
  Add(stream, {std::move(try_run), nullptr});
}

bool FakeDeviceRuntime::RunOne(FakeStream& stream) {
  if (stream.running || stream.queue.empty()) return false;
  const Work& work = stream.queue.front();
  if (work.wait_for != nullptr && !work.wait_for->done) {
    stream.running = true;
    const bool ran = RunTowards(*work.wait_for);
    stream.running = false;
    return ran;
  }
  if (work.try_run != nullptr) {
    stream.running = true;
    const bool ran = TryRun(work);
    stream.running = false;
    if (!ran) return false;
  }
  stream.queue.pop_front();
  Notify();
  return true;
}

bool FakeDeviceRuntime::TryRun(const Work& work) {
  GuardedMemory* const guarded = fabric_->guarded.get();
  if (guarded != nullptr) guarded->Open();
  const bool ran = work.try_run();
  if (guarded != nullptr) guarded->Close();
  return ran;
}

bool FakeDeviceRuntime::RunTowards(const Mark& mark) { return RunOne(*mark.stream); }

void FakeDeviceRuntime::RunSome() {
  if (options_.seed == 0 || streams_.empty()) return;
  std::uniform_int_distribution<size_t> any_stream(0, streams_.size() - 1);
  for (int steps = std::uniform_int_distribution<int>(0, 3)(random_); steps > 0; --steps) {
    FakeStream& stream = *streams_[any_stream(random_)];
    if (stream.queue.empty()) continue;
    const std::shared_ptr<Mark>& wait_for = stream.queue.front().wait_for;
    if (wait_for == nullptr || wait_for->done) RunOne(stream);
  }
}

absl::StatusOr<DeviceRuntime::StreamHandle> FakeDeviceRuntime::CreateStream() {
  const MutexLock lock(&fabric_->mutex);
  TESSERA_RETURN_IF_ERROR(CheckSelected("a stream"));
  streams_.push_back(std::make_unique<FakeStream>());
  return streams_.back().get();
}

// The stream stays until its work has run.
void FakeDeviceRuntime::DestroyStream(StreamHandle /*stream*/) {}

absl::Status FakeDeviceRuntime::SynchronizeStream(StreamHandle stream) {
  const MutexLock lock(&fabric_->mutex);
  FakeStream& queue = *static_cast<FakeStream*>(stream);
  calls_.waits += queue.queue.empty() ? 0 : 1;
  while (!queue.queue.empty()) {
    if (!RunOne(queue)) fabric_->changed.Wait(&fabric_->mutex);
  }
  return TakeError();
}

absl::StatusOr<DeviceRuntime::EventHandle> FakeDeviceRuntime::CreateEvent() {
  const MutexLock lock(&fabric_->mutex);
  TESSERA_RETURN_IF_ERROR(CheckSelected("an event"));
  auto event = std::make_unique<FakeEvent>();
  const EventHandle handle = event.get();
  events_[handle] = std::move(event);
  return handle;
}

void FakeDeviceRuntime::DestroyEvent(EventHandle event) {
  const MutexLock lock(&fabric_->mutex);
  events_.erase(event);
}

absl::Status FakeDeviceRuntime::RecordEvent(EventHandle event, StreamHandle stream) {
  const MutexLock lock(&fabric_->mutex);
  TESSERA_RETURN_IF_ERROR(CheckSelected("the record of an event"));
  const auto mark = std::make_shared<Mark>();
  mark->stream = static_cast<FakeStream*>(stream);
  static_cast<FakeEvent*>(event)->mark = mark;
  Add(stream, {[mark] {
                 mark->done = true;
                 return true;
               },
               nullptr});
  return absl::OkStatus();
}

absl::Status FakeDeviceRuntime::WaitEvent(StreamHandle stream, EventHandle event) {
  const MutexLock lock(&fabric_->mutex);
  const int64_t number = waits_++;
  if (options_.drops_wait != nullptr && options_.drops_wait(number)) return absl::OkStatus();
  Add(stream, {nullptr, static_cast<FakeEvent*>(event)->mark});
  return absl::OkStatus();
}

absl::Status FakeDeviceRuntime::SynchronizeEvent(EventHandle event) {
  const MutexLock lock(&fabric_->mutex);
  const std::shared_ptr<Mark> mark = static_cast<FakeEvent*>(event)->mark;
  calls_.waits += mark == nullptr || mark->done ? 0 : 1;
  while (mark != nullptr && !mark->done) {
    if (!RunTowards(*mark)) fabric_->changed.Wait(&fabric_->mutex);
  }
  return TakeError();
}

absl::StatusOr<bool> FakeDeviceRuntime::IsEventDone(EventHandle event) {
  const MutexLock lock(&fabric_->mutex);
  RunSome();
  const std::shared_ptr<Mark> mark = static_cast<FakeEvent*>(event)->mark;
  if (mark == nullptr || mark->done) return true;
  RunTowards(*mark);
  return false;
}

void FakeDeviceRuntime::FreeMemory::operator()(char* memory) const {
  if (!guarded) std::free(memory);
}

void FakeDeviceRuntime::Block::Poison() {
  std::memset(memory.get(), kPoison, static_cast<size_t>(bytes));
}

// An empty block has an address of its own, too.
void* FakeDeviceRuntime::NewBlock(int64_t bytes, bool on_device) {
  GuardedMemory* const guarded = on_device ? fabric_->guarded.get() : nullptr;
  const size_t rounded = (static_cast<size_t>(bytes) / kAlignment + 1) * kAlignment;
  auto block = std::make_unique<Block>();
  if (guarded != nullptr) {
    block->memory = {guarded->Take(bytes), FreeMemory(/*is_guarded=*/true)};
    guarded->Open();
  } else {
    block->memory.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
  }
  block->bytes = bytes;
  block->on_device = on_device;
  block->Poison();
  if (guarded != nullptr) guarded->Close();
  char* const memory = block->memory.get();
  blocks_[memory] = std::move(block);
  return memory;
}

absl::StatusOr<void*> FakeDeviceRuntime::Allocate(StreamHandle /*stream*/, int64_t bytes) {
  const MutexLock lock(&fabric_->mutex);
  if (failed_) return Failure();
  if (bytes > options_.memory_bytes - live_bytes_) {
    return absl::ResourceExhaustedError("the fake device has no more memory");
  }
  ++calls_.allocations;
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return NewBlock(bytes, /*on_device=*/true);
}

absl::Status FakeDeviceRuntime::Free(StreamHandle stream, void* memory) {
  const MutexLock lock(&fabric_->mutex);
  Block* const block = blocks_.at(static_cast<char*>(memory)).get();
  // Kept until the runtime ends, so that later uses are seen.
  Add(stream, {[this, block] {
                 block->freed = true;
                 live_bytes_ -= block->bytes;
                 block->Poison();
                 return true;
               },
               nullptr});
  return absl::OkStatus();
}

absl::StatusOr<void*> FakeDeviceRuntime::AllocatePinned(int64_t bytes) {
  if (options_.lacks_pinned && options_.lacks_pinned(bytes)) {
    return absl::ResourceExhaustedError("the host has too little memory to pin");
  }
  const MutexLock lock(&fabric_->mutex);
  ++calls_.allocations;
  return NewBlock(bytes, /*on_device=*/false);
}

void FakeDeviceRuntime::FreePinned(void* memory) {
  const MutexLock lock(&fabric_->mutex);
  Block& block = *blocks_.at(static_cast<char*>(memory));
  block.freed = true;
  block.Poison();
}

const FakeDeviceRuntime::Block* FakeDeviceRuntime::FindBlock(const void* address) const {
  const char* const at = static_cast<const char*>(address);
  auto next = blocks_.upper_bound(at);
  if (next == blocks_.begin()) return nullptr;
  const auto& [begin, block] = *--next;
  return at <= begin + block->bytes ? block.get() : nullptr;
}

FakeDeviceRuntime::Piece FakeDeviceRuntime::MemoryAt(const void* address) const {
  const Block* const block = FindBlock(address);
  const bool freed = block != nullptr && block->freed;
  if (fabric_->guarded == nullptr && !freed) return {0, UINTPTR_MAX};
  if (block == nullptr || freed || !block->on_device) return {};
  const auto begin = reinterpret_cast<uintptr_t>(block->memory.get());
  return {begin, begin + static_cast<uintptr_t>(block->bytes)};
}

bool FakeDeviceRuntime::MayTouch(const char* what, const void* address, int64_t bytes,
                                 bool or_pinned) {
  const Block* const block = FindBlock(address);
  const bool pinned = or_pinned && block != nullptr && !block->on_device && !block->freed;
  const char* wrong = or_pinned ? "memory that is neither the device's nor pinned"
                                : "memory that is not the device's";
  if (block != nullptr && block->freed) {
    wrong = "memory that was given back";
  } else if (pinned) {
    if (static_cast<const char*>(address) + bytes <= block->memory.get() + block->bytes)
      return true;
    wrong = "more than a piece of pinned memory";
  } else if (MemoryAt(address).Holds(address, bytes)) {
    return true;
  }
  error_.Update(absl::InternalError(std::string(what) + " touches " + wrong));
  return false;
}

absl::Status FakeDeviceRuntime::Copy(StreamHandle stream, const void* from, int64_t bytes,
                                     void* to) {
  const MutexLock lock(&fabric_->mutex);
  TESSERA_RETURN_IF_ERROR(CheckSelected("a copy"));
  ++calls_.copies;
  Add(stream, {[this, from, bytes, to] {
                 if (MayTouch("a copy", from, bytes, /*or_pinned=*/true) &&
                     MayTouch("a copy", to, bytes, /*or_pinned=*/true)) {
                   std::memcpy(to, from, static_cast<size_t>(bytes));
                 }
                 return true;
               },
               nullptr});
  return absl::OkStatus();
}

absl::Status FakeDeviceRuntime::Zero(StreamHandle stream, void* memory, int64_t bytes) {
  const MutexLock lock(&fabric_->mutex);
  TESSERA_RETURN_IF_ERROR(CheckSelected("a fill"));
  ++calls_.copies;
  Add(stream, {[this, memory, bytes] {
                 if (MayTouch("a fill", memory, bytes)) {
                   std::memset(memory, 0, static_cast<size_t>(bytes));
                 }
                 return true;
               },
               nullptr});
  return absl::OkStatus();
}

absl::StatusOr<DeviceRuntime::MemoryInfo> FakeDeviceRuntime::Memory() {
  const MutexLock lock(&fabric_->mutex);
  return MemoryInfo{options_.memory_bytes - live_bytes_, options_.memory_bytes};
}

}  // namespace tessera
