#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {

// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). With g = grad *
// grad_scale and w the master weight (the parameter itself where there is none):
// m = beta1 m + (1 - beta1) g
// v = beta2 v + (1 - beta2) g^2
// w = w - learning_rate (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon)
//                        + weight_decay w)
// param = w, rounded from the master as stored
void ReferenceBackend::AdamW(const AdamWOptions& options, TensorView grad, TensorView master,
                             TensorView m, TensorView v, TensorView param) {
  const TensorView weights = master.empty() ? param : master;
  const Array gradient(grad);
  Array first(m), second(v), weight(weights);
  const size_t count = gradient.values().size();
  CHECK(first.values().size() == count && second.values().size() == count &&
        weight.values().size() == count);
  for (size_t i = 0; i < count; ++i) {
    const double g = gradient.values()[i] * options.grad_scale;
    double& m_i = first.values()[i];
    double& v_i = second.values()[i];
    double& w_i = weight.values()[i];
    m_i = options.beta1 * m_i + (1 - options.beta1) * g;
    v_i = options.beta2 * v_i + (1 - options.beta2) * g * g;
    const double m_hat = m_i / (1 - std::pow(options.beta1, options.step));
    const double v_hat = v_i / (1 - std::pow(options.beta2, options.step));
    w_i -= options.learning_rate *
           (m_hat / (std::sqrt(v_hat) + options.epsilon) + options.weight_decay * w_i);
  }
  first.StoreTo(m);
  second.StoreTo(v);
  weight.StoreTo(weights);
  if (!master.empty()) Array(master).StoreTo(param);
}

}  // namespace tessera::reference
