#ifndef TESSERA_COMPUTE_KERNELS_TESTING_KERNEL_TEST_H_
#define TESSERA_COMPUTE_KERNELS_TESTING_KERNEL_TEST_H_

// The fixture of the suites that every backend passes (operations_test.cc,
// operation_details_test.cc): a backend's test target links a suite with its own
// VariantsUnderTest().

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {

// One way to run the backend under test: a number of threads, an instruction set, an order.
struct BackendVariant {
  std::string name;
  bool same_bits = true;  // as the first variant; or else close to the reference
  std::function<std::unique_ptr<Backend>()> make;
};

// Returns at least one variant. Defined by the backend's tests.
std::vector<BackendVariant> VariantsUnderTest();

// Returns the backend of the first variant.
inline std::unique_ptr<Backend> MakeBackendUnderTest() { return VariantsUnderTest()[0].make(); }

// Runs an operation on the backend under test and on the reference, in both compute dtypes (the
// parameter).
//
// An operation is a function (backend, dtype of its outputs, dtype of its statistics) -> outputs.
// An operation allocates its outputs and takes its inputs, in the compute dtype, from the test, so
// that the reference computes from the same rounded values.
class KernelTest : public ::testing::TestWithParam<DType> {
 protected:
  struct Output {
    std::string name;
    Tensor tensor;
    double slack = 1;  // multiplies the tolerance
  };
  using Operation = std::function<std::vector<Output>(Backend&, DType output, DType statistic)>;

  DType dtype() const { return GetParam(); }

  // Returns the tolerance of an output. Outputs of the compute dtype are rounded to it, at about
  // 2^-9 in bf16; sums are fp32 everywhere, sums of whole tensors fp64.
  testing::Tolerance ToleranceOf(DType output, double slack) const {
    if (output == DType::kF64) return {.relative = 1e-13 * slack};
    if (output == DType::kBF16) return {.relative = 0.006 * slack, .of_maximum = 0.004 * slack};
    return {.relative = 2e-5 * slack, .of_maximum = 4e-6 * slack};
  }

  // Expects results close to the reference, and the same bits from all variants that promise it.
  void ExpectMatchesReference(const Operation& operation) {
    const std::vector<Output> expected = operation(*reference_, DType::kF64, DType::kF64);
    std::vector<Output> first;
    for (const BackendVariant& variant : VariantsUnderTest()) {
      const std::unique_ptr<Backend> backend = variant.make();
      std::vector<Output> outputs = operation(*backend, dtype(), DType::kF32);
      ASSERT_EQ(backend->Synchronize(), absl::OkStatus());
      ASSERT_EQ(outputs.size(), expected.size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        const Output& output = outputs[i];
        const std::string what = output.name + " on " + variant.name;
        if (variant.same_bits && !first.empty()) {
          testing::ExpectBitwiseEqual(output.tensor, first[i].tensor, what);
        } else {
          testing::ExpectClose(output.tensor, expected[i].tensor,
                               ToleranceOf(output.tensor.view().dtype(), output.slack), what);
        }
      }
      if (first.empty()) first = std::move(outputs);
    }
  }

  testing::RandomTensors random_{20241107};
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
};

inline std::string DTypeParamName(const ::testing::TestParamInfo<DType>& info) {
  return std::string(DTypeName(info.param));
}

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_TESTING_KERNEL_TEST_H_
