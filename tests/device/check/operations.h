#ifndef TESSERA_TESTS_DEVICE_CHECK_OPERATIONS_H_
#define TESSERA_TESTS_DEVICE_CHECK_OPERATIONS_H_

// Comparison of every operation of Backend on a device with the CPU.

#include <cstdint>
#include <string>
#include <vector>

#include "compute/kernels/backend.h"
#include "layout/dtype.h"

namespace tessera::testing {

struct OperationSizes {
  bool odd = true;       // those of OperationCases()
  bool typical = false;  // shapes of GPT-2 124M and Llama-3 8B
  // Compares one group alone ("Attention"), or one case of it ("Attention [2,64,2,2,64]"); empty:
  // all.
  std::string only;
};

// The result of one operation in one dtype, over all its shapes.
struct OperationResult {
  std::string name;
  DType dtype = DType::kF32;
  int64_t tensors = 0;  // compared
  // The largest error, in units of the tolerance: above 1 is wrong.
  double worst = 0;
  std::string worst_tensor;  // name and shape
  std::string error;         // of the device, which then has computed nothing
  bool passed() const { return error.empty() && worst <= 1; }
};

// Compares the operations. `device` takes operands in host memory: see MakeHostOperandBackend().
// Results in fp32 may differ by 1e-5 of the element plus as much of the tensor's largest element.
// Results that are rounded to bf16 may differ by two units in the last place of the element plus
// one of the largest.
std::vector<OperationResult> CompareOperations(Backend& device, Backend& cpu,
                                               const OperationSizes& sizes);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_OPERATIONS_H_
