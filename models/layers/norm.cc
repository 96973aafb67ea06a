#include "models/layers/norm.h"

namespace tessera {
namespace {

// Row `i` of the [n, R] statistics, as [R].
TensorView Statistic(const TensorView& stats, int64_t i) {
  return stats.Slice(0, i, i + 1).Reshape({stats.dim(1)});
}

}  // namespace

void LayerNorm::Forward(Backend& backend, const TensorView& x, const TensorView& out,
                        const TensorView& stats) const {
  backend.LayerNormForward(
      {x, weight_->value, bias_->value, epsilon_, out, Statistic(stats, 0), Statistic(stats, 1)});
}

void LayerNorm::AddForward(Backend& backend, const TensorView& a, const TensorView& b,
                           const TensorView& sum, const TensorView& out,
                           const TensorView& stats) const {
  backend.AddLayerNormForward({a, b, sum, weight_->value, bias_->value, epsilon_, out,
                               Statistic(stats, 0), Statistic(stats, 1)});
}

void LayerNorm::Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                         const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                         const Gradients& gradients, bool accumulate) const {
  backend.LayerNormBackward({d_out, x, weight_->value, Statistic(stats, 0), Statistic(stats, 1),
                             d_x, accumulate_dx, gradients.weight, gradients.bias, accumulate});
}

void RmsNorm::Forward(Backend& backend, const TensorView& x, const TensorView& out,
                      const TensorView& stats) const {
  backend.RmsNormForward({x, weight_->value, epsilon_, out, Statistic(stats, 0)});
}

void RmsNorm::AddForward(Backend& backend, const TensorView& a, const TensorView& b,
                         const TensorView& sum, const TensorView& out,
                         const TensorView& stats) const {
  backend.AddRmsNormForward({a, b, sum, weight_->value, epsilon_, out, Statistic(stats, 0)});
}

void RmsNorm::Backward(Backend& backend, const TensorView& d_out, const TensorView& x,
                       const TensorView& stats, const TensorView& d_x, bool accumulate_dx,
                       const Gradients& gradients, bool accumulate) const {
  backend.RmsNormBackward({d_out, x, weight_->value, Statistic(stats, 0), d_x, accumulate_dx,
                           gradients.weight, accumulate});
}

}  // namespace tessera
