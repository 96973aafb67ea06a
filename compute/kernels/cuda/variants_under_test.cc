// The simulated device, with two orders of blocks and threads.

#include <cstdint>
#include <string>
#include <vector>

#include "compute/kernels/cuda/testing/simulated_backend.h"
#include "compute/kernels/testing/kernel_test.h"

namespace tessera {

std::vector<BackendVariant> VariantsUnderTest() {
  std::vector<BackendVariant> variants;
  for (uint64_t seed : {1, 2}) {
    variants.push_back({"order " + std::to_string(seed), true,
                        [seed] { return cuda::MakeSimulatedBackend({.seed = seed}); }});
  }
  return variants;
}

}  // namespace tessera
