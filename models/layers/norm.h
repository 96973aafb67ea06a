#ifndef TESSERA_MODELS_LAYERS_NORM_H_
#define TESSERA_MODELS_LAYERS_NORM_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "models/layers/arena.h"
#include "models/layers/parameter.h"
#include "models/layers/pass.h"
#include "tensor/tensor.h"

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
  // Computes sum [R,C] = a + b, and Forward() of the sum, with the bits of one after the other.
  // `sum` may be a or b.
  virtual void AddForward(Backend& backend, const TensorView& a, const TensorView& b,
                          const TensorView& sum, const TensorView& out,
                          const TensorView& stats) const = 0;
  // Computes the gradients. d_x is accumulated if accumulate_dx (the residual add), `gradients` if
  // `accumulate`; otherwise they are overwritten.
  virtual void Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                        const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                        const Gradients& gradients, bool accumulate) const = 0;
  // Returns the parameters' own gradients.
  virtual Gradients gradients() const = 0;
};

class LayerNorm final : public Norm {
 public:
  // If `bias` is null, the bias is zero and not learned, and its gradient is not used. The weight
  // has its memory, on this device.
  LayerNorm(Parameter& weight, Parameter* bias, double epsilon, const Device& device);
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
  Gradients gradients() const override {
    return {weight_->grad, bias_ == nullptr ? unused_gradient_.view() : bias_->grad};
  }

 private:
  const TensorView& bias() const { return bias_ == nullptr ? no_bias_.view() : bias_->value; }

  Parameter* weight_;
  Parameter* bias_;
  double epsilon_;
  Tensor no_bias_, unused_gradient_;  // [C], where there is no bias
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

// Norms between tensor-parallel regions, over a rank's own rows.
//
// The gradient of a norm's weights is a sum over rows, which sequence parallelism splits. To make
// its bits independent of the split, the rows of each canonical unit are always S blocks, or fewer
// if a unit has fewer rows. The sums over blocks are added in the tree over all blocks of all
// units.
//
// Legend: R rows, r of them on this rank, C channels, W weight vectors of a norm (1 or 2).

// A norm and the memory of its results.
struct NormPlace {
  const Norm* norm = nullptr;
  TensorView out;    // [R,C], the rows of every rank
  TensorView stats;  // [1|2, r]
};

// Computes the norm of the rows x [r,C] of every rank.
absl::Status NormForward(const Pass& pass, const TensorView& x, const NormPlace& to);
// Computes sum [r,C] = a + b, and the norm of the sum, with the bits of one after the other. `sum`
// may be a or b.
absl::Status AddNormForward(const Pass& pass, const TensorView& a, const TensorView& b,
                            const TensorView& sum, const NormPlace& to);

// Memory for the backward passes of norms whose weight gradients are completed together, in one
// message. All norms have the same C and W.
class NormGradients {
 public:
  NormGradients() = default;
  // Takes memory for `count` norms like this one. Empty for one block.
  NormGradients(Arena& arena, const Pass& pass, DType dtype, const Norm& norm, int count);

  // Runs the backward pass of norm number `index` over this rank's rows.
  void Backward(const Pass& pass, const Norm& norm, int index, const TensorView& d_out,
                const TensorView& x, const TensorView& stats, const TensorView& d_x,
                bool accumulate_dx, bool accumulate) const;
  // Accumulates the results of the Backward() calls into the parameters' gradients, or overwrites
  // them. `norms` are all norms, by index.
  absl::Status Finish(const Pass& pass, std::span<const Norm* const> norms, bool accumulate) const;

 private:
  TensorView blocks_;  // [blocks of this rank, W, C]
  TensorView sums_;    // [norms, W, C]
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_NORM_H_
