#ifndef TESSERA_CHECKPOINT_FORMAT_DIGEST_H_
#define TESSERA_CHECKPOINT_FORMAT_DIGEST_H_

#include <cstddef>
#include <cstdint>

namespace tessera::ckpt {

// Layout-independent digest of a logical tensor: a sum over its elements of a hash of (row-major
// global index, bits). Digests of disjoint boxes add up to the digest of their union, whichever
// ranks compute them and in whatever order. FORMAT.md, "Logical digest", has the formula. Detects
// accidents, not forgeries.
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

// Returns the digest of `count` elements with consecutive indices from `first_index` on. `data`
// needs no alignment. Precondition: element_bytes is 1, 2, 4 or 8. Threads: safe.
LogicalDigest DigestRun(uint64_t first_index, const void* data, size_t count, size_t element_bytes);

// Returns the digest of DigestRun(), and copies the elements to `to`. Cost: little more than that
// of the digest. If `to` is aligned for elements, the copy bypasses the cache; the elements at
// `data` stay in the cache.
LogicalDigest CopyAndDigestRun(uint64_t first_index, const void* data, void* to, size_t count,
                               size_t element_bytes);

// Returns the digest of DigestRun(), and extends `crc32c` (base/crc32c.h) by the elements' bytes,
// in one pass. The checksum takes hardly any time beside the digest if the processor has the
// instruction (from SSE4 on).
LogicalDigest ChecksumRun(uint64_t first_index, const void* data, size_t count,
                          size_t element_bytes, uint32_t& crc32c);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_DIGEST_H_
