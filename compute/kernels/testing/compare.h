#ifndef TESSERA_COMPUTE_KERNELS_TESTING_COMPARE_H_
#define TESSERA_COMPUTE_KERNELS_TESTING_COMPARE_H_

// Comparison of tensors in tests. A failure is reported at the caller's line, once per tensor, with
// the worst element, the number of wrong elements and the overall errors.

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace tessera::testing {

// The tolerance of a comparison. An element passes when |actual - expected| <= absolute + relative
// |expected| + of_maximum max |expected|. NaN equals NaN only, an infinity itself only.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
  double of_maximum = 0;  // for sums that cancel: relative to the largest element
};

struct Difference {
  double max_absolute = 0;     // max |actual - expected|
  double max_relative = 0;     // max |actual - expected| / |expected|, elements with expected != 0
  double max_expected = 0;     // max |expected|
  int64_t wrong_elements = 0;  // outside the tolerance
  int64_t worst_element = -1;  // the one farthest outside, as a row-major index; -1: none
};

// Compares tensors of any dtypes and strides. Precondition: equal shapes.
Difference Compare(const TensorView& actual, const TensorView& expected,
                   const Tolerance& tolerance);

// Returns one element, by its indices, as a double.
double At(const TensorView& x, const std::vector<int64_t>& indices);

// Expects tensors to be equal within the tolerance. `what` names the tensor in the message. The
// compiler fills in the last two parameters.
void ExpectClose(const TensorView& actual, const TensorView& expected, const Tolerance& tolerance,
                 const std::string& what = "tensor", const char* file = __builtin_FILE(),
                 int line = __builtin_LINE());

// Expects the same dtype, shape and bits: -0 and 0 differ, a NaN equals itself.
void ExpectBitwiseEqual(const TensorView& actual, const TensorView& expected,
                        const std::string& what = "tensor", const char* file = __builtin_FILE(),
                        int line = __builtin_LINE());

}  // namespace tessera::testing

#endif  // TESSERA_COMPUTE_KERNELS_TESTING_COMPARE_H_
