#include "models/layers/linear.h"

namespace tessera {

void Linear::Forward(Backend& backend, const TensorView& x, const TensorView& y) const {
  const TensorView& w = weight_->value;
  backend.MatMul(x, layout_ == WeightLayout::kInOut ? w : w.Transpose(0, 1), y,
                 /*accumulate=*/false, bias_ == nullptr ? TensorView() : bias_->value);
}

void Linear::BackwardInput(Backend& backend, const TensorView& d_y, const TensorView& d_x) const {
  const TensorView& w = weight_->value;
  backend.MatMul(d_y, layout_ == WeightLayout::kInOut ? w.Transpose(0, 1) : w, d_x,
                 /*accumulate=*/false);
}

void Linear::BackwardWeight(Backend& backend, const TensorView& x, const TensorView& d_y,
                            bool accumulate) const {
  if (layout_ == WeightLayout::kInOut) {
    backend.MatMul(x.Transpose(0, 1), d_y, weight_->grad, accumulate);
  } else {
    backend.MatMul(d_y.Transpose(0, 1), x, weight_->grad, accumulate);
  }
  if (bias_ != nullptr) backend.SumRows(d_y, bias_->grad, accumulate);
}

}  // namespace tessera
