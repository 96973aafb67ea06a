#ifndef TESSERA_MODELS_LAYERS_ACTIVATION_H_
#define TESSERA_MODELS_LAYERS_ACTIVATION_H_

// Legend: R rows, U columns before, F columns after.

#include "compute/kernels/backend.h"
#include "models/layers/linear.h"

namespace tessera {

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
// memory for the gradient of the activation; may be d_pre for kGelu.
inline void BackwardActivated(Activation activation, Backend& backend, const Linear& down,
                              const TensorView& d_y, const TensorView& pre, const TensorView& d_out,
                              const TensorView& d_pre) {
  if (activation == Activation::kGelu) return down.BackwardInputGelu(backend, d_y, pre, d_pre);
  down.BackwardInput(backend, d_y, d_out);
  backend.SwiGluBackward({d_out, pre, d_pre});
}

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_ACTIVATION_H_
