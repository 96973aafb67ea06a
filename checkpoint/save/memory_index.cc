#include "checkpoint/save/memory_index.h"

#include <algorithm>
#include <numeric>
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

std::vector<size_t> UpdateOrder(std::span<const MemoryIndex::Range> ranges, size_t pieces) {
  constexpr ptrdiff_t kMaxGapBytes = 1 << 20;
  struct Buffer {
    const std::byte* first;
    const std::byte* last;
  };
  std::vector<Buffer> buffers;
  // The longest range of each piece, and its buffer.
  struct Longest {
    ptrdiff_t bytes = 0, at = 0;  // `at`: in the buffer
    size_t buffer = 0;
  };
  std::vector<Longest> longest(pieces);
  for (const auto& [first, last, piece] : ranges) {
    if (!buffers.empty() && buffers.back().last <= first &&
        first - buffers.back().last < kMaxGapBytes) {
      buffers.back().last = last;
    } else {
      buffers.push_back({first, last});
    }
    if (last - first > longest[piece].bytes) {
      longest[piece] = {last - first, first - buffers.back().first, buffers.size() - 1};
    }
  }
  std::vector<double> place(pieces);
  for (size_t i = 0; i < pieces; ++i) {
    if (longest[i].bytes == 0) continue;
    const Buffer& buffer = buffers[longest[i].buffer];
    place[i] = static_cast<double>(longest[i].at) / static_cast<double>(buffer.last - buffer.first);
  }
  std::vector<size_t> order(pieces);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t piece) { return place[piece]; });
  return order;
}

}  // namespace tessera::ckpt
