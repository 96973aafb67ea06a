#ifndef TESSERA_TRAINER_DATA_DATA_FINGERPRINT_H_
#define TESSERA_TRAINER_DATA_DATA_FINGERPRINT_H_

#include <cstdint>

namespace tessera {

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

#endif  // TESSERA_TRAINER_DATA_DATA_FINGERPRINT_H_
