#include "layout/copy_box.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "layout/copy_matrix.h"

namespace tessera::ckpt {
namespace {

using Loop = MatrixDim;

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
  const bool is_number = std::has_single_bit(element_bytes) && element_bytes <= sizeof(uint64_t);
  if (loops.size() == 2 && run_bytes == element_bytes && is_number) {
    CopyMatrix(loops[0], loops[1], element_bytes, from, to);
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
