// Activations, norms, the loss and the optimizer.

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/random/philox.h"
#include "tensor/tensor.h"

namespace tessera::reference {

// R rows, C channels, F the width of a gated feed-forward layer.
namespace {

constexpr double kGeluCubic = 0.044715;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double GeluTanh(double x) {
  return std::tanh(std::sqrt(2 / std::numbers::pi) * (x + kGeluCubic * x * x * x));
}

}  // namespace

// out = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3)
void ReferenceBackend::Run(const ops::GeluForward& op) {
  Array values(op.x);
  for (double& value : values.values()) value = value / 2 * (1 + GeluTanh(value));
  values.StoreTo(op.out);
}

// d_x = d_out ((1 + tanh(u)) / 2 + x/2 (1 - tanh(u)^2) u'), u' = sqrt(2/pi) (1 + 3 0.044715 x^2)
void ReferenceBackend::Run(const ops::GeluBackward& op) {
  const Array input(op.x);
  Array gradient(op.d_out);
  for (size_t i = 0; i < input.values().size(); ++i) {
    const double value = input.values()[i];
    const double tanh_u = GeluTanh(value);
    const double slope_u = std::sqrt(2 / std::numbers::pi) * (1 + 3 * kGeluCubic * value * value);
    gradient.values()[i] *= (1 + tanh_u) / 2 + value / 2 * (1 - tanh_u * tanh_u) * slope_u;
  }
  gradient.StoreTo(op.d_x);
}

// With gate = gate_up[r,f] and up = gate_up[r,F+f]: out[r,f] = gate sigmoid(gate) up
void ReferenceBackend::Run(const ops::SwiGluForward& op) {
  const Array input(op.gate_up);
  const int64_t width = input.dim(1) / 2;
  Array output({input.dim(0), width});
  for (int64_t r = 0; r < input.dim(0); ++r) {
    for (int64_t f = 0; f < width; ++f) {
      const double gate = input(r, f), up = input(r, width + f);
      output(r, f) = gate * Sigmoid(gate) * up;
    }
  }
  output.StoreTo(op.out);
}

// With s = sigmoid(gate):
// d_gate = d_out up (s + gate s (1 - s)), d_up = d_out gate s
void ReferenceBackend::Run(const ops::SwiGluBackward& op) {
  const Array gradient(op.d_out), input(op.gate_up);
  const int64_t width = gradient.dim(1);
  Array result(input.shape());
  for (int64_t r = 0; r < input.dim(0); ++r) {
    for (int64_t f = 0; f < width; ++f) {
      const double gate = input(r, f), up = input(r, width + f), s = Sigmoid(gate);
      result(r, f) = gradient(r, f) * up * (s + gate * s * (1 - s));
      result(r, width + f) = gradient(r, f) * gate * s;
    }
  }
  result.StoreTo(op.d_gate_up);
}

// x[r,c] = 0 where uniform(stream of the sample, index of the element in it) < p, x[r,c] / (1 - p)
// elsewhere
void ReferenceBackend::Run(const ops::ApplyDropout& op) {
  if (op.dropout.probability == 0) return;
  Array values(op.x);
  for (int64_t r = 0; r < values.dim(0); ++r) {
    const int64_t global_row = op.dropout.row_offset + r;
    RandomStream stream = op.dropout.stream;
    stream.stream = MixCoordinates(
        stream.stream, op.dropout.first_sample + global_row / op.dropout.rows_per_sample);
    const int64_t row = global_row % op.dropout.rows_per_sample;
    for (int64_t c = 0; c < values.dim(1); ++c) {
      const int64_t index = row * op.dropout.global_columns + op.dropout.column_offset + c;
      const bool drop = RandomUniform(stream, index) < op.dropout.probability;
      values(r, c) = drop ? 0 : values(r, c) / (1 - op.dropout.probability);
    }
  }
  values.StoreTo(op.x);
}

// R rows, C channels.
// mean[r] = 1/C sum_c x[r,c]
// rstd[r] = 1 / sqrt(1/C sum_c (x[r,c] - mean[r])^2 + epsilon)
// out[r,c] = (x[r,c] - mean[r]) rstd[r] weight[c] + bias[c]
void ReferenceBackend::Run(const ops::LayerNormForward& op) {
  const Array input(op.x), scale(op.weight), shift(op.bias);
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array output(op.x.shape()), means({rows}), rstds({rows});
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < channels; ++c) sum += input(r, c);
    means(r) = sum / channels;
    for (int64_t c = 0; c < channels; ++c) {
      squares += (input(r, c) - means(r)) * (input(r, c) - means(r));
    }
    rstds(r) = 1 / std::sqrt(squares / channels + op.epsilon);
    for (int64_t c = 0; c < channels; ++c) {
      output(r, c) = (input(r, c) - means(r)) * rstds(r) * scale(c);
      if (!shift.empty()) output(r, c) += shift(c);
    }
  }
  output.StoreTo(op.out);
  means.StoreTo(op.mean);
  rstds.StoreTo(op.rstd);
}

// With h[r,c] = (x[r,c] - mean[r]) rstd[r] and g[r,c] = d_out[r,c] weight[c]:
// d_x[r,c] (+)= rstd[r] (g[r,c] - 1/C sum_j g[r,j] - h[r,c] 1/C sum_j g[r,j] h[r,j])
// d_weight[c] (+)= sum_r d_out[r,c] h[r,c]
// d_bias[c] (+)= sum_r d_out[r,c]
void ReferenceBackend::Run(const ops::LayerNormBackward& op) {
  const Array gradient(op.d_out), input(op.x), scale(op.weight), means(op.mean), rstds(op.rstd);
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array dx(op.x.shape()), dw({channels}), db({channels});
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
  dx.StoreTo(op.d_x, op.accumulate_dx);
  dw.StoreTo(op.d_weight, op.accumulate);
  db.StoreTo(op.d_bias, op.accumulate);
}

// rstd[r] = 1 / sqrt(1/C sum_c x[r,c]^2 + epsilon)
// out[r,c] = x[r,c] rstd[r] weight[c]
void ReferenceBackend::Run(const ops::RmsNormForward& op) {
  const Array input(op.x), scale(op.weight);
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array output(op.x.shape()), rstds({rows});
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < channels; ++c) squares += input(r, c) * input(r, c);
    rstds(r) = 1 / std::sqrt(squares / channels + op.epsilon);
    for (int64_t c = 0; c < channels; ++c) output(r, c) = input(r, c) * rstds(r) * scale(c);
  }
  output.StoreTo(op.out);
  rstds.StoreTo(op.rstd);
}

// With h[r,c] = x[r,c] rstd[r] and g[r,c] = d_out[r,c] weight[c]:
// d_x[r,c] (+)= rstd[r] (g[r,c] - h[r,c] 1/C sum_j g[r,j] h[r,j])
// d_weight[c] (+)= sum_r d_out[r,c] h[r,c]
void ReferenceBackend::Run(const ops::RmsNormBackward& op) {
  const Array gradient(op.d_out), input(op.x), scale(op.weight), rstds(op.rstd);
  const int64_t rows = input.dim(0), channels = input.dim(1);
  Array dx(op.x.shape()), dw({channels});
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
  dx.StoreTo(op.d_x, op.accumulate_dx);
  dw.StoreTo(op.d_weight, op.accumulate);
}

// R rows, V local columns of the vocabulary, S shards. The three columns of stats: maximum, sum of
// exponentials, target logit.
// stats[r,0] = max_{c<valid} logits[r,c]   (-inf for a shard that is all padding)
// stats[r,1] = sum_{c<valid} exp(logits[r,c] - stats[r,0])
// stats[r,2] = logits[r, targets[r] - first_id], 0 if that column is not below `valid`
void ReferenceBackend::Run(const ops::CrossEntropyStats& op) {
  const Array input(op.logits);
  const std::vector<int64_t> ids = LoadIds(op.targets);
  Array result({input.dim(0), 3});
  for (int64_t r = 0; r < input.dim(0); ++r) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < op.valid; ++c) maximum = std::max(maximum, input(r, c));
    result(r, 0) = maximum;
    for (int64_t c = 0; c < op.valid; ++c) result(r, 1) += std::exp(input(r, c) - maximum);
    const int64_t column = ids[r] - op.first_id;
    if (ids[r] >= 0 && column >= 0 && column < op.valid) result(r, 2) = input(r, column);
  }
  result.StoreTo(op.stats);
}

// combined[r,0] = max_s stats[s,r,0]
// combined[r,1] = sum_s stats[s,r,1] exp(stats[s,r,0] - combined[r,0])
// combined[r,2] = sum_s stats[s,r,2]
// losses[r] = log combined[r,1] + combined[r,0] - combined[r,2], 0 where targets[r] < 0
void ReferenceBackend::Run(const ops::CrossEntropyLoss& op) {
  const Array input(op.stats);
  const std::vector<int64_t> ids = LoadIds(op.targets);
  const int64_t shards = input.dim(0), rows = input.dim(1);
  Array merged({rows, 3}), loss({rows});
  for (int64_t r = 0; r < rows; ++r) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < shards; ++s) maximum = std::max(maximum, input(s, r, 0));
    merged(r, 0) = maximum;
    for (int64_t s = 0; s < shards; ++s) {
      merged(r, 1) += input(s, r, 1) * std::exp(input(s, r, 0) - maximum);
      merged(r, 2) += input(s, r, 2);
    }
    if (ids[r] >= 0) loss(r) = std::log(merged(r, 1)) + maximum - merged(r, 2);
  }
  merged.StoreTo(op.combined);
  loss.StoreTo(op.losses);
}

// logits[r,c] = (exp(logits[r,c] - combined[r,0]) / combined[r,1] - [c == targets[r] - first_id])
// * grad_scale; 0 for c >= valid and where targets[r] < 0
void ReferenceBackend::Run(const ops::CrossEntropyBackward& op) {
  const Array stats(op.combined), input(op.logits);
  const std::vector<int64_t> ids = LoadIds(op.targets);
  Array gradient(input.shape());
  for (int64_t r = 0; r < input.dim(0); ++r) {
    if (ids[r] < 0) continue;
    for (int64_t c = 0; c < op.valid; ++c) {
      const double probability = std::exp(input(r, c) - stats(r, 0)) / stats(r, 1);
      gradient(r, c) = (probability - (c == ids[r] - op.first_id ? 1 : 0)) * op.grad_scale;
    }
  }
  gradient.StoreTo(op.logits);
}

// Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). With g = grad *
// grad_scale and w the master weight (without master weights, the parameter itself):
// m = beta1 m + (1 - beta1) g
// v = beta2 v + (1 - beta2) g^2
// w = w - learning_rate (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon)
//                        + weight_decay w)
// param = w, rounded from the master as stored
void ReferenceBackend::Run(const ops::AdamW& op) {
  const TensorView weights = op.master.empty() ? op.param : op.master;
  const Array gradient(op.grad);
  Array first(op.m), second(op.v), weight(weights);
  const size_t count = gradient.values().size();
  for (size_t i = 0; i < count; ++i) {
    const double g = gradient.values()[i] * op.options.grad_scale;
    double& m_i = first.values()[i];
    double& v_i = second.values()[i];
    double& w_i = weight.values()[i];
    m_i = op.options.beta1 * m_i + (1 - op.options.beta1) * g;
    v_i = op.options.beta2 * v_i + (1 - op.options.beta2) * g * g;
    const double m_hat = m_i / (1 - std::pow(op.options.beta1, op.options.step));
    const double v_hat = v_i / (1 - std::pow(op.options.beta2, op.options.step));
    w_i -= op.options.learning_rate *
           (m_hat / (std::sqrt(v_hat) + op.options.epsilon) + op.options.weight_decay * w_i);
  }
  first.StoreTo(op.m);
  second.StoreTo(op.v);
  weight.StoreTo(weights);
  if (!op.master.empty()) Array(op.master).StoreTo(op.param);
}

}  // namespace tessera::reference
