// 1, 2, 3 and 5 threads, and every instruction set: the same bits. Products of our own, close ones.

#include <hwy/highway.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_level.h"
#include "base/for_each_target.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/dnnl_gemm.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/testing/kernel_test.h"

namespace tessera {

std::vector<BackendVariant> VariantsUnderTest() {
  SetUsableTargetsForTest(0);
  std::vector<BackendVariant> variants;
  const auto add = [&](const std::string& name, bool same, int64_t target, int threads,
                       GemmKind products) {
    variants.push_back({name, same, [=]() -> std::unique_ptr<Backend> {
                          SetUsableTargetsForTest(target);
                          return std::make_unique<CpuBackend>(threads, products);
                        }});
  };
  for (int threads : {1, 2, 3, 5}) {
    add(std::to_string(threads) + " threads", true, 0, threads, GemmKind::kFast);
  }
  // Our fast products have other bits without fused multiply-adds.
  for (const int64_t target : TargetsUnderTest()) {
    add(hwy::TargetName(target), target <= HWY_AVX2 || DnnlHasBf16(), target, 1, GemmKind::kFast);
  }
  add("own products", false, 0, 3, GemmKind::kOwn);
  return variants;
}

}  // namespace tessera
