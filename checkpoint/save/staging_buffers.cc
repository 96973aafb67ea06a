#include "checkpoint/save/staging_buffers.h"

#include <algorithm>

namespace tessera::ckpt {

StagingBuffers::StagingBuffers(std::span<std::byte> memory, uint64_t stride_bytes, uint64_t present)
    : memory_(memory),
      stride_bytes_(stride_bytes),
      unused_tail_bytes_(memory.size() % stride_bytes) {
  const uint64_t buffers = memory.size() / stride_bytes;
  const uint64_t ready = std::min(buffers, present);
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
