#ifndef TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_KERNELS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_KERNELS_H_

// The operations of Backend that are kernels of our own, on a GPU or on the simulated device. They
// are defined in the files of this folder.

#include <cstdint>
#include <memory>
#include <span>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Calls V(type of the result, name) for the operations that EXACT numerics round differently: as
// processors do (docs/exact.md), in fp32. All other operations except products have the bits of
// processors anyway.
#define TESSERA_EXACT_OPERATIONS(V) \
  V(void, SumRows)                  \
  V(void, LayerNormForward)         \
  V(void, LayerNormBackward)        \
  V(void, RmsNormForward)           \
  V(void, RmsNormBackward)          \
  V(void, AddLayerNormForward)      \
  V(void, AddRmsNormForward)        \
  V(void, GeluForward)              \
  V(void, GeluBackward)             \
  V(void, SwiGluForward)            \
  V(void, SwiGluBackward)           \
  V(void, AttentionForward)         \
  V(void, AttentionBackward)        \
  V(void, CrossEntropyStats)        \
  V(void, CrossEntropyLoss)         \
  V(void, CrossEntropyBackward)     \
  V(void, CrossEntropyGradient)

// The ways in which attention is computed: as in ProductChoices.
struct AttentionChoices {
  bool at_once = false;
  bool warpgroups = false;
  bool gradients_by_warpgroups = false;
};

// Operations are queued on one stream. Every sum has a fixed order, a function of shapes alone. A
// derived class adds matrix products and memory, and reports the errors of launches.
class DeviceKernels : public Backend, protected OperationObserver {
 protected:
  using Backend::Run;
  TESSERA_LOOP_OPERATIONS(TESSERA_DECLARE_RUN)
  void Run(const ops::AddLayerNormForward& op) override;
  void Run(const ops::AddRmsNormForward& op) override;
  // Updates up to 48 parts in one launch.
  void Run(const ops::AdamWAll& op) override;
  // Runs all three steps in one launch.
  void Run(const ops::CrossEntropyGradient& op) override;

  DeviceKernels(simt::Stream stream, const AttentionChoices& attention)
      : stream_(stream), attention_(attention) {}

  // Returns device memory for the running operation, aligned to 256 bytes. The next call may return
  // the same memory, so an operation takes all it needs at once. Used on the stream only. Null if
  // too little memory is left: the error is kept, and the operation does nothing.
  virtual void* Scratch(int64_t bytes) = 0;
  // Copies device memory to the host, after all queued work, and waits for the copy.
  virtual void CopyToHost(const void* from, int64_t bytes, void* to) = 0;
  // Does the same without waiting: the bytes are there when Synchronize() has returned.
  virtual void CopyToHostLater(const void* from, int64_t bytes, std::shared_ptr<void> to) = 0;

  // Compute fp32 operands with the bits that processors compute in EXACT numerics.
  void RunInChains(const ops::MatMul& op);
#define TESSERA_DECLARE_EXACT(Result, Name) Result RunExact(const ops::Name& op);
  TESSERA_EXACT_OPERATIONS(TESSERA_DECLARE_EXACT)
#undef TESSERA_DECLARE_EXACT
  // gradient[R,C] *= the derivative of GELU at x[R,C], and sums[C] (fp32) = the sums of its rows (+
  // sums when accumulate), in one pass; the bits of GeluBackward and SumRows.
  void GeluBackwardAndSum(const TensorView& x, const TensorView& gradient, const TensorView& sums,
                          bool accumulate);
  // x[R,C] += bias[C], by row; each fp32 or bf16.
  void AddBiasTo(const TensorView& bias, const TensorView& x);

 private:
  simt::Stream stream() const { return stream_; }
  template <typename T>
  T* Scratch(int64_t count) {
    return static_cast<T*>(Scratch(count * static_cast<int64_t>(sizeof(T))));
  }
  // Sets sums[i] to the sum of the elements of tensors[i], or of their squares. Waits for the sums,
  // unless `later` is given: it then gets the sum of the one tensor when Synchronize() returns.
  void SumAll(std::span<const TensorView> tensors, int64_t block, bool squares,
              std::span<double> sums, const std::shared_ptr<double>& later = nullptr);

  simt::Stream stream_;
  const AttentionChoices attention_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_KERNELS_H_
