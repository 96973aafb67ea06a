#ifndef TESSERA_CHECKPOINT_SAVE_MEMORY_INDEX_H_
#define TESSERA_CHECKPOINT_SAVE_MEMORY_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::ckpt {

// Which pieces of a save are copied from which memory. Thread-safe once built.
class MemoryIndex {
 public:
  struct Range {
    const std::byte* first;
    const std::byte* last;
    size_t piece;
  };

  MemoryIndex() = default;
  // In any order; ranges may overlap.
  explicit MemoryIndex(std::vector<Range> ranges);

  // Those with a byte in [data, data + size_bytes), ascending.
  std::vector<size_t> PiecesIn(const std::byte* data, uint64_t size_bytes) const;

 private:
  std::vector<Range> ranges_;           // ascending by first
  std::vector<const std::byte*> ends_;  // the largest `last` of ranges_[0..i]
};

// The order in which an update comes to `pieces` pieces: it changes the same part of weights, of
// master weights and of moments at once, which lie in buffers of their own. A buffer is memory
// without gaps, but for those of padding and alignment. `ranges`: those of one buffer together,
// ascending.
std::vector<size_t> UpdateOrder(std::span<const MemoryIndex::Range> ranges, size_t pieces);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_MEMORY_INDEX_H_
