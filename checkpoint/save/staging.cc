#include "checkpoint/save/staging.h"

#include <sys/mman.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/system_memory.h"
#include "base/units.h"
#include "storage/storage.h"

namespace tessera::ckpt {
namespace {

// Prefaulted per call: about what a slow machine touches in a hundredth of a second.
constexpr size_t kPrefaultBytes = size_t{4} << 20;

std::string Explain(const StagingRequest& request, uint64_t available, uint64_t granted) {
  return absl::StrCat(
      "a copy of this process's part of the state takes ", HumanBytes(request.wanted_bytes),
      "; available: ", HumanBytes(available),
      ", of which at most half is taken; setting staging_bytes: ",
      request.limit_bytes == UINT64_MAX ? "no limit" : HumanBytes(request.limit_bytes),
      "; used: ", HumanBytes(granted));
}

}  // namespace

StagingPool::StagingPool(std::function<uint64_t()> available_bytes)
    : available_bytes_(available_bytes ? std::move(available_bytes) : AvailableMemoryBytes) {}

absl::Status StagingPool::Reserve(const StagingRequest& request) {
  note_.clear();
  if (request.device != device_) Free();
  device_ = request.device;
  // Never more than the limit, rounded down to a page.
  const uint64_t permitted =
      std::max(std::min(request.wanted_bytes, RoundDown(request.limit_bytes, kIoAlignmentBytes)),
               request.least_bytes);
  if (reserved_.size() < permitted) {
    const uint64_t available = available_bytes_() + present_bytes_;
    if (available < request.least_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory to stage even one piece of ",
                                                       HumanBytes(request.least_bytes), ": ",
                                                       Explain(request, available, 0)));
    }
    const uint64_t granted = std::max(
        std::min(permitted, RoundDown(available / 2, kIoAlignmentBytes)), request.least_bytes);
    if (reserved_.size() < granted) TESSERA_RETURN_IF_ERROR(Allocate(granted, request.least_bytes));
    if (reserved_.size() < request.wanted_bytes) {
      note_ = Explain(request, available, reserved_.size());
    }
  } else if (permitted < request.wanted_bytes) {
    note_ = Explain(request, available_bytes_() + present_bytes_, permitted);
  }
  usable_bytes_ = std::min<uint64_t>(reserved_.size(), permitted);
  return absl::OkStatus();
}

void StagingPool::Free() {
  buffer_ = AlignedBuffer();
  page_locked_ = nullptr;
  reserved_ = {};
  present_bytes_ = 0;
}

// Allocates as much of `bytes` as the system permits. Frees the old memory first, because there may
// not be room for both.
absl::Status StagingPool::Allocate(uint64_t bytes, uint64_t least_bytes) {
  Free();
  while (true) {
    const absl::Status allocated = AllocateOnce(bytes);
    if (allocated.ok()) return absl::OkStatus();
    if (bytes <= least_bytes) return allocated;
    bytes = std::max(RoundDown(bytes / 2, kIoAlignmentBytes), least_bytes);
  }
}

absl::Status StagingPool::AllocateOnce(uint64_t bytes) {
  if (device_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(page_locked_, AllocatePageLocked(device_, bytes));
    reserved_ = {page_locked_.get(), bytes};
    present_bytes_ = bytes;
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Allocate(bytes));
  reserved_ = buffer_.span();
  // Keeps touched pages from being swapped out, unless the limit on locked memory is too low.
  mlock2(buffer_.data(), buffer_.size_bytes(), MLOCK_ONFAULT);
  return absl::OkStatus();
}

bool StagingPool::Prefault() {
  const uint64_t wanted_bytes = std::min<uint64_t>(reserved_.size(), wanted_bytes_);
  if (present_bytes_ >= wanted_bytes) return false;
  const size_t left_bytes = wanted_bytes - present_bytes_;
  const size_t next_bytes = std::min(left_bytes, kPrefaultBytes);
  buffer_.Prefault(present_bytes_, next_bytes);
  present_bytes_ += next_bytes;
  return next_bytes < left_bytes;
}

StagingBuffers::StagingBuffers(std::span<std::byte> memory, uint64_t stride_bytes, uint64_t present)
    : memory_(memory),
      stride_bytes_(stride_bytes),
      unused_tail_bytes_(memory.size() % stride_bytes) {
  const uint64_t buffers = memory.size() / stride_bytes;
  const uint64_t ready = std::min(buffers, present);
  present_.reserve(buffers);  // so that a buffer can always be returned
  for (uint64_t i = ready; i-- > 0;) present_.push_back(memory.data() + i * stride_bytes);
  untouched_ = memory.subspan(ready * stride_bytes, (buffers - ready) * stride_bytes);
}

std::byte* StagingBuffers::Take() {
  if (has_present()) {
    std::byte* const buffer = present_.back();
    present_.pop_back();
    return buffer;
  }
  std::byte* const buffer = untouched_.data();
  untouched_ = untouched_.subspan(stride_bytes_);
  return buffer;
}

}  // namespace tessera::ckpt
