#ifndef TESSERA_CHECKPOINT_ELEMENTS_PLACED_DIGEST_H_
#define TESSERA_CHECKPOINT_ELEMENTS_PLACED_DIGEST_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/elements/box_runs.h"
#include "checkpoint/elements/digest_runs.h"
#include "checkpoint/format/digest.h"
#include "layout/box.h"

namespace tessera::ckpt {

// The digest of a box of a logical tensor, computed while its elements are written to memory: a
// separate pass over the memory would cost as much again. Thread-safe.
class PlacedDigest {
 public:
  // In memory the box is the first part of an array of shape `array_shape`, whose extents are at
  // least the box's.
  PlacedDigest(const Shape& global_shape, const Box& box, const Shape& array_shape,
               size_t element_bytes)
      : global_(WholeBox(array_shape), WholeBox(box.shape), Negative(box.global_offset),
                ContiguousStrides(global_shape)),
        element_bytes_(static_cast<int64_t>(element_bytes)) {}

  // Writes `count` elements at `from` into the array: the first as its element `first`, each of the
  // others `stride` further on. They must be elements of the box.
  void Place(const std::byte* from, std::byte* array, int64_t first, int64_t count,
             int64_t stride) {
    const int64_t together = stride == 1 ? count : 1;
    LogicalDigest digest;
    for (int64_t i = 0; i < count; i += together) {
      const int64_t at = first + i * stride;
      digest += CopyAndDigestRuns(global_, at, at + together, from + i * element_bytes_,
                                  array + at * element_bytes_, element_bytes_);
    }
    lo_.fetch_add(digest.lo, std::memory_order_relaxed);
    hi_.fetch_add(digest.hi, std::memory_order_relaxed);
  }

  // The digest of all elements so far. Calls of Place() must happen before this call.
  LogicalDigest sum() const {
    return {lo_.load(std::memory_order_relaxed), hi_.load(std::memory_order_relaxed)};
  }

 private:
  static std::vector<int64_t> Negative(std::vector<int64_t> values) {
    for (int64_t& value : values) value = -value;
    return values;
  }

  const BoxRuns global_;  // the array <-> the tensor's row-major order
  const int64_t element_bytes_;
  std::atomic<uint64_t> lo_ = 0, hi_ = 0;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ELEMENTS_PLACED_DIGEST_H_
