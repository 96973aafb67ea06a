#include "checkpoint/elements/digest_elements.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/crc32c.h"
#include "layout/elements/copy_elements.h"

namespace tessera::ckpt {
namespace {

// Digests elements that are `stride` apart through a small buffer.
LogicalDigest DigestScattered(int64_t first_index, const std::byte* data, int64_t count,
                              int64_t stride, int64_t element_bytes) {
  constexpr int64_t kBufferBytes = 4096;
  std::byte buffer[kBufferBytes];
  LogicalDigest digest;
  for (int64_t begin = 0; begin < count; begin += kBufferBytes / element_bytes) {
    const StridedDim dim = {std::min(kBufferBytes / element_bytes, count - begin), stride, 1};
    CopyStrided({&dim, 1}, element_bytes, data + begin * stride * element_bytes, buffer);
    digest += DigestRun(first_index + begin, buffer, dim.extent, element_bytes);
  }
  return digest;
}

std::vector<int64_t> Negative(std::vector<int64_t> values) {
  for (int64_t& value : values) value = -value;
  return values;
}

}  // namespace

LogicalDigest DigestBox(const Shape& global_shape, const Box& box, const std::byte* data,
                        const std::vector<int64_t>& strides, size_t element_bytes) {
  LogicalDigest digest;
  if (box.empty()) return digest;
  const auto size = static_cast<int64_t>(element_bytes);
  const BoxRuns runs(WholeBox(global_shape), box, box.global_offset, strides);
  const int64_t stride = runs.run_stride();
  runs.ForEach(0, ElementCount(global_shape), [&](const BoxRuns::Run& run) {
    const std::byte* const from = data + run.strided_element * size;
    digest += stride == 1 ? DigestRun(run.outer_element, from, run.count, size)
                          : DigestScattered(run.outer_element, from, run.count, stride, size);
  });
  return digest;
}

LogicalDigest DigestRuns(const BoxRuns& global, int64_t first, int64_t last, const std::byte* data,
                         int64_t element_bytes) {
  LogicalDigest digest;
  global.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const std::byte* const from = data + (run.outer_element - first) * element_bytes;
    if (global.run_stride() == 1) {
      digest += DigestRun(run.strided_element, from, run.count, element_bytes);
      return;
    }
    // In a box one element wide, neighbours in its storage are not neighbours in the tensor.
    for (int64_t i = 0; i < run.count; ++i) {
      digest += DigestRun(run.strided_element + i * global.run_stride(), from + i * element_bytes,
                          1, element_bytes);
    }
  });
  return digest;
}

LogicalDigest ChecksumRuns(const BoxRuns& global, int64_t first, int64_t last,
                           const std::byte* data, int64_t element_bytes, uint32_t& crc32c) {
  if (const std::optional<int64_t> at = global.Contiguous(first, last)) {
    return ChecksumRun(*at, data, last - first, element_bytes, crc32c);
  }
  crc32c = ExtendCrc32c(crc32c, {data, static_cast<size_t>((last - first) * element_bytes)});
  return DigestRuns(global, first, last, data, element_bytes);
}

LogicalDigest CopyAndDigestRuns(const BoxRuns& global, int64_t first, int64_t last,
                                const std::byte* data, std::byte* to, int64_t element_bytes) {
  if (global.run_stride() != 1) {
    std::memcpy(to, data, (last - first) * element_bytes);
    return DigestRuns(global, first, last, to, element_bytes);
  }
  LogicalDigest digest;
  global.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const int64_t offset = (run.outer_element - first) * element_bytes;
    digest +=
        CopyAndDigestRun(run.strided_element, data + offset, to + offset, run.count, element_bytes);
  });
  return digest;
}

PlacedDigest::PlacedDigest(const Shape& global_shape, const Box& box, const Shape& array_shape,
                           size_t element_bytes)
    : global_shape_(global_shape),
      global_(WholeBox(array_shape), WholeBox(box.shape), Negative(box.global_offset),
              ContiguousStrides(global_shape)),
      element_bytes_(static_cast<int64_t>(element_bytes)) {}

void PlacedDigest::Place(const std::byte* from, std::byte* array, int64_t first, int64_t count,
                         int64_t stride) {
  const int64_t together = stride == 1 ? count : 1;
  LogicalDigest digest;
  for (int64_t i = 0; i < count; i += together) {
    const int64_t at = first + i * stride;
    digest += CopyAndDigestRuns(global_, at, at + together, from + i * element_bytes_,
                                array + at * element_bytes_, element_bytes_);
  }
  Add(digest);
}

void PlacedDigest::Add(const Box& part, const std::byte* data) {
  Add(DigestBox(global_shape_, part, data, ContiguousStrides(part.shape), element_bytes_));
}

void PlacedDigest::Add(const LogicalDigest& digest) {
  lo_.fetch_add(digest.lo, std::memory_order_relaxed);
  hi_.fetch_add(digest.hi, std::memory_order_relaxed);
}

}  // namespace tessera::ckpt
