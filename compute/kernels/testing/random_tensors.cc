#include "compute/kernels/testing/random_tensors.h"

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <utility>

#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/reference_backend.h"

namespace tessera::testing {
namespace {

uint64_t ChooseSeed(uint64_t seed) {
  const char* wanted = std::getenv("TESSERA_TEST_SEED");
  if (wanted != nullptr) seed = std::strtoull(wanted, nullptr, 10);
  std::cerr << "random tensors: TESSERA_TEST_SEED=" << seed << "\n";
  return seed;
}

// A contiguous tensor whose elements are draw(), rounded to dtype.
template <typename Draw>
Tensor Filled(DType dtype, Shape shape, Draw draw) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.view().elements(); ++i) reference::StoreElement(tensor, i, draw());
  return tensor;
}

}  // namespace

RandomTensors::RandomTensors(uint64_t seed) : seed_(ChooseSeed(seed)), generator_(seed_) {}

// Draws the numbers of std::normal_distribution in GCC's library. That one computes two logarithms
// in extended precision for each of them, which takes longer than many operations under test.
Tensor RandomTensors::Normal(DType dtype, Shape shape, double mean, double deviation) {
  std::optional<double> other;
  const auto uniform = [&] { return 2.0 * (static_cast<double>(generator_()) * 0x1p-64) - 1.0; };
  return Filled(dtype, std::move(shape), [&] {
    if (other.has_value()) return *std::exchange(other, std::nullopt) * deviation + mean;
    double x, y, square;
    do {
      x = uniform();
      y = uniform();
      square = x * x + y * y;
    } while (square > 1.0 || square == 0.0);
    const double factor = std::sqrt(-2.0 * std::log(square) / square);
    other = x * factor;
    return y * factor * deviation + mean;
  });
}

Tensor RandomTensors::Uniform(DType dtype, Shape shape, double low, double high) {
  std::uniform_real_distribution<double> distribution(low, high);
  return Filled(dtype, std::move(shape), [&] { return distribution(generator_); });
}

Tensor RandomTensors::Ids(Shape shape, int64_t low, int64_t high) {
  return Filled(DType::kI32, std::move(shape), [&] { return Integer(low, high); });
}

int64_t RandomTensors::Integer(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high - 1)(generator_);
}

Tensor Converted(const TensorView& x, DType dtype) {
  Tensor copy(dtype, x.shape());
  MakeReferenceBackend()->Copy({x, copy});
  return copy;
}

Tensor Cloned(const TensorView& x) { return Converted(x, x.dtype()); }

}  // namespace tessera::testing
