#ifndef TESSERA_CHECKPOINT_FORMAT_DIGEST_H_
#define TESSERA_CHECKPOINT_FORMAT_DIGEST_H_

#include <cstddef>
#include <cstdint>

#include "checkpoint/layout/copy_box.h"

namespace tessera::ckpt {

// Layout-independent digest of a logical tensor: a sum over its elements of a hash of (row-major
// global index, bits), so that digests of disjoint boxes add up to the digest of their union,
// whoever computes them and in whatever order. FORMAT.md, "Logical digest", has the formula. It
// finds accidents, not forgeries.
struct LogicalDigest {
  uint64_t lo = 0;
  uint64_t hi = 0;

  LogicalDigest& operator+=(const LogicalDigest& other) {
    lo += other.lo;
    hi += other.hi;
    return *this;
  }
  bool operator==(const LogicalDigest&) const = default;
};

// Digest of `count` elements with consecutive indices from `first_index` on. `data` needs no
// alignment. Precondition: element_bytes is 1, 2, 4 or 8. Threads: safe.
LogicalDigest DigestRun(uint64_t first_index, const void* data, size_t count, size_t element_bytes);

// The same of what it copies to `to` on the way. Cost: little more than that of the digest; the copy
// goes past the cache, where `to` is aligned for elements, and the elements at `data` are in it.
LogicalDigest CopyAndDigestRun(uint64_t first_index, const void* data, void* to, size_t count,
                               size_t element_bytes);

// Digest of the elements of view.box, a box of a tensor of the given shape. NaNs are bits like any
// others. Precondition: the box lies inside the shape; element_bytes as above. Threads: safe.
LogicalDigest DigestBox(const Shape& global_shape, const ConstBoxView& view, size_t element_bytes);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_DIGEST_H_
