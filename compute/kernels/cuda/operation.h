#ifndef TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_

#include <array>
#include <string>

#include "compute/kernels/cuda/simt_common.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

// An operation of Backend, named with the shapes of its first operands by errors of the launches
// that follow in the same scope. The operands must outlive it.
class Operation final : private simt::LaunchScope {
 public:
  template <typename... Views>
  explicit Operation(const char* name, const Views&... operands)
      : name_(name), operands_{&operands...} {
    static_assert(sizeof...(operands) <= kMaxOperands);
  }

 private:
  static constexpr int kMaxOperands = 4;

  std::string Describe() const override {
    std::string text = name_;
    const char* before = " of ";
    for (const TensorView* operand : operands_) {
      if (operand == nullptr) break;
      text += before + ToString(operand->shape());
      before = ", ";
    }
    return text;
  }

  const char* const name_;
  const std::array<const TensorView*, kMaxOperands> operands_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_
