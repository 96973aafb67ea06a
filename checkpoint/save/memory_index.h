#ifndef TESSERA_CHECKPOINT_SAVE_MEMORY_INDEX_H_
#define TESSERA_CHECKPOINT_SAVE_MEMORY_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::ckpt {

// An index of the memory from which the pieces of a save are copied. Thread-safe once built.
class MemoryIndex {
 public:
  struct Range {
    const std::byte* first;
    const std::byte* last;
    size_t piece;
  };

  MemoryIndex() = default;
  // Builds the index of ranges in any order, which may overlap.
  explicit MemoryIndex(std::vector<Range> ranges);

  // Returns the pieces with a byte in [data, data + size_bytes), ascending.
  std::vector<size_t> PiecesIn(const std::byte* data, uint64_t size_bytes) const;

 private:
  std::vector<Range> ranges_;           // ascending by first
  std::vector<const std::byte*> ends_;  // the largest `last` of ranges_[0..i]
};

// Returns the order in which an update changes `pieces` pieces: it changes the same part of
// weights, of master weights and of moments at once, each of which has its own buffer. A buffer is
// memory without gaps, except for padding and alignment. In `ranges`, the ranges of one buffer are
// adjacent and ascending.
std::vector<size_t> UpdateOrder(std::span<const MemoryIndex::Range> ranges, size_t pieces);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_MEMORY_INDEX_H_
