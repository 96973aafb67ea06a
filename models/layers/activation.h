#ifndef TESSERA_MODELS_LAYERS_ACTIVATION_H_
#define TESSERA_MODELS_LAYERS_ACTIVATION_H_

// Legend: R rows, U columns before, F columns after.

#include <cstdint>

#include "trainer/kernels/backend.h"

namespace tessera {

// The nonlinearity of an MLP.
enum class Activation {
  kGelu,    // tanh form; U = F
  kSwiGlu,  // gate in columns [0, F), up in [F, 2F); U = 2F
};

inline void ActivationForward(Activation activation, Backend& backend, const TensorView& x,
                              const TensorView& out) {
  if (activation == Activation::kSwiGlu) {
    backend.SwiGluForward(x, out);
  } else {
    backend.GeluForward(x, out);
  }
}

// d_x may be d_out for kGelu.
inline void ActivationBackward(Activation activation, Backend& backend, const TensorView& d_out,
                               const TensorView& x, const TensorView& d_x) {
  if (activation == Activation::kSwiGlu) {
    backend.SwiGluBackward(d_out, x, d_x);
  } else {
    backend.GeluBackward(d_out, x, d_x);
  }
}

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_ACTIVATION_H_
