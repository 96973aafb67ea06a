#ifndef TESSERA_MODELS_LAYERS_NORM_H_
#define TESSERA_MODELS_LAYERS_NORM_H_

#include "compute/kernels/backend.h"
#include "models/layers/parameter.h"

namespace tessera {

// Normalises the rows of x [R,C]. Saves row statistics ([statistics(), R], fp32 or fp64) instead of
// the output, which a second Forward reproduces bit for bit at the cost of one pass.
class Norm {
 public:
  // Gradients of the parameters, fp32 or fp64, [C].
  struct Gradients {
    TensorView weight;
    TensorView bias;  // empty if the norm has no bias
  };

  virtual ~Norm() = default;
  virtual int64_t statistics() const = 0;
  virtual int64_t channels() const = 0;          // C
  virtual int64_t gradient_vectors() const = 0;  // of Gradients
  virtual void Forward(Backend& backend, const TensorView& x, const TensorView& out,
                       const TensorView& stats) const = 0;
  // sum [R,C] = a + b, either of which it may be, and Forward of the sum: the same bits as one
  // after the other.
  virtual void AddForward(Backend& backend, const TensorView& a, const TensorView& b,
                          const TensorView& sum, const TensorView& out,
                          const TensorView& stats) const = 0;
  // d_x: overwritten, or accumulated if accumulate_dx (the residual add). `gradients` likewise, by
  // `accumulate`.
  virtual void Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                        const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                        const Gradients& gradients, bool accumulate) const = 0;
  // The parameters' own gradients.
  virtual Gradients gradients() const = 0;
};

class LayerNorm final : public Norm {
 public:
  LayerNorm(Parameter& weight, Parameter& bias, double epsilon)
      : weight_(&weight), bias_(&bias), epsilon_(epsilon) {}
  int64_t statistics() const override { return 2; }  // mean, 1 / standard deviation
  int64_t channels() const override { return weight_->shape[0]; }
  int64_t gradient_vectors() const override { return 2; }
  void Forward(Backend& backend, const TensorView& x, const TensorView& out,
               const TensorView& stats) const override;
  void AddForward(Backend& backend, const TensorView& a, const TensorView& b, const TensorView& sum,
                  const TensorView& out, const TensorView& stats) const override;
  void Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                const Gradients& gradients, bool accumulate) const override;
  Gradients gradients() const override { return {weight_->grad, bias_->grad}; }

 private:
  Parameter* weight_;
  Parameter* bias_;
  double epsilon_;
};

class RmsNorm final : public Norm {
 public:
  RmsNorm(Parameter& weight, double epsilon) : weight_(&weight), epsilon_(epsilon) {}
  int64_t statistics() const override { return 1; }  // 1 / root mean square
  int64_t channels() const override { return weight_->shape[0]; }
  int64_t gradient_vectors() const override { return 1; }
  void Forward(Backend& backend, const TensorView& x, const TensorView& out,
               const TensorView& stats) const override;
  void AddForward(Backend& backend, const TensorView& a, const TensorView& b, const TensorView& sum,
                  const TensorView& out, const TensorView& stats) const override;
  void Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                const Gradients& gradients, bool accumulate) const override;
  Gradients gradients() const override { return {weight_->grad, {}}; }

 private:
  Parameter* weight_;
  double epsilon_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_NORM_H_
