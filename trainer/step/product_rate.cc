#include "trainer/step/product_rate.h"

#include <algorithm>
#include <cstdint>

#include "base/status_macros.h"
#include "base/steady_time.h"
#include "compute/random/philox.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

constexpr int64_t kLeastSide = 256, kLargestSide = 8192;
constexpr int64_t kRandomRows = 64;  // which are repeated
constexpr int kMaxRounds = 12, kMaxProducts = 16;
// Limits of a single product, as far as it can be predicted, and of all rounds of one side.
constexpr double kMaxSecondsOfAProduct = 0.1, kMaxSecondsOfASide = 0.1;
constexpr double kSecondsOfARound = 0.005;

double Flops(int64_t side) {
  return 2 * static_cast<double>(side) * static_cast<double>(side * side);
}

// In [-1, 1).
void FillRandomly(Backend& backend, uint64_t stream, const TensorView& x) {
  const RandomStream random{.seed = 1, .use = RandomUse::kDataOrder, .stream = stream};
  const Tensor host(DType::kF32, {kRandomRows, x.dim(1)});
  float* const values = host.view().as<float>();
  for (int64_t i = 0; i < host.view().elements(); ++i) {
    const double word = RandomWord(random, static_cast<uint64_t>(i));
    values[i] = static_cast<float>(word * 0x1p-31 - 1);
  }
  const Tensor rows(DType::kF32, host.view().shape(), backend.device());
  backend.Upload(values, rows);
  for (int64_t row = 0; row < x.dim(0); row += kRandomRows) {
    backend.Copy({rows, x.Slice(0, row, row + kRandomRows)});
  }
}

// Returns the best rate of one side, given that of smaller sides or 0.
absl::StatusOr<double> RateOf(Backend& backend, DType dtype, int64_t side, double smaller_rate) {
  AllocationScope allocations;
  const Tensor x(dtype, {side, side}, backend.device()), w(dtype, {side, side}, backend.device());
  const Tensor y(dtype, {side, side}, backend.device());
  TESSERA_RETURN_IF_ERROR(allocations.End());
  FillRandomly(backend, 1, x);
  FillRandomly(backend, 2, w);
  const int products = static_cast<int>(
      std::clamp(kSecondsOfARound * smaller_rate / Flops(side), 1.0, double{kMaxProducts}));
  double best_seconds = 1e9;
  absl::Duration first_start;
  for (int round = -1; round < kMaxRounds; ++round) {
    TESSERA_RETURN_IF_ERROR(backend.Synchronize());
    const absl::Duration start = SteadyNow();
    if (round <= 0) first_start = start;
    // The first round chooses the product's algorithm and touches its memory.
    for (int i = 0; i < (round < 0 ? 1 : products); ++i) {
      backend.MatMul({x, w.view().Transpose(0, 1), y, /*accumulate=*/false});
    }
    TESSERA_RETURN_IF_ERROR(backend.Synchronize());
    if (round >= 0) best_seconds = std::min(best_seconds, SecondsSince(start) / products);
    if (round >= 0 && SecondsSince(first_start) > kMaxSecondsOfASide) break;
  }
  return Flops(side) / best_seconds;
}

}  // namespace

absl::StatusOr<double> MeasureProductRate(Backend& backend, DType dtype) {
  double best = 0;
  for (int64_t side = kLeastSide; side <= kLargestSide; side *= 2) {
    if (best > 0 && Flops(side) / best > kMaxSecondsOfAProduct) break;
    const absl::StatusOr<double> rate = RateOf(backend, dtype, side, best);
    if (absl::IsResourceExhausted(rate.status())) break;
    TESSERA_RETURN_IF_ERROR(rate.status());
    best = std::max(best, *rate);
  }
  return best;
}

}  // namespace tessera
