#ifndef TESSERA_COMPUTE_KERNELS_REFERENCE_BACKEND_IMPL_H_
#define TESSERA_COMPUTE_KERNELS_REFERENCE_BACKEND_IMPL_H_

// Internal to this package. The formula of each operation is above its definition.

#include <cstdint>
#include <span>

#include "compute/kernels/backend.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {

class ReferenceBackend final : public Backend {
 public:
  Device device() const override;
  void Fill(TensorView x, double value) override;
  void Copy(TensorView from, TensorView to) override;
  void Add(TensorView a, TensorView b, TensorView out) override;
  void Scale(TensorView x, double factor) override;
  void MatMul(TensorView a, TensorView b, TensorView c, bool accumulate,
              TensorView bias = {}) override;
  void MatMulTree(std::span<const MatMulOperands> products, TensorView c) override;
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
};

}  // namespace tessera::reference

#endif  // TESSERA_COMPUTE_KERNELS_REFERENCE_BACKEND_IMPL_H_
