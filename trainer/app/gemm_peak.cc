#include "trainer/app/gemm_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "trainer/tensor/tensor.h"

namespace tessera {

double MeasureGemmPeak(Backend& backend, DType dtype) {
  constexpr int64_t kSize = 1024;
  constexpr int kRuns = 12;
  using Clock = std::chrono::steady_clock;
  const Tensor a(dtype, {kSize, kSize}), b(dtype, {kSize, kSize}), c(dtype, {kSize, kSize});
  backend.Fill(a, 0.5);
  backend.Fill(b, 0.25);
  backend.MatMul(a, b, c, /*accumulate=*/false);
  backend.Synchronize();
  double best_seconds = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point start = Clock::now();
    backend.MatMul(a, b, c, /*accumulate=*/false);
    backend.Synchronize();
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    best_seconds = std::min(best_seconds, elapsed.count());
  }
  return 2.0 * kSize * kSize * kSize / best_seconds;
}

}  // namespace tessera
