#include "trainer/app/gemm_peak.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "base/steady_time.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

constexpr int64_t kLongestSide = 4096;
constexpr int kMaxRuns = 12;
// Limits of a single run, as far as it can be predicted, and of all runs of one product.
constexpr double kMaxSecondsOfARun = 0.1, kMaxSecondsOfAProduct = 0.1;

absl::StatusOr<double> BestRate(Backend& backend, DType dtype, const ProductSize& size) {
  const Device device = backend.device();
  AllocationScope allocations;
  const Tensor x(dtype, {size.m, size.k}, device), w(dtype, {size.n, size.k}, device);
  const Tensor y(dtype, {size.m, size.n}, device);
  TESSERA_RETURN_IF_ERROR(allocations.End());
  backend.Fill({x, 0.5});
  backend.Fill({w, 0.25});
  double best_seconds = 1e9;
  absl::Duration first_start;
  for (int run = -1; run < kMaxRuns; ++run) {
    const absl::Duration start = SteadyNow();
    if (run <= 0) first_start = start;
    backend.MatMul({x, w.view().Transpose(0, 1), y, /*accumulate=*/false});
    TESSERA_RETURN_IF_ERROR(backend.Synchronize());
    // The first run creates the product and touches its memory.
    if (run >= 0) best_seconds = std::min(best_seconds, SecondsSince(start));
    if (run >= 0 && SecondsSince(first_start) > kMaxSecondsOfAProduct) break;
  }
  return size.flops() / best_seconds;
}

}  // namespace

absl::StatusOr<double> MeasureGemmPeak(Backend& backend, DType dtype,
                                       std::span<const ProductSize> model) {
  std::vector<ProductSize> sizes = {{256, 256, 256}, {512, 512, 512}, {1024, 1024, 1024}};
  for (const ProductSize& size : model) {
    sizes.push_back({std::min(size.m, kLongestSide), std::min(size.n, kLongestSide),
                     std::min(size.k, kLongestSide)});
  }
  // From fast to slow, so that the slowest are the ones left out.
  std::ranges::sort(sizes, {}, &ProductSize::flops);
  double best = 0;
  for (const ProductSize& size : sizes) {
    if (best > 0 && size.flops() / best > kMaxSecondsOfARun) break;
    const absl::StatusOr<double> rate = BestRate(backend, dtype, size);
    if (absl::IsResourceExhausted(rate.status()) && best > 0) break;
    TESSERA_RETURN_IF_ERROR(rate.status());
    best = std::max(best, *rate);
  }
  return best;
}

}  // namespace tessera
