// R rows, C channels.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>

#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {

// mean[r] = 1/C sum_c x[r,c]
// rstd[r] = 1 / sqrt(1/C sum_c (x[r,c] - mean[r])^2 + epsilon)
// out[r,c] = (x[r,c] - mean[r]) rstd[r] weight[c] + bias[c]
void ReferenceBackend::LayerNormForward(TensorView x, TensorView weight, TensorView bias,
                                        double epsilon, TensorView out, TensorView mean,
                                        TensorView rstd) {
  const Array input(x), scale(weight), shift(bias);
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array output(x.shape()), means({rows}), rstds({rows});
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < channels; ++c) sum += input(r, c);
    means(r) = sum / channels;
    for (int64_t c = 0; c < channels; ++c) {
      squares += (input(r, c) - means(r)) * (input(r, c) - means(r));
    }
    rstds(r) = 1 / std::sqrt(squares / channels + epsilon);
    for (int64_t c = 0; c < channels; ++c) {
      output(r, c) = (input(r, c) - means(r)) * rstds(r) * scale(c);
      if (!shift.empty()) output(r, c) += shift(c);
    }
  }
  output.StoreTo(out);
  means.StoreTo(mean);
  rstds.StoreTo(rstd);
}

// sum[r,c] = a[r,c] + b[r,c], rounded, and its LayerNorm
void ReferenceBackend::AddLayerNormForward(TensorView a, TensorView b, TensorView sum,
                                           TensorView weight, TensorView bias, double epsilon,
                                           TensorView out, TensorView mean, TensorView rstd) {
  Add(a, b, sum);
  LayerNormForward(sum, weight, bias, epsilon, out, mean, rstd);
}

// With h[r,c] = (x[r,c] - mean[r]) rstd[r] and g[r,c] = d_out[r,c] weight[c]:
// d_x[r,c] (+)= rstd[r] (g[r,c] - 1/C sum_j g[r,j] - h[r,c] 1/C sum_j g[r,j] h[r,j])
// d_weight[c] (+)= sum_r d_out[r,c] h[r,c]
// d_bias[c] (+)= sum_r d_out[r,c]
void ReferenceBackend::LayerNormBackward(TensorView d_out, TensorView x, TensorView weight,
                                         TensorView mean, TensorView rstd, TensorView d_x,
                                         bool accumulate_dx, TensorView d_weight, TensorView d_bias,
                                         bool accumulate) {
  const Array gradient(d_out), input(x), scale(weight), means(mean), rstds(rstd);
  CHECK(gradient.shape() == input.shape());
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array dx(x.shape()), dw({channels}), db({channels});
  for (int64_t r = 0; r < rows; ++r) {
    const auto normalized = [&](int64_t c) { return (input(r, c) - means(r)) * rstds(r); };
    double sum_g = 0, sum_gh = 0;
    for (int64_t c = 0; c < channels; ++c) {
      sum_g += gradient(r, c) * scale(c);
      sum_gh += gradient(r, c) * scale(c) * normalized(c);
      dw(c) += gradient(r, c) * normalized(c);
      db(c) += gradient(r, c);
    }
    for (int64_t c = 0; c < channels; ++c) {
      dx(r, c) = rstds(r) *
                 (gradient(r, c) * scale(c) - sum_g / channels - normalized(c) * sum_gh / channels);
    }
  }
  dx.StoreTo(d_x, accumulate_dx);
  dw.StoreTo(d_weight, accumulate);
  db.StoreTo(d_bias, accumulate);
}

// rstd[r] = 1 / sqrt(1/C sum_c x[r,c]^2 + epsilon)
// out[r,c] = x[r,c] rstd[r] weight[c]
void ReferenceBackend::RmsNormForward(TensorView x, TensorView weight, double epsilon,
                                      TensorView out, TensorView rstd) {
  const Array input(x), scale(weight);
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array output(x.shape()), rstds({rows});
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < channels; ++c) squares += input(r, c) * input(r, c);
    rstds(r) = 1 / std::sqrt(squares / channels + epsilon);
    for (int64_t c = 0; c < channels; ++c) output(r, c) = input(r, c) * rstds(r) * scale(c);
  }
  output.StoreTo(out);
  rstds.StoreTo(rstd);
}

// sum[r,c] = a[r,c] + b[r,c], rounded, and its RMSNorm
void ReferenceBackend::AddRmsNormForward(TensorView a, TensorView b, TensorView sum,
                                         TensorView weight, double epsilon, TensorView out,
                                         TensorView rstd) {
  Add(a, b, sum);
  RmsNormForward(sum, weight, epsilon, out, rstd);
}

// With h[r,c] = x[r,c] rstd[r] and g[r,c] = d_out[r,c] weight[c]:
// d_x[r,c] (+)= rstd[r] (g[r,c] - h[r,c] 1/C sum_j g[r,j] h[r,j])
// d_weight[c] (+)= sum_r d_out[r,c] h[r,c]
void ReferenceBackend::RmsNormBackward(TensorView d_out, TensorView x, TensorView weight,
                                       TensorView rstd, TensorView d_x, bool accumulate_dx,
                                       TensorView d_weight, bool accumulate) {
  const Array gradient(d_out), input(x), scale(weight), rstds(rstd);
  CHECK(gradient.shape() == input.shape());
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array dx(x.shape()), dw({channels});
  for (int64_t r = 0; r < rows; ++r) {
    double sum_gh = 0;
    for (int64_t c = 0; c < channels; ++c) {
      sum_gh += gradient(r, c) * scale(c) * input(r, c) * rstds(r);
      dw(c) += gradient(r, c) * input(r, c) * rstds(r);
    }
    for (int64_t c = 0; c < channels; ++c) {
      dx(r, c) =
          rstds(r) * (gradient(r, c) * scale(c) - input(r, c) * rstds(r) * sum_gh / channels);
    }
  }
  dx.StoreTo(d_x, accumulate_dx);
  dw.StoreTo(d_weight, accumulate);
}

}  // namespace tessera::reference
