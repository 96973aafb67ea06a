#ifndef TESSERA_TRAINER_DATA_DATA_FINGERPRINT_H_
#define TESSERA_TRAINER_DATA_DATA_FINGERPRINT_H_

#include <cstdint>

namespace tessera {

// Two data sets with other numbers are different. With the same complete fingerprint they are equal;
// with the same sampled one (TokenFile::SampledFingerprint) they may differ between the samples.
struct DataFingerprint {
  uint64_t sampled = 0;
  uint64_t complete = 0;  // 0: unknown, because a shard has no checksums
};

// Whether all that both say is the same: the complete fingerprints where both are known.
inline bool MayBeSameData(const DataFingerprint& a, const DataFingerprint& b) {
  if (a.complete != 0 && b.complete != 0) return a.complete == b.complete;
  return a.sampled == b.sampled;
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_DATA_FINGERPRINT_H_
