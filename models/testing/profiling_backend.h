#ifndef TESSERA_MODELS_TESTING_PROFILING_BACKEND_H_
#define TESSERA_MODELS_TESTING_PROFILING_BACKEND_H_

#include <glog/logging.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/tensor/tensor.h"

namespace tessera::testing {

// Forwards every call to another backend, and adds up time and operations by kind and shape.
class ProfilingBackend : public Backend {
 public:
  explicit ProfilingBackend(Backend& backend) : backend_(backend) {}

  struct Total {
    double seconds = 0;
    int64_t calls = 0;
    double flops = 0;  // of matrix products and attention
  };
  // Of all calls since the last Take().
  std::map<std::string, Total> Take() { return std::exchange(totals_, {}); }

  absl::Status Synchronize() override { return backend_.Synchronize(); }
  Device device() const override { return backend_.device(); }
  void Upload(const void* host, TensorView to) override { backend_.Upload(host, to); }
  void Download(TensorView from, void* host) override { backend_.Download(from, host); }
  void Fill(TensorView x, double value) override {
    Timed("Fill", [&] { backend_.Fill(x, value); });
  }
  void Copy(TensorView from, TensorView to) override {
    Timed("Copy", [&] { backend_.Copy(from, to); });
  }
  void Add(TensorView a, TensorView b, TensorView out) override {
    Timed("Add", [&] { backend_.Add(a, b, out); });
  }
  void Scale(TensorView x, double factor) override {
    Timed("Scale", [&] { backend_.Scale(x, factor); });
  }
  void MatMul(TensorView a, TensorView b, TensorView c, bool accumulate, TensorView bias) override {
    const std::string name = "MatMul " + Sizes(a, b);
    Timed(name, [&] { backend_.MatMul(a, b, c, accumulate, bias); });
    totals_[name].flops += 2.0 * a.dim(0) * a.dim(1) * b.dim(1);
  }
  void MatMulTree(std::span<const MatMulOperands> products, TensorView c) override {
    const TensorView &a = products[0].a, &b = products[0].b;
    const int64_t n = static_cast<int64_t>(products.size());
    const int64_t rows = a.dim(0), inner = a.dim(1), columns = b.dim(1);
    const std::string name = "MatMulTree " + std::to_string(n) + " * " + std::to_string(rows) +
                             " x " + std::to_string(inner) + " x " + std::to_string(columns) +
                             (a.stride(1) == 1 ? " A" : " A'") + (b.stride(1) == 1 ? "B" : "B'");
    Timed(name, [&] { backend_.MatMulTree(products, c); });
    totals_[name].flops += 2.0 * n * rows * inner * columns;
  }
  void MatMulGelu(TensorView a, TensorView b, TensorView bias, TensorView pre,
                  TensorView act) override {
    const std::string name = "MatMulGelu " + Sizes(a, b);
    Timed(name, [&] { backend_.MatMulGelu(a, b, bias, pre, act); });
    totals_[name].flops += 2.0 * a.dim(0) * a.dim(1) * b.dim(1);
  }
  void MatMulGeluBackward(TensorView a, TensorView b, TensorView pre, TensorView d_pre) override {
    const std::string name = "MatMulGelu' " + Sizes(a, b);
    Timed(name, [&] { backend_.MatMulGeluBackward(a, b, pre, d_pre); });
    totals_[name].flops += 2.0 * a.dim(0) * a.dim(1) * b.dim(1);
  }
  void AddBias(TensorView x, TensorView bias, TensorView out) override {
    Timed("AddBias", [&] { backend_.AddBias(x, bias, out); });
  }
  void SumRows(TensorView x, TensorView out, bool accumulate) override {
    Timed("SumRows", [&] { backend_.SumRows(x, out, accumulate); });
  }
  void EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                        TensorView out) override {
    Timed("Embedding", [&] { backend_.EmbeddingForward(table, ids, first_id, out); });
  }
  void EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                         TensorView d_table) override {
    Timed("Embedding'", [&] { backend_.EmbeddingBackward(d_out, ids, first_id, d_table); });
  }
  void AddPositions(TensorView table, int64_t sequence, TensorView x) override {
    Timed("Embedding", [&] { backend_.AddPositions(table, sequence, x); });
  }
  void AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                            bool accumulate) override {
    Timed("Embedding'", [&] { backend_.AddPositionsBackward(d_x, sequence, d_table, accumulate); });
  }
  void LayerNormForward(TensorView x, TensorView weight, TensorView bias, double epsilon,
                        TensorView out, TensorView mean, TensorView rstd) override {
    Timed("Norm", [&] { backend_.LayerNormForward(x, weight, bias, epsilon, out, mean, rstd); });
  }
  void LayerNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView mean,
                         TensorView rstd, TensorView d_x, bool accumulate_dx, TensorView d_weight,
                         TensorView d_bias, bool accumulate) override {
    Timed("Norm'", [&] {
      backend_.LayerNormBackward(d_out, x, weight, mean, rstd, d_x, accumulate_dx, d_weight, d_bias,
                                 accumulate);
    });
  }
  void RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                      TensorView rstd) override {
    Timed("Norm", [&] { backend_.RmsNormForward(x, weight, epsilon, out, rstd); });
  }
  void AddLayerNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                           TensorView bias, double epsilon, TensorView out, TensorView mean,
                           TensorView rstd) override {
    Timed("Norm",
          [&] { backend_.AddLayerNormForward(a, b, sum, weight, bias, epsilon, out, mean, rstd); });
  }
  void AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                         double epsilon, TensorView out, TensorView rstd) override {
    Timed("Norm", [&] { backend_.AddRmsNormForward(a, b, sum, weight, epsilon, out, rstd); });
  }
  void RmsNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView rstd,
                       TensorView d_x, bool accumulate_dx, TensorView d_weight,
                       bool accumulate) override {
    Timed("Norm'", [&] {
      backend_.RmsNormBackward(d_out, x, weight, rstd, d_x, accumulate_dx, d_weight, accumulate);
    });
  }
  void GeluForward(TensorView x, TensorView out) override {
    Timed("Activation", [&] { backend_.GeluForward(x, out); });
  }
  void GeluBackward(TensorView d_out, TensorView x, TensorView d_x) override {
    Timed("Activation'", [&] { backend_.GeluBackward(d_out, x, d_x); });
  }
  void SwiGluForward(TensorView gate_up, TensorView out) override {
    Timed("Activation", [&] { backend_.SwiGluForward(gate_up, out); });
  }
  void SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) override {
    Timed("Activation'", [&] { backend_.SwiGluBackward(d_out, gate_up, d_gate_up); });
  }
  void ApplyDropout(const Dropout& dropout, TensorView x) override {
    Timed("Dropout", [&] { backend_.ApplyDropout(dropout, x); });
  }
  void Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) override {
    Timed("Rope", [&] { backend_.Rope(cos, sin, inverse, x); });
  }
  void AttentionForward(const AttentionOptions& options, TensorView q, TensorView k, TensorView v,
                        TensorView out, TensorView log_sum_exp) override {
    Timed("Attention", [&] { backend_.AttentionForward(options, q, k, v, out, log_sum_exp); });
    totals_["Attention"].flops += 2 * TriangleFlops(q);  // scores, values
  }
  void AttentionBackward(const AttentionOptions& options, TensorView d_out, TensorView q,
                         TensorView k, TensorView v, TensorView out, TensorView log_sum_exp,
                         TensorView d_q, TensorView d_k, TensorView d_v) override {
    Timed("Attention'", [&] {
      backend_.AttentionBackward(options, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v);
    });
    // The gradients of queries, keys, values and probabilities; not the scores computed again.
    totals_["Attention'"].flops += 4 * TriangleFlops(q);
  }
  void CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets, int64_t first_id,
                         TensorView stats) override {
    Timed("CrossEntropy",
          [&] { backend_.CrossEntropyStats(logits, valid, targets, first_id, stats); });
  }
  void CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                        TensorView losses) override {
    Timed("CrossEntropy", [&] { backend_.CrossEntropyLoss(stats, targets, combined, losses); });
  }
  void CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                            int64_t first_id, double grad_scale, TensorView logits) override {
    Timed("CrossEntropy'", [&] {
      backend_.CrossEntropyBackward(combined, targets, valid, first_id, grad_scale, logits);
    });
  }
  double SumOfSquares(TensorView x) override { return backend_.SumOfSquares(x); }
  double Sum(TensorView x) override { return backend_.Sum(x); }
  void SumOfSquaresByBlock(TensorView x, int64_t block, std::span<double> sums) override {
    backend_.SumOfSquaresByBlock(x, block, sums);
  }
  void AdamW(const AdamWOptions& options, TensorView grad, TensorView master, TensorView m,
             TensorView v, TensorView param) override {
    backend_.AdamW(options, grad, master, m, v, param);
  }
  void AdamWAll(const AdamWOptions& options, std::span<const AdamWOperands> parts) override {
    backend_.AdamWAll(options, parts);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // "M x K x N", and which operands are transposed.
  static std::string Sizes(const TensorView& a, const TensorView& b) {
    return std::to_string(a.dim(0)) + " x " + std::to_string(a.dim(1)) + " x " +
           std::to_string(b.dim(1)) + (a.stride(1) == 1 ? " A" : " A'") +
           (b.stride(1) == 1 ? "B" : "B'");
  }
  // Of one product over the lower triangle; q [B,T,H,D].
  static double TriangleFlops(const TensorView& q) {
    const int64_t pairs = q.dim(1) * (q.dim(1) + 1) / 2;
    return 2.0 * static_cast<double>(q.dim(0) * q.dim(2) * q.dim(3) * pairs);
  }

  template <typename Work>
  void Timed(const std::string& name, const Work& work) {
    const auto start = Clock::now();
    work();
    CHECK_EQ(backend_.Synchronize(), absl::OkStatus());
    Total& total = totals_[name];
    total.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    ++total.calls;
  }

  Backend& backend_;
  std::map<std::string, Total> totals_;
};

}  // namespace tessera::testing

#endif  // TESSERA_MODELS_TESTING_PROFILING_BACKEND_H_
