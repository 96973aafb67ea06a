#ifndef TESSERA_CHECKPOINT_ELEMENTS_DIGEST_ELEMENTS_H_
#define TESSERA_CHECKPOINT_ELEMENTS_DIGEST_ELEMENTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/format/digest.h"
#include "layout/box.h"
#include "layout/elements/box_runs.h"

namespace tessera::ckpt {

// Returns the digest of the elements of a box, of a tensor of the given shape. The first element is
// at `data`; `strides` are in elements, one per dim. NaNs are bits like any others. Preconditions:
// the box lies inside the shape; element_bytes is 1, 2, 4 or 8. Threads: safe.
LogicalDigest DigestBox(const Shape& global_shape, const Box& box, const std::byte* data,
                        const std::vector<int64_t>& strides, size_t element_bytes);

// Returns the digest of elements [first, last) of a box's own storage, which are at `data`.
// `global` maps them to their row-major indices in the logical tensor.
LogicalDigest DigestRuns(const BoxRuns& global, int64_t first, int64_t last, const std::byte* data,
                         int64_t element_bytes);

// Returns the digest of DigestRuns(), and extends the checksum `crc32c` by the elements' bytes.
LogicalDigest ChecksumRuns(const BoxRuns& global, int64_t first, int64_t last,
                           const std::byte* data, int64_t element_bytes, uint32_t& crc32c);

// Returns the digest of DigestRuns(), and copies the elements from `data` to `to`.
LogicalDigest CopyAndDigestRuns(const BoxRuns& global, int64_t first, int64_t last,
                                const std::byte* data, std::byte* to, int64_t element_bytes);

// Adds the digests of the elements in bytes [begin, end) of a file, which are at `data`, to the
// sums of their tensors. `boxes` as in ForEachStored(); their runs lead to indices of the tensors.
template <typename Boxes>
void DigestStored(const Boxes& boxes, uint64_t begin, uint64_t end, const std::byte* data,
                  std::span<LogicalDigest> sums) {
  ForEachStored(boxes, begin, end, [&](const StoredBox& box, int64_t first, int64_t last) {
    const std::byte* const from = data + (box.begin + first * box.element_bytes - begin);
    sums[box.tensor] += DigestRuns(box.runs, first, last, from, box.element_bytes);
  });
}

// Computes the digest of a box of a logical tensor while its elements are written to memory, since
// a separate pass over the memory would cost as much again. Thread-safe.
class PlacedDigest {
 public:
  // In memory, the box begins an array of shape `array_shape`, whose extents are at least its own.
  PlacedDigest(const Shape& global_shape, const Box& box, const Shape& array_shape,
               size_t element_bytes);

  // Writes `count` elements at `from` into the array: to its elements `first`, `first` + `stride`
  // and so on, all of which must be in the box.
  void Place(const std::byte* from, std::byte* array, int64_t first, int64_t count, int64_t stride);

  // Adds the elements of a part of the box, which are at `data`, row-major and contiguous.
  void Add(const Box& part, const std::byte* data);

  // Returns the digest of all elements so far. Other calls must happen before this call.
  LogicalDigest sum() const {
    return {lo_.load(std::memory_order_relaxed), hi_.load(std::memory_order_relaxed)};
  }

 private:
  void Add(const LogicalDigest& digest);

  const Shape global_shape_;
  const BoxRuns global_;  // the array <-> the tensor's row-major order
  const int64_t element_bytes_;
  std::atomic<uint64_t> lo_ = 0, hi_ = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ELEMENTS_DIGEST_ELEMENTS_H_
