// 1, 2, 3 and 5 threads, and every instruction set: the same bits.

#include <hwy/highway.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/testing/kernel_test.h"

namespace tessera {

std::vector<BackendVariant> VariantsUnderTest() {
  hwy::SetSupportedTargetsForTest(0);
  ApplyCpuLevelLimit();  // before the list of targets, which must not have those beyond it
  std::vector<BackendVariant> variants;
  for (int threads : {1, 2, 3, 5}) {
    variants.push_back({std::to_string(threads) + " threads", true, [threads] {
                          hwy::SetSupportedTargetsForTest(0);
                          return MakeCpuBackend(threads);
                        }});
  }
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    variants.push_back({hwy::TargetName(target), true, [target] {
                          hwy::SetSupportedTargetsForTest(target);
                          return MakeCpuBackend(1);
                        }});
  }
  return variants;
}

}  // namespace tessera
