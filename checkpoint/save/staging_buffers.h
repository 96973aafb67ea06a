#ifndef TESSERA_CHECKPOINT_SAVE_STAGING_BUFFERS_H_
#define TESSERA_CHECKPOINT_SAVE_STAGING_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::ckpt {

// Staging memory in buffers of one size. Those that were used before come first: the first touch of
// a new one can cost several times what filling it does. Not thread-safe.
class StagingBuffers {
 public:
  StagingBuffers() = default;
  // The first `present` buffers of the memory count as used.
  StagingBuffers(std::span<std::byte> memory, uint64_t stride_bytes, uint64_t present);

  bool has_present() const { return !present_.empty(); }
  bool has_untouched() const { return !untouched_.empty(); }
  bool has_any() const { return has_present() || has_untouched(); }

  // Precondition: has_any().
  std::byte* Take();
  void Return(std::byte* buffer) { present_.push_back(buffer); }

  // How much of the memory, from its beginning on, was touched.
  uint64_t touched_bytes() const { return memory_.size() - untouched_.size() - unused_tail_bytes_; }

 private:
  std::span<std::byte> memory_;
  uint64_t stride_bytes_ = 0;
  std::vector<std::byte*> present_;
  std::span<std::byte> untouched_;
  uint64_t unused_tail_bytes_ = 0;  // too few for a buffer
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_STAGING_BUFFERS_H_
