#ifndef TESSERA_MODELS_LAYERS_LINEAR_H_
#define TESSERA_MODELS_LAYERS_LINEAR_H_

#include <cstdint>

#include "compute/kernels/backend.h"
#include "models/layers/parameter.h"
#include "models/layers/sums.h"

namespace tessera {

// The memory layout of a weight, as in the files of its family of models.
enum class WeightLayout {
  kInOut,  // [in, out]: GPT-2 (Conv1D)
  kOutIn,  // [out, in]: Llama
};

// A linear layer y[R,out] = x[R,in] W (+ bias), or one virtual shard of it. A column-parallel shard
// computes some of the outputs, with its part of the bias; a row-parallel one takes some of the
// inputs, and its product is a term of a sum. Parameters belong to the model's ParameterSet.
class Linear {
 public:
  Linear(Parameter& weight, Parameter* bias, WeightLayout layout)
      : weight_(&weight), bias_(bias), layout_(layout) {}

  void Forward(Backend& backend, const TensorView& x, const TensorView& y) const;
  // Forward() that also computes the GELU of y in `act`.
  void ForwardGelu(Backend& backend, const TensorView& x, const TensorView& y,
                   const TensorView& act) const;
  // Computes d_x[R,in] = d_y W^T.
  void BackwardInput(Backend& backend, const TensorView& d_y, const TensorView& d_x) const;
  // Computes d_pre[R,in], if x is the GELU of pre[R,in]. Returns whether the gradient of `bias`,
  // with which pre has been computed, is accumulated, too, or overwritten if `accumulate` is false;
  // may be null.
  bool BackwardInputGelu(const Pass& pass, const TensorView& d_y, const TensorView& pre,
                         const TensorView& d_pre, const Parameter* bias, bool accumulate) const;
  // Accumulates the gradients of the weight and of `bias`, which may be null, or overwrites them if
  // `accumulate` is false. `bias` is added to y, or to a sum that has y as a term.
  // `sums` is UnitSums() for the outputs.
  void BackwardWeight(const Pass& pass, const TensorView& x, const TensorView& d_y,
                      const TensorView& sums, bool accumulate, const Parameter* bias) const;

  // Return the products without the bias, as terms of a sum over shards.
  MatMulOperands ForwardTerm(const TensorView& x) const;
  MatMulOperands BackwardInputTerm(const TensorView& d_y) const;

  const Parameter* bias() const { return bias_; }
  int64_t in_features() const { return weight_->shape[layout_ == WeightLayout::kInOut ? 0 : 1]; }
  int64_t out_features() const { return weight_->shape[layout_ == WeightLayout::kInOut ? 1 : 0]; }

 private:
  Parameter* weight_;
  Parameter* bias_;
  WeightLayout layout_;
};

// In the shapes below: R rows, U columns of the up-projection, F columns after the activation.

// The nonlinearity of an MLP.
enum class Activation {
  kGelu,    // tanh form; U = F
  kSwiGlu,  // gate in columns [0, F), up in [F, 2F); U = 2F
};

// Computes pre[R,U] = up(x), and out[R,F], the activation of pre.
inline void ForwardActivated(Activation activation, Backend& backend, const Linear& up,
                             const TensorView& x, const TensorView& pre, const TensorView& out) {
  if (activation == Activation::kGelu) return up.ForwardGelu(backend, x, pre, out);
  up.Forward(backend, x, pre);
  backend.SwiGluForward({pre, out});
}

// Computes d_pre[R,U] from d_y, the gradient of down(the activation of pre). `d_out` [R,F] is
// memory for the gradient of the activation; may be d_pre for kGelu. Returns whether the gradient
// of `bias` is computed: see BackwardInputGelu().
inline bool BackwardActivated(Activation activation, const Pass& pass, const Linear& down,
                              const TensorView& d_y, const TensorView& pre, const TensorView& d_out,
                              const TensorView& d_pre, const Parameter* bias, bool accumulate) {
  if (activation == Activation::kGelu) {
    return down.BackwardInputGelu(pass, d_y, pre, d_pre, bias, accumulate);
  }
  down.BackwardInput(pass.backend, d_y, d_out);
  pass.backend.SwiGluBackward({d_out, pre, d_pre});
  return false;
}

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_LINEAR_H_
