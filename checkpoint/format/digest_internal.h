#ifndef TESSERA_CHECKPOINT_FORMAT_DIGEST_INTERNAL_H_
#define TESSERA_CHECKPOINT_FORMAT_DIGEST_INTERNAL_H_

// The hash of one element, as specified by FORMAT.md, "Logical digest". Digests are on users'
// disks: never change it.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checkpoint/format/digest.h"

namespace tessera::ckpt::internal {

inline constexpr uint64_t kDigestKey = 0x243F6A8885A308D3;          // pi
inline constexpr uint64_t kDigestIndexFactor = 0x9E3779B97F4A7C15;  // golden ratio
inline constexpr uint64_t kDigestMix1 = 0xFF51AFD7ED558CCD;         // MurmurHash3's fmix64
inline constexpr uint64_t kDigestMix2 = 0xC4CEB9FE1A85EC53;

// Distance of prefetching. The arithmetic fills the processor's window of instructions, so that few
// loads are in flight without prefetching. On a Sapphire Rapids with AVX-512, the digest of
// uncached data then takes 2.7 times as long; with a quarter of the distance, it is slower by a
// fifth.
inline constexpr size_t kDigestPrefetchBytes = 4096;

// The unit in which memory is fetched, and copied past the cache.
inline constexpr size_t kLineBytes = 64;

// Returns the part of the hash that depends on the index alone: it differs by a constant between
// neighbours, so that loops can add.
inline uint64_t DigestIndexTerm(uint64_t index) { return index * kDigestIndexFactor + kDigestKey; }

inline void DigestElement(uint64_t index_term, uint64_t bits, LogicalDigest& digest) {
  uint64_t z = index_term ^ bits;
  z ^= z >> 33;
  z *= kDigestMix1;
  z ^= z >> 33;
  z *= kDigestMix2;
  z ^= z >> 33;
  digest.lo += z;
  digest.hi += (z & 0xFFFFFFFF) * (z >> 32);
}

template <typename Word>
LogicalDigest DigestScalarRun(uint64_t first_index, const void* data, size_t count) {
  LogicalDigest digest;
  uint64_t index_term = DigestIndexTerm(first_index);
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < count; ++i, at += sizeof(Word), index_term += kDigestIndexFactor) {
    Word bits;
    std::memcpy(&bits, at, sizeof(bits));
    DigestElement(index_term, bits, digest);
  }
  return digest;
}

}  // namespace tessera::ckpt::internal

#endif  // TESSERA_CHECKPOINT_FORMAT_DIGEST_INTERNAL_H_
