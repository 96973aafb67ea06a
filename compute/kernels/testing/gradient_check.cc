#include "compute/kernels/testing/gradient_check.h"

#include <glog/logging.h>

#include <algorithm>
#include <vector>

#include "compute/kernels/reference/array.h"
#include "compute/kernels/testing/compare.h"
#include "layout/dtype.h"

namespace tessera::testing {

void ExpectGradient(const std::function<double()>& loss, const TensorView& x,
                    const TensorView& gradient, const std::string& what,
                    const GradientCheckOptions& options, const char* file, int line) {
  CHECK(x.dtype() == DType::kF64) << "finite differences need fp64, not " << DTypeName(x.dtype());
  CHECK(x.shape() == gradient.shape())
      << ShapeToString(x.shape()) << ShapeToString(gradient.shape());
  const std::vector<int64_t> x_offsets = reference::ElementOffsets(x);
  const std::vector<int64_t> gradient_offsets = reference::ElementOffsets(gradient);
  const int64_t count = static_cast<int64_t>(x_offsets.size());
  const int64_t checked = std::min(count, options.max_elements);
  Tensor actual(DType::kF64, {checked}), expected(DType::kF64, {checked});
  for (int64_t i = 0; i < checked; ++i) {
    const int64_t element = i * count / checked;
    double& value = x.as<double>()[x_offsets[element]];
    const double original = value, h = options.step;
    const auto loss_at = [&](double shift) {
      value = original + shift;
      const double result = loss();
      value = original;
      return result;
    };
    const double difference =
        (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
    expected.view().as<double>()[i] = difference;
    actual.view().as<double>()[i] = reference::LoadElement(gradient, gradient_offsets[element]);
  }
  ExpectClose(actual, expected, {.absolute = options.absolute, .of_maximum = options.tolerance},
              "gradient of " + what + " (elements checked)", file, line);
}

}  // namespace tessera::testing
