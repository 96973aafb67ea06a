// R rows, C channels, F the width of a gated feed-forward layer.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>
#include <numbers>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/random/philox.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {
namespace {

constexpr double kGeluCubic = 0.044715;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double GeluTanh(double x) {
  return std::tanh(std::sqrt(2 / std::numbers::pi) * (x + kGeluCubic * x * x * x));
}

}  // namespace

// out = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
void ReferenceBackend::GeluForward(TensorView x, TensorView out) {
  Array values(x);
  for (double& value : values.values()) value = value / 2 * (1 + GeluTanh(value));
  values.StoreTo(out);
}

// d_x = d_out ((1 + tanh(u)) / 2 + x/2 (1 - tanh(u)^2) u'), u' = sqrt(2/pi) (1 + 3 0.044715 x^2)
void ReferenceBackend::GeluBackward(TensorView d_out, TensorView x, TensorView d_x) {
  const Array input(x);
  Array gradient(d_out);
  CHECK(gradient.shape() == input.shape());
  for (size_t i = 0; i < input.values().size(); ++i) {
    const double value = input.values()[i];
    const double tanh_u = GeluTanh(value);
    const double slope_u = std::sqrt(2 / std::numbers::pi) * (1 + 3 * kGeluCubic * value * value);
    gradient.values()[i] *= (1 + tanh_u) / 2 + value / 2 * (1 - tanh_u * tanh_u) * slope_u;
  }
  gradient.StoreTo(d_x);
}

// With gate = gate_up[r,f] and up = gate_up[r,F+f]: out[r,f] = gate sigmoid(gate) up
void ReferenceBackend::SwiGluForward(TensorView gate_up, TensorView out) {
  const Array input(gate_up);
  const int64_t width = input.dim(1) / 2;
  Array output({input.dim(0), width});
  for (int64_t r = 0; r < input.dim(0); ++r) {
    for (int64_t f = 0; f < width; ++f) {
      const double gate = input(r, f), up = input(r, width + f);
      output(r, f) = gate * Sigmoid(gate) * up;
    }
  }
  output.StoreTo(out);
}

// With s = sigmoid(gate):
// d_gate = d_out up (s + gate s (1 - s)), d_up = d_out gate s
void ReferenceBackend::SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) {
  const Array gradient(d_out), input(gate_up);
  const int64_t width = gradient.dim(1);
  CHECK(input.shape() == (Shape{gradient.dim(0), 2 * width})) << ToString(input.shape());
  Array result(input.shape());
  for (int64_t r = 0; r < input.dim(0); ++r) {
    for (int64_t f = 0; f < width; ++f) {
      const double gate = input(r, f), up = input(r, width + f), s = Sigmoid(gate);
      result(r, f) = gradient(r, f) * up * (s + gate * s * (1 - s));
      result(r, width + f) = gradient(r, f) * gate * s;
    }
  }
  result.StoreTo(d_gate_up);
}

// x[r,c] = 0 where uniform(stream of the sample, index of the element in it) < p, x[r,c] / (1 - p)
// elsewhere
void ReferenceBackend::ApplyDropout(const Dropout& dropout, TensorView x) {
  if (dropout.probability == 0) return;
  Array values(x);
  for (int64_t r = 0; r < values.dim(0); ++r) {
    const int64_t global_row = dropout.row_offset + r;
    RandomStream stream = dropout.stream;
    stream.stream =
        MixCoordinates(stream.stream, dropout.first_sample + global_row / dropout.rows_per_sample);
    const int64_t row = global_row % dropout.rows_per_sample;
    for (int64_t c = 0; c < values.dim(1); ++c) {
      const int64_t index = row * dropout.global_columns + dropout.column_offset + c;
      const bool drop = RandomUniform(stream, index) < dropout.probability;
      values(r, c) = drop ? 0 : values(r, c) / (1 - dropout.probability);
    }
  }
  values.StoreTo(x);
}

}  // namespace tessera::reference
