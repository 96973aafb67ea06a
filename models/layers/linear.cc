#include "models/layers/linear.h"

namespace tessera {

MatMulOperands Linear::ForwardTerm(const TensorView& x) const {
  const TensorView& w = weight_->value;
  return {x, layout_ == WeightLayout::kInOut ? w : w.Transpose(0, 1)};
}

MatMulOperands Linear::BackwardInputTerm(const TensorView& d_y) const {
  const TensorView& w = weight_->value;
  return {d_y, layout_ == WeightLayout::kInOut ? w.Transpose(0, 1) : w};
}

void Linear::Forward(Backend& backend, const TensorView& x, const TensorView& y) const {
  const MatMulOperands product = ForwardTerm(x);
  backend.MatMul({product.a, product.b, y, /*accumulate=*/false,
                  bias_ == nullptr ? TensorView() : bias_->value});
}

void Linear::ForwardGelu(Backend& backend, const TensorView& x, const TensorView& y,
                         const TensorView& act) const {
  const MatMulOperands product = ForwardTerm(x);
  backend.MatMulGelu(
      {product.a, product.b, bias_ == nullptr ? TensorView() : bias_->value, y, act});
}

bool Linear::BackwardInputGelu(const Pass& pass, const TensorView& d_y, const TensorView& pre,
                               const TensorView& d_pre, const Parameter* bias,
                               bool accumulate) const {
  const MatMulOperands product = BackwardInputTerm(d_y);
  const bool sums = bias != nullptr && pass.units == 1;
  return pass.backend.MatMulGeluBackward(
      {product.a, product.b, pre, d_pre, sums ? bias->grad : TensorView(), accumulate});
}

void Linear::BackwardInput(Backend& backend, const TensorView& d_y, const TensorView& d_x) const {
  const MatMulOperands product = BackwardInputTerm(d_y);
  backend.MatMul({product.a, product.b, d_x, /*accumulate=*/false});
}

void Linear::BackwardWeight(const Pass& pass, const TensorView& x, const TensorView& d_y,
                            const TensorView& sums, bool accumulate, const Parameter* bias) const {
  const bool in_out = layout_ == WeightLayout::kInOut;
  const TensorView &a = in_out ? x : d_y, &b = in_out ? d_y : x;
  if (bias != nullptr && pass.units == 1) {
    pass.backend.MatMulSums(
        {a.Transpose(0, 1), b, weight_->grad, bias->grad, /*sums_b=*/in_out, accumulate});
    return;
  }
  MultiplyOverRows(pass, a, b, weight_->grad, accumulate);
  if (bias != nullptr) SumRows(pass, d_y, sums, bias->grad, accumulate);
}

}  // namespace tessera
