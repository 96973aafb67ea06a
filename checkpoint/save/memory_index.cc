#include "checkpoint/save/memory_index.h"

#include <algorithm>
#include <utility>

namespace tessera::ckpt {

MemoryIndex::MemoryIndex(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  std::ranges::sort(ranges_, {}, &Range::first);
  const std::byte* end = nullptr;
  for (const Range& range : ranges_) {
    end = std::max(end, range.last);
    ends_.push_back(end);
  }
}

std::vector<size_t> MemoryIndex::PiecesIn(const std::byte* data, uint64_t size_bytes) const {
  const std::byte* const end = data + size_bytes;
  std::vector<size_t> found;
  size_t i = std::ranges::upper_bound(ends_, data) - ends_.begin();
  for (; i < ranges_.size() && ranges_[i].first < end; ++i) {
    if (ranges_[i].last > data) found.push_back(ranges_[i].piece);
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace tessera::ckpt
