#ifndef TESSERA_COMPUTE_KERNELS_CUDA_PHILOX_DEVICE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_PHILOX_DEVICE_H_

// The dropout masks of compute/random/philox.h inside kernels, bit for bit.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/cuda/simt.h"
#include "compute/random/philox.h"

namespace tessera::cuda {

TESSERA_DEVICE uint64_t SplitMixOnDevice(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The constants that the samples of one call have in common.
struct DropoutKey {
  uint32_t key0, key1;
  uint64_t stream;
  uint32_t threshold;  // on the upper 24 bits of the random word: below it, dropped
  float factor;        // of kept elements
};

inline DropoutKey MakeDropoutKey(const RandomStream& stream, double probability) {
  CHECK(probability >= 0 && probability < 1) << probability;
  const uint64_t key = MixCoordinates(stream.seed, static_cast<uint32_t>(stream.use));
  return {.key0 = static_cast<uint32_t>(key),
          .key1 = static_cast<uint32_t>(key >> 32),
          .stream = stream.stream,
          .threshold = static_cast<uint32_t>(std::ceil(probability * 0x1p24)),
          .factor = static_cast<float>(1.0 / (1.0 - probability))};
}

// The factors of one sample's elements, four at a time.
class DropoutFactors {
 public:
  TESSERA_DEVICE DropoutFactors(const DropoutKey& key, int64_t sample)
      : key_(key),
        stream_(SplitMixOnDevice(SplitMixOnDevice(key.stream) + static_cast<uint64_t>(sample))) {}

  // Returns 0 or 1 / (1 - probability). Cheap if `element` is in the same four as the last one.
  TESSERA_DEVICE float Of(uint64_t element) {
    if (block_ != element / 4) MakeBlock(element / 4);
    const uint32_t low = element % 2 == 0 ? word0_ : word1_;
    const uint32_t high = element % 2 == 0 ? word2_ : word3_;
    const uint32_t word = element % 4 < 2 ? low : high;
    return (word >> 8) < key_.threshold ? 0.0f : key_.factor;
  }

 private:
  TESSERA_DEVICE void MakeBlock(uint64_t block) {
    block_ = block;
    uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
    uint32_t c2 = static_cast<uint32_t>(stream_), c3 = static_cast<uint32_t>(stream_ >> 32);
    uint32_t key0 = key_.key0, key1 = key_.key1;
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0;
      const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
      c3 = static_cast<uint32_t>(p0);
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    word0_ = c0;
    word1_ = c1;
    word2_ = c2;
    word3_ = c3;
  }

  DropoutKey key_;
  uint64_t stream_;
  uint64_t block_ = ~uint64_t{0};
  uint32_t word0_ = 0, word1_ = 0, word2_ = 0, word3_ = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_PHILOX_DEVICE_H_
