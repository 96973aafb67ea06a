#include "checkpoint/layout/copy_box.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace tessera::ckpt {
namespace {

// One loop of a copy: strides in bytes.
struct Loop {
  int64_t extent;
  int64_t from_stride;
  int64_t to_stride;
};

template <typename Byte>
std::vector<int64_t> StridesOf(const BasicBoxView<Byte>& view) {
  return view.strides.empty() ? ContiguousStrides(view.box.shape) : view.strides;
}

template <typename Byte>
int64_t OffsetOf(const BasicBoxView<Byte>& view, const Box& region,
                 const std::vector<int64_t>& strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < region.shape.size(); ++d) {
    offset += (region.global_offset[d] - view.box.global_offset[d]) * strides[d];
  }
  return offset;
}

// Loops from the outermost to the innermost, with dims of extent 1 removed and dims that are
// contiguous on both sides merged.
std::vector<Loop> MakeLoops(const Box& region, const std::vector<int64_t>& from_strides,
                            const std::vector<int64_t>& to_strides, int64_t element_bytes) {
  std::vector<Loop> loops;
  for (size_t d = 0; d < region.shape.size(); ++d) {
    if (region.shape[d] == 1) continue;
    const Loop loop = {region.shape[d], from_strides[d] * element_bytes,
                       to_strides[d] * element_bytes};
    if (!loops.empty() && loops.back().from_stride == loop.extent * loop.from_stride &&
        loops.back().to_stride == loop.extent * loop.to_stride) {
      loops.back() = {loops.back().extent * loop.extent, loop.from_stride, loop.to_stride};
    } else {
      loops.push_back(loop);
    }
  }
  return loops;
}

// A fixed size lets the compiler turn memcpy into one move.
template <size_t kBytes>
void CopyElements(const std::byte* from, std::byte* to, const Loop& loop) {
  for (int64_t i = 0; i < loop.extent; ++i) {
    std::memcpy(to + i * loop.to_stride, from + i * loop.from_stride, kBytes);
  }
}

void CopyInnermost(const std::byte* from, std::byte* to, const Loop& loop, size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return CopyElements<1>(from, to, loop);
    case 2:
      return CopyElements<2>(from, to, loop);
    case 4:
      return CopyElements<4>(from, to, loop);
    case 8:
      return CopyElements<8>(from, to, loop);
    default:
      for (int64_t i = 0; i < loop.extent; ++i) {
        std::memcpy(to + i * loop.to_stride, from + i * loop.from_stride, element_bytes);
      }
  }
}

// Side of the square blocks of a transposition: two of them fit into the innermost cache.
constexpr int64_t kBlock = 32;

// Copies a matrix in blocks, so that both sides stay in the cache whichever is contiguous.
template <size_t kBytes>
void CopyMatrix(const std::byte* from, std::byte* to, const Loop& outer, const Loop& inner) {
  for (int64_t i0 = 0; i0 < outer.extent; i0 += kBlock) {
    const int64_t rows = std::min(kBlock, outer.extent - i0);
    for (int64_t j0 = 0; j0 < inner.extent; j0 += kBlock) {
      const Loop part = {std::min(kBlock, inner.extent - j0), inner.from_stride, inner.to_stride};
      for (int64_t i = i0; i < i0 + rows; ++i) {
        CopyElements<kBytes>(from + i * outer.from_stride + j0 * inner.from_stride,
                             to + i * outer.to_stride + j0 * inner.to_stride, part);
      }
    }
  }
}

// Copies a matrix without runs, writing along the dim that is denser in `to`. Returns false for
// elements of other sizes.
bool CopyTransposed(const std::byte* from, std::byte* to, const Loop& a, const Loop& b,
                    size_t element_bytes) {
  const Loop& outer = a.to_stride < b.to_stride ? b : a;
  const Loop& inner = a.to_stride < b.to_stride ? a : b;
  switch (element_bytes) {
    case 1:
      CopyMatrix<1>(from, to, outer, inner);
      return true;
    case 2:
      CopyMatrix<2>(from, to, outer, inner);
      return true;
    case 4:
      CopyMatrix<4>(from, to, outer, inner);
      return true;
    case 8:
      CopyMatrix<8>(from, to, outer, inner);
      return true;
    default:
      return false;
  }
}

void CopyLoops(const std::byte* from, std::byte* to, std::span<const Loop> loops,
               size_t element_bytes, size_t run_bytes) {
  if (loops.empty()) {
    std::memcpy(to, from, run_bytes);
    return;
  }
  const Loop& loop = loops.front();
  if (loops.size() == 1 && run_bytes == element_bytes) {
    CopyInnermost(from, to, loop, element_bytes);
    return;
  }
  if (loops.size() == 2 && run_bytes == element_bytes &&
      CopyTransposed(from, to, loops[0], loops[1], element_bytes)) {
    return;
  }
  for (int64_t i = 0; i < loop.extent; ++i) {
    CopyLoops(from + i * loop.from_stride, to + i * loop.to_stride, loops.subspan(1), element_bytes,
              run_bytes);
  }
}

}  // namespace

void CopyBox(const Box& region, const ConstBoxView& from, const BoxView& to, size_t element_bytes) {
  if (region.empty()) return;
  const std::vector<int64_t> from_strides = StridesOf(from);
  const std::vector<int64_t> to_strides = StridesOf(to);
  const auto bytes = static_cast<int64_t>(element_bytes);
  std::vector<Loop> loops = MakeLoops(region, from_strides, to_strides, bytes);
  size_t run_bytes = element_bytes;
  if (!loops.empty() && loops.back().from_stride == bytes && loops.back().to_stride == bytes) {
    run_bytes *= loops.back().extent;
    loops.pop_back();
  }
  CopyLoops(from.data + OffsetOf(from, region, from_strides) * bytes,
            to.data + OffsetOf(to, region, to_strides) * bytes, loops, element_bytes, run_bytes);
}

}  // namespace tessera::ckpt
