#ifndef TESSERA_TRAINER_KERNELS_CPU_KERNEL_TEST_H_
#define TESSERA_TRAINER_KERNELS_CPU_KERNEL_TEST_H_

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/kernels/backend.h"
#include "trainer/kernels/cpu/cpu_backend.h"
#include "trainer/kernels/reference/reference_backend.h"
#include "trainer/kernels/testing/compare.h"
#include "trainer/kernels/testing/random_tensors.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// Runs an operation on the CPU backend and on the reference, in both compute dtypes (the
// parameter).
//
// An operation is a function (backend, dtype of its outputs, dtype of its statistics) -> outputs.
// It allocates its outputs itself and takes its inputs, in the compute dtype, from the test: the
// reference computes from the same rounded values.
class KernelTest : public ::testing::TestWithParam<DType> {
 protected:
  struct Output {
    std::string name;
    Tensor tensor;
    double slack = 1;  // multiplies the tolerance
  };
  using Operation = std::function<std::vector<Output>(Backend&, DType output, DType statistic)>;

  DType dtype() const { return GetParam(); }

  // Outputs of the compute dtype are rounded to it, at about 2^-9 in bf16; sums are fp32
  // everywhere.
  testing::Tolerance ToleranceOf(DType output, double slack) const {
    if (output == DType::kBF16) return {.relative = 0.006 * slack, .of_maximum = 0.004 * slack};
    return {.relative = 2e-5 * slack, .of_maximum = 4e-6 * slack};
  }

  // Expects the same bits from 1, 2, 3 and 5 threads, and results close to the reference on every
  // target.
  void ExpectMatchesReference(const Operation& operation) {
    hwy::SetSupportedTargetsForTest(0);
    const std::vector<Output> expected = operation(*reference_, DType::kF64, DType::kF64);
    std::vector<Output> first;
    for (int threads : {1, 2, 3, 5}) {
      const std::unique_ptr<Backend> backend = MakeCpuBackend(threads);
      std::vector<Output> outputs = operation(*backend, dtype(), DType::kF32);
      ASSERT_EQ(outputs.size(), expected.size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        const Output& output = outputs[i];
        if (threads == 1) {
          testing::ExpectClose(output.tensor, expected[i].tensor,
                               ToleranceOf(output.tensor.view().dtype(), output.slack),
                               output.name);
        } else {
          testing::ExpectBitwiseEqual(output.tensor, first[i].tensor,
                                      output.name + " on " + std::to_string(threads) + " threads");
        }
      }
      if (threads == 1) first = std::move(outputs);
    }
    for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
      const std::vector<Output> outputs = operation(*backend, dtype(), DType::kF32);
      for (size_t i = 0; i < outputs.size(); ++i) {
        const std::string what = outputs[i].name + " on " + hwy::TargetName(target);
        if (target <= HWY_AVX2) {
          testing::ExpectBitwiseEqual(outputs[i].tensor, first[i].tensor, what);
        } else {
          testing::ExpectClose(outputs[i].tensor, expected[i].tensor,
                               ToleranceOf(outputs[i].tensor.view().dtype(), outputs[i].slack),
                               what);
        }
      }
    }
    hwy::SetSupportedTargetsForTest(0);
  }

  testing::RandomTensors random_{20241107};
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
};

inline std::string DTypeParamName(const ::testing::TestParamInfo<DType>& info) {
  return std::string(DTypeName(info.param));
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_KERNEL_TEST_H_
