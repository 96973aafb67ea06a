#include "tensor/host_copies.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<HostCopies>> HostCopies::Create(Stream& stream) {
  return Create(stream, Options());
}

absl::StatusOr<std::unique_ptr<HostCopies>> HostCopies::Create(Stream& stream, Options options) {
  CHECK(options.slots > 0 && options.slot_bytes > 0);
  TESSERA_ASSIGN_OR_RETURN(PinnedBuffer later,
                           PinnedBuffer::Allocate(stream.context(), kLaterBytes));
  std::unique_ptr<HostCopies> copies(new HostCopies(stream, options.slot_bytes, std::move(later)));
  for (int i = 0; i < options.slots; ++i) {
    TESSERA_ASSIGN_OR_RETURN(PinnedBuffer memory,
                             PinnedBuffer::Allocate(stream.context(), options.slot_bytes));
    TESSERA_ASSIGN_OR_RETURN(Event copied, Event::Create(stream.context()));
    copies->slots_.push_back({std::move(memory), std::move(copied)});
  }
  return copies;
}

HostCopies::~HostCopies() {
  if (!later_.empty()) stream_.context().KeepError("a copy to the host", stream_.Drain());
  for (const Slot& slot : slots_) {
    if (slot.copied.recorded()) {
      stream_.context().KeepError("a copy to the device", slot.copied.Synchronize());
    }
  }
}

absl::Status HostCopies::ToDevice(const void* from, int64_t bytes, void* to) {
  for (int64_t done = 0; done < bytes;) {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    if (slot.copied.recorded()) TESSERA_RETURN_IF_ERROR(slot.copied.Synchronize());
    const int64_t count = std::min(slot_bytes_, bytes - done);
    std::memcpy(slot.memory.data(), static_cast<const char*>(from) + done,
                static_cast<size_t>(count));
    stream_.Copy(slot.memory.data(), count, static_cast<char*>(to) + done);
    slot.copied.Record(stream_);
    done += count;
  }
  return absl::OkStatus();
}

// Fills every slot before it waits for the first, so that the device copies while the host does.
absl::Status HostCopies::ToHost(const void* from, int64_t bytes, void* to) {
  const int64_t pieces = CeilDivide(bytes, slot_bytes_);
  const int64_t slots = static_cast<int64_t>(slots_.size());
  const auto count = [&](int64_t piece) {
    return std::min(slot_bytes_, bytes - piece * slot_bytes_);
  };
  const size_t first = next_;  // whose last copy is the oldest
  next_ = (first + static_cast<size_t>(pieces)) % slots_.size();
  for (int64_t piece = 0; piece < pieces + slots; ++piece) {
    Slot& slot = slots_[(first + static_cast<size_t>(piece)) % slots_.size()];
    if (const int64_t done = piece - slots; done >= 0) {
      if (done >= pieces) continue;
      TESSERA_RETURN_IF_ERROR(slot.copied.Synchronize());
      std::memcpy(static_cast<char*>(to) + done * slot_bytes_, slot.memory.data(),
                  static_cast<size_t>(count(done)));
    } else if (piece < pieces && slot.copied.recorded()) {
      TESSERA_RETURN_IF_ERROR(slot.copied.Synchronize());
    }
    if (piece >= pieces) continue;
    stream_.Copy(static_cast<const char*>(from) + piece * slot_bytes_, count(piece),
                 slot.memory.data());
    slot.copied.Record(stream_);
  }
  return absl::OkStatus();
}

absl::Status HostCopies::ToHostLater(const void* from, int64_t bytes, std::shared_ptr<void> to) {
  CHECK_LE(bytes, kLaterBytes);
  if (later_bytes_ + bytes > kLaterBytes) {
    TESSERA_RETURN_IF_ERROR(stream_.Drain());
    Deliver();
  }
  char* const place = static_cast<char*>(later_memory_.data()) + later_bytes_;
  stream_.Copy(from, bytes, place);
  later_.push_back({place, bytes, std::move(to)});
  later_bytes_ += bytes;
  return absl::OkStatus();
}

void HostCopies::Deliver() {
  for (const Later& later : later_) {
    std::memcpy(later.to.get(), later.from, static_cast<size_t>(later.bytes));
  }
  later_.clear();
  later_bytes_ = 0;
}

}  // namespace tessera
