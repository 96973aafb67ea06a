#ifndef TESSERA_COMPUTE_KERNELS_TESTING_RANDOM_TENSORS_H_
#define TESSERA_COMPUTE_KERNELS_TESTING_RANDOM_TENSORS_H_

#include <cstdint>
#include <random>

#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::testing {

// Random operands for one test. The seed is written to the test's log; the environment variable
// TESSERA_TEST_SEED overrides it, so that a failure can be repeated and a suite run with new
// numbers. Values are drawn in fp64 and rounded to the dtype.
class RandomTensors {
 public:
  explicit RandomTensors(uint64_t seed);

  uint64_t seed() const { return seed_; }

  Tensor Normal(DType dtype, Shape shape, double mean = 0, double deviation = 1);
  Tensor Uniform(DType dtype, Shape shape, double low, double high);
  // Returns an I32 tensor, uniform in [low, high).
  Tensor Ids(Shape shape, int64_t low, int64_t high);
  // Returns an integer, uniform in [low, high).
  int64_t Integer(int64_t low, int64_t high);

 private:
  uint64_t seed_;
  std::mt19937_64 generator_;
};

// Returns a contiguous copy in another dtype (or the same), rounded to nearest even.
Tensor Converted(const TensorView& x, DType dtype);
// Returns a contiguous copy, bit for bit.
Tensor Cloned(const TensorView& x);

}  // namespace tessera::testing

#endif  // TESSERA_COMPUTE_KERNELS_TESTING_RANDOM_TENSORS_H_
