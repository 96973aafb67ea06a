#ifndef TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_KERNELS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_KERNELS_H_

// The operations of Backend that are kernels of our own, on a GPU or on the simulated device. Each
// operation is defined in the file named after it.

#include <cstdint>
#include <span>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

// Operations are queued on one stream; a derived class reports the errors of their launches.
// Deterministic: every sum has a fixed order, a function of shapes alone. A derived class adds
// matrix products and memory.
class DeviceKernels : public Backend {
 public:
  void Fill(TensorView x, double value) override;
  void Copy(TensorView from, TensorView to) override;
  void Add(TensorView a, TensorView b, TensorView out) override;
  void Scale(TensorView x, double factor) override;
  void AddBias(TensorView x, TensorView bias, TensorView out) override;
  void SumRows(TensorView x, TensorView out, bool accumulate) override;
  void EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                        TensorView out) override;
  void EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                         TensorView d_table) override;
  void AddPositions(TensorView table, int64_t sequence, TensorView x) override;
  void AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                            bool accumulate) override;
  void LayerNormForward(TensorView x, TensorView weight, TensorView bias, double epsilon,
                        TensorView out, TensorView mean, TensorView rstd) override;
  void LayerNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView mean,
                         TensorView rstd, TensorView d_x, bool accumulate_dx, TensorView d_weight,
                         TensorView d_bias, bool accumulate) override;
  void RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                      TensorView rstd) override;
  void AddLayerNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                           TensorView bias, double epsilon, TensorView out, TensorView mean,
                           TensorView rstd) override;
  void AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                         double epsilon, TensorView out, TensorView rstd) override;
  void RmsNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView rstd,
                       TensorView d_x, bool accumulate_dx, TensorView d_weight,
                       bool accumulate) override;
  void GeluForward(TensorView x, TensorView out) override;
  void GeluBackward(TensorView d_out, TensorView x, TensorView d_x) override;
  void SwiGluForward(TensorView gate_up, TensorView out) override;
  void SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) override;
  void ApplyDropout(const Dropout& dropout, TensorView x) override;
  void Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) override;
  void AttentionForward(const AttentionOptions& options, TensorView q, TensorView k, TensorView v,
                        TensorView out, TensorView log_sum_exp) override;
  void AttentionBackward(const AttentionOptions& options, TensorView d_out, TensorView q,
                         TensorView k, TensorView v, TensorView out, TensorView log_sum_exp,
                         TensorView d_q, TensorView d_k, TensorView d_v) override;
  void CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets, int64_t first_id,
                         TensorView stats) override;
  void CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                        TensorView losses) override;
  void CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                            int64_t first_id, double grad_scale, TensorView logits) override;
  double SumOfSquares(TensorView x) override;
  double Sum(TensorView x) override;
  void SumOfSquaresByBlock(TensorView x, int64_t block, std::span<double> sums) override;
  void AdamW(const AdamWOptions& options, TensorView grad, TensorView master, TensorView m,
             TensorView v, TensorView param) override;
  // One launch for up to 48 parts.
  void AdamWAll(const AdamWOptions& options, std::span<const AdamWOperands> parts) override;

 protected:
  explicit DeviceKernels(simt::Stream stream) : stream_(stream) {}

  // Device memory for the operation that runs, aligned to 256 bytes: the next call may return the
  // same, so that one operation takes all it needs at once. Used on the stream only. Null where
  // there is none left: the error is kept, and the operation does nothing.
  virtual void* Scratch(int64_t bytes) = 0;
  // Copies device memory to the host, after all that is queued, and waits for it.
  virtual void CopyToHost(const void* from, int64_t bytes, void* to) = 0;

  // x[R,C] += bias[C], by row; each fp32 or bf16.
  void AddBiasTo(const TensorView& bias, const TensorView& x);

 private:
  simt::Stream stream() const { return stream_; }
  double BlockedSum(TensorView x, bool squares);
  void LaunchBlockSums(TensorView x, int64_t block, bool squares, std::span<double> sums);

  simt::Stream stream_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_KERNELS_H_
