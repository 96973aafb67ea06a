#include "checkpoint/format/digest.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace tessera::ckpt {
namespace {

// One loop over a box: the step of an iteration in the tensor's row-major order and in memory (in
// elements).
struct Loop {
  int64_t extent;
  int64_t index_stride;
  int64_t data_stride;
};

// Loops from the outermost to the innermost, with dims of extent 1 removed and dims that are
// contiguous in both orders merged.
std::vector<Loop> MakeLoops(const Shape& shape, const std::vector<int64_t>& index_strides,
                            const std::vector<int64_t>& data_strides) {
  std::vector<Loop> loops;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const Loop loop = {shape[d], index_strides[d], data_strides[d]};
    if (!loops.empty() && loops.back().index_stride == loop.extent * loop.index_stride &&
        loops.back().data_stride == loop.extent * loop.data_stride) {
      loops.back() = {loops.back().extent * loop.extent, loop.index_stride, loop.data_stride};
    } else {
      loops.push_back(loop);
    }
  }
  return loops;
}

// Elements that are adjacent in the tensor but not in memory: gathered first, so that they use the
// fast loop, too.
LogicalDigest DigestScattered(int64_t first_index, const std::byte* data, const Loop& loop,
                              size_t element_bytes) {
  constexpr size_t kBufferBytes = 4096;
  std::byte buffer[kBufferBytes];
  const auto capacity = static_cast<int64_t>(kBufferBytes / element_bytes);
  LogicalDigest digest;
  for (int64_t begin = 0; begin < loop.extent; begin += capacity) {
    const int64_t count = std::min(capacity, loop.extent - begin);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(buffer + i * element_bytes,
                  data + (begin + i) * loop.data_stride * static_cast<int64_t>(element_bytes),
                  element_bytes);
    }
    digest += DigestRun(first_index + begin, buffer, count, element_bytes);
  }
  return digest;
}

LogicalDigest DigestLoops(int64_t first_index, const std::byte* data, std::span<const Loop> loops,
                          size_t element_bytes) {
  if (loops.empty()) return DigestRun(first_index, data, 1, element_bytes);
  const Loop& loop = loops.front();
  if (loops.size() == 1 && loop.index_stride == 1) {
    if (loop.data_stride == 1) return DigestRun(first_index, data, loop.extent, element_bytes);
    return DigestScattered(first_index, data, loop, element_bytes);
  }
  LogicalDigest digest;
  for (int64_t i = 0; i < loop.extent; ++i) {
    digest += DigestLoops(first_index + i * loop.index_stride,
                          data + i * loop.data_stride * static_cast<int64_t>(element_bytes),
                          loops.subspan(1), element_bytes);
  }
  return digest;
}

}  // namespace

LogicalDigest DigestBox(const Shape& global_shape, const ConstBoxView& view, size_t element_bytes) {
  if (view.box.empty()) return {};
  const std::vector<int64_t> index_strides = ContiguousStrides(global_shape);
  int64_t first_index = 0;
  for (size_t d = 0; d < global_shape.size(); ++d) {
    first_index += view.box.global_offset[d] * index_strides[d];
  }
  const std::vector<Loop> loops =
      MakeLoops(view.box.shape, index_strides,
                view.strides.empty() ? ContiguousStrides(view.box.shape) : view.strides);
  return DigestLoops(first_index, view.data, loops, element_bytes);
}

}  // namespace tessera::ckpt
