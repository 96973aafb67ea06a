#ifndef TESSERA_COMPUTE_KERNELS_FIXED_RESULTS_H_
#define TESSERA_COMPUTE_KERNELS_FIXED_RESULTS_H_

#include <cstdint>

#include "compute/kernels/backend.h"

namespace tessera {

// Hashes of a backend's results for fixed operands.
struct FixedResults {
  uint64_t products_hash = 0;  // of matrix products and attention
  uint64_t loops_hash = 0;     // of the remaining operations

  bool operator==(const FixedResults&) const = default;
};

// Computes fixed examples in fp32 and bf16: products have shapes that use packed and blocked code
// paths, long sums among them, because how these are split depends on instruction set, caches and
// version of the library.
FixedResults ComputeFixedResults(Backend& backend);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_FIXED_RESULTS_H_
