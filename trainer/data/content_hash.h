#ifndef TESSERA_TRAINER_DATA_CONTENT_HASH_H_
#define TESSERA_TRAINER_DATA_CONTENT_HASH_H_

#include <cstdint>
#include <span>

namespace tessera {

// Hashes bytes in order, as little-endian words: the same on every machine. Distinguishes contents,
// but does not resist an adversary.
class ContentHash {
 public:
  void Add(uint64_t value);
  // The hash does not depend on how the bytes are split over successive calls.
  void Add(std::span<const uint8_t> bytes);
  uint64_t Finish();

 private:
  uint64_t hash_ = 0;
  uint64_t pending_ = 0;
  int pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

// Data sets whose fingerprints differ are different. Equal complete fingerprints mean equal data;
// with equal sampled ones (TokenFile::SampledFingerprint) the data may differ between the samples.
struct DataFingerprint {
  uint64_t sampled = 0;
  uint64_t complete = 0;  // 0: unknown, because a shard has no checksums
};

// Compares what is known of both: the complete fingerprints where both have one.
inline bool MayBeSameData(const DataFingerprint& a, const DataFingerprint& b) {
  if (a.complete != 0 && b.complete != 0) return a.complete == b.complete;
  return a.sampled == b.sampled;
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_CONTENT_HASH_H_
