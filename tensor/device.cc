#include "tensor/device.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace tessera {

DeviceContext::DeviceContext(std::unique_ptr<DeviceRuntime> runtime)
    : runtime_(std::move(runtime)), waits_for_operations_([] {
        const char* const waits = std::getenv("TESSERA_CUDA_SYNC");
        return waits != nullptr && std::string_view(waits) == "1";
      }()) {}

absl::Status DeviceContext::Explained(const absl::Status& status) {
  constexpr absl::string_view kHint = "TESSERA_CUDA_SYNC=1";
  const char* const operation = operation_.load(std::memory_order_relaxed);
  if (status.ok() || waits_for_operations_ || operation == nullptr || !runtime_->HasFailed() ||
      absl::StrContains(status.message(), kHint)) {
    return status;
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; ", operation,
                                   " was queued last, and the error may be an earlier operation's: "
                                   "with ",
                                   kHint, " it bears the name of its own"));
}

absl::Status DeviceContext::TakeError() {
  MutexLock lock(&mutex_);
  return std::exchange(error_, absl::OkStatus());
}

void DeviceContext::KeepError(std::string_view what, const absl::Status& status) {
  if (status.ok()) return;
  std::string text =
      absl::StrCat(std::string(what), what.empty() ? "" : ": ", Explained(status).message());
  const char* const operation = operation_.load(std::memory_order_relaxed);
  if (waits_for_operations_ && operation != nullptr && runtime_->HasFailed() &&
      !absl::StrContains(text, operation)) {
    absl::StrAppend(&text, "; in ", operation);
  }
  MutexLock lock(&mutex_);
  if (error_.ok()) error_ = absl::Status(status.code(), text);
}

void DeviceContext::SetProgress(std::function<absl::Status()> progress) {
  MutexLock lock(&progress_mutex_);
  progress_ = std::move(progress);
}

absl::Status DeviceContext::MakeProgress() {
  MutexLock lock(&progress_mutex_);
  if (progress_ == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(runtime_->Select());
  return progress_();
}

absl::Status DeviceContext::Await(DeviceRuntime::EventHandle event) {
  {
    MutexLock lock(&progress_mutex_);
    if (progress_ == nullptr) return runtime_->SynchronizeEvent(event);
  }
  bool done = false;
  while (!done) {
    TESSERA_ASSIGN_OR_RETURN(done, runtime_->IsEventDone(event));
    // After the last look as well: an operation that was aborted ends, too.
    TESSERA_RETURN_IF_ERROR(MakeProgress());
    if (!done) std::this_thread::yield();
  }
  return absl::OkStatus();
}

void DeviceContext::CountMemory(const std::string& purpose, int64_t bytes) {
  MutexLock lock(&mutex_);
  bytes_by_purpose_[purpose] += bytes;
}

int64_t DeviceContext::allocated_bytes() const {
  MutexLock lock(&mutex_);
  int64_t sum = 0;
  for (const auto& [purpose, bytes] : bytes_by_purpose_) sum += bytes;
  return sum;
}

std::string DeviceContext::DescribeMemory() const {
  std::vector<std::pair<int64_t, std::string>> uses;
  {
    MutexLock lock(&mutex_);
    for (const auto& [purpose, bytes] : bytes_by_purpose_) {
      if (bytes > 0) uses.emplace_back(-bytes, purpose);
    }
  }
  std::sort(uses.begin(), uses.end());
  std::string text;
  for (const auto& [negative_bytes, purpose] : uses) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", -negative_bytes, " bytes of ", purpose);
  }
  return text.empty() ? "nothing" : text;
}

absl::StatusOr<Stream> Stream::Create(DeviceContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const DeviceRuntime::StreamHandle handle,
                           context.runtime().CreateStream());
  return Stream(context, handle);
}

Stream::Stream(Stream&& other) noexcept
    : context_(other.context_), handle_(std::exchange(other.handle_, nullptr)) {}

Stream::~Stream() {
  if (handle_ != nullptr) context_->runtime().DestroyStream(handle_);
}

void Stream::Copy(const void* from, int64_t bytes, void* to) {
  if (bytes == 0) return;
  context_->KeepError(absl::StrCat("a copy of ", bytes, " bytes"),
                      context_->runtime().Copy(handle_, from, bytes, to));
}

void Stream::Zero(void* memory, int64_t bytes) {
  if (bytes == 0) return;
  context_->KeepError(absl::StrCat("setting ", bytes, " bytes to zeros"),
                      context_->runtime().Zero(handle_, memory, bytes));
}

void Stream::Wait(const Event& event) {
  CHECK(event.recorded()) << "waits for an event that was not recorded";
  context_->KeepError("a wait for an event",
                      context_->runtime().WaitEvent(handle_, event.handle()));
}

absl::Status Stream::Synchronize() {
  context_->KeepError("the work of a stream", Drain());
  return context_->TakeError();
}

absl::Status Stream::Drain() {
  TESSERA_ASSIGN_OR_RETURN(Event end, Event::Create(*context_));
  end.Record(*this);
  const absl::Status waited = end.Synchronize();
  // Ends at once, or, after an error of the wait, when what was aborted has ended.
  absl::Status drained = context_->runtime().SynchronizeStream(handle_);
  drained.Update(waited);
  return context_->Explained(drained);
}

absl::StatusOr<Event> Event::Create(DeviceContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const DeviceRuntime::EventHandle handle,
                           context.runtime().CreateEvent());
  return Event(context, handle);
}

Event::Event(Event&& other) noexcept
    : context_(other.context_),
      handle_(std::exchange(other.handle_, nullptr)),
      recorded_(other.recorded_) {}

Event::~Event() {
  if (handle_ != nullptr) context_->runtime().DestroyEvent(handle_);
}

void Event::Record(const Stream& stream) {
  context_->KeepError("an event", context_->runtime().RecordEvent(handle_, stream.handle()));
  recorded_ = true;
}

absl::StatusOr<bool> Event::IsDone() const {
  CHECK(recorded_) << "asks for an event that was not recorded";
  return context_->runtime().IsEventDone(handle_);
}

absl::Status Event::Synchronize() const {
  CHECK(recorded_) << "waits for an event that was not recorded";
  return context_->Await(handle_);
}

namespace {

// "; the device has 80 bytes, of which 7 are free"; empty where it does not tell.
std::string DescribeCapacity(DeviceRuntime& runtime) {
  const absl::StatusOr<DeviceRuntime::MemoryInfo> memory = runtime.Memory();
  if (!memory.ok()) return "";
  return absl::StrCat("; the device has ", memory->total_bytes, " bytes, of which ",
                      memory->free_bytes, " are free");
}

}  // namespace

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(Stream& stream, int64_t bytes,
                                                    std::string purpose) {
  CHECK_GE(bytes, 0);
  DeviceContext& context = stream.context();
  const absl::StatusOr<void*> data = context.runtime().Allocate(stream.handle(), bytes);
  if (absl::IsResourceExhausted(data.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of device memory: ", bytes, " bytes of ", purpose, " do not fit beside ",
                     context.DescribeMemory(), ": ", data.status().message(),
                     DescribeCapacity(context.runtime())));
  }
  if (!data.ok()) {
    context.KeepError(absl::StrCat("allocating ", bytes, " bytes of ", purpose), data.status());
    return context.TakeError();  // of work before it, if there is one
  }
  context.CountMemory(purpose, bytes);
  return DeviceBuffer(stream, *data, bytes, std::move(purpose));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : context_(other.context_),
      stream_(other.stream_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      purpose_(std::move(other.purpose_)) {}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  context_->CountMemory(purpose_, -bytes_);
  context_->KeepError(absl::StrCat("giving back ", bytes_, " bytes of ", purpose_),
                      context_->runtime().Free(stream_, data_));
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Allocate(DeviceContext& context, int64_t bytes) {
  CHECK_GE(bytes, 0);
  TESSERA_ASSIGN_OR_RETURN(void* const data, context.runtime().AllocatePinned(bytes));
  return PinnedBuffer(context, data, bytes);
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : context_(other.context_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) context_->runtime().FreePinned(data_);
}

}  // namespace tessera
