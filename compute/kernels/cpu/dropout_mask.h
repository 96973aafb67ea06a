#ifndef TESSERA_COMPUTE_KERNELS_CPU_DROPOUT_MASK_H_
#define TESSERA_COMPUTE_KERNELS_CPU_DROPOUT_MASK_H_

#include <cstdint>

#include "compute/random/philox.h"

namespace tessera {

// Decides which elements of one sample a dropout keeps, and by what it multiplies them. An element
// is kept if RandomUniform(stream, index) >= probability, which is computed for sixteen Philox
// blocks at a time.
class DropoutMask {
 public:
  // `stream` is the one before the sample is mixed in.
  DropoutMask(const RandomStream& stream, int64_t sample, double probability);

  // Sets out[i] to 0 or 1 / (1 - probability), for the elements [first, first + count) of the
  // sample.
  void Factors(uint64_t first, int64_t count, float* out) const;

  struct Constants {
    uint32_t key0, key1, stream_low, stream_high;
    uint32_t threshold;  // on the upper 24 bits of the word
    float factor;
  };

 private:
  Constants constants_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_DROPOUT_MASK_H_
