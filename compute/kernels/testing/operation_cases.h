#ifndef TESSERA_COMPUTE_KERNELS_TESTING_OPERATION_CASES_H_
#define TESSERA_COMPUTE_KERNELS_TESTING_OPERATION_CASES_H_

// A table of examples of every operation, on which each backend is compared with the reference, and
// with itself in other orders, on other processors and in parts.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::testing {

struct CaseOperand {
  enum Extent {
    kWhole,   // the same whichever rows are computed: weights
    kRows,    // dim 0 is the rows
    kMatrix,  // likewise, and may be a part of wider rows
    kSum,     // written, over all rows
  };
  std::string name;
  Tensor value;  // before the operations
  Extent extent = kWhole;
  // 0 if the operand is only read; otherwise it is written, and this is the factor of the
  // tolerance.
  double slack = 0;
};

// The operands of a run by name, in the memory of one backend.
class CaseViews {
 public:
  CaseViews(std::span<const CaseOperand> operands, std::span<const TensorView> views)
      : operands_(operands), views_(views) {}
  const TensorView& operator[](std::string_view name) const;

 private:
  std::span<const CaseOperand> operands_;
  std::span<const TensorView> views_;
};

struct OperationCase {
  std::string name;
  std::vector<CaseOperand> operands;
  // first_row: the row of the whole operands at which the kRows and kMatrix operands begin.
  std::function<void(Backend& backend, const CaseViews& x, int64_t first_row)> run;
  // Whether a row has the same bits whichever others are computed with it.
  bool by_row = false;
  // When results are compared with the reference, which does not round intermediate results: not in
  // bf16 if a backend rounds them to it; never if they are below the smallest normal number.
  enum { kAlways, kInF32, kNever } compared = kAlways;

  OperationCase& In(std::string operand, Tensor value,
                    CaseOperand::Extent extent = CaseOperand::kMatrix) {
    operands.push_back({std::move(operand), std::move(value), extent, 0});
    return *this;
  }
  OperationCase& Out(std::string operand, Tensor value,
                     CaseOperand::Extent extent = CaseOperand::kMatrix, double slack = 1) {
    operands.push_back({std::move(operand), std::move(value), extent, slack});
    return *this;
  }
};

// Runs a case on copies of its operands, which are in the backend's memory, and returns them.
std::vector<Tensor> RunCase(const OperationCase& one, Backend& backend);

// Returns the cases of every operation, in a compute dtype. Operands that are written begin as
// random numbers.
std::vector<OperationCase> OperationCases(DType dtype, RandomTensors& random);

}  // namespace tessera::testing

#endif  // TESSERA_COMPUTE_KERNELS_TESTING_OPERATION_CASES_H_
