#include "models/layers/attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "compute/random/fixed_math.h"

namespace tessera {

Attention::Heads Attention::Split(const Pass& pass, const TensorView& qkv) const {
  const int64_t h = shape_.heads, k = shape_.key_value_heads;
  const TensorView all = qkv.Reshape({pass.batch, pass.sequence, h + 2 * k, shape_.head_size});
  return {all.Slice(2, 0, h), all.Slice(2, h, h + k), all.Slice(2, h + k, h + 2 * k)};
}

AttentionOptions Attention::Options(const Pass& pass) const {
  AttentionOptions options;
  options.scale = 1 / std::sqrt(static_cast<double>(shape_.head_size));
  if (dropout_.active(pass)) {
    options.dropout_probability = dropout_.probability();
    options.dropout_stream = dropout_.stream(pass);
    options.first_sample = pass.first_sample;
    options.first_head = shape_.first_head;
  }
  return options;
}

void Attention::Rotate(const Pass& pass, const Heads& heads, bool inverse) const {
  if (rope_ == nullptr) return;
  const int64_t begin = pass.first_position, end = begin + pass.sequence;
  const TensorView cos = rope_->cos(begin, end), sin = rope_->sin(begin, end);
  pass.backend.Rope({cos, sin, inverse, heads.q});
  pass.backend.Rope({cos, sin, inverse, heads.k});
}

void Attention::Forward(const Pass& pass, const TensorView& qkv, const TensorView& cache,
                        const TensorView& out, const TensorView& log_sum_exp) const {
  Heads heads = Split(pass, qkv);
  Rotate(pass, heads, /*inverse=*/false);
  if (!cache.empty()) {
    const int64_t begin = pass.first_position, end = begin + pass.sequence;
    const int64_t k = shape_.key_value_heads;
    const TensorView keys = cache.Slice(2, 0, k), values = cache.Slice(2, k, 2 * k);
    pass.backend.Copy({heads.k, keys.Slice(1, begin, end)});
    pass.backend.Copy({heads.v, values.Slice(1, begin, end)});
    heads.k = keys.Slice(1, 0, end);
    heads.v = values.Slice(1, 0, end);
  }
  pass.backend.AttentionForward(
      {Options(pass), heads.q, heads.k, heads.v,
       out.Reshape({pass.batch, pass.sequence, shape_.heads, shape_.head_size}), log_sum_exp});
}

void Attention::Backward(const Pass& pass, const TensorView& d_out, const TensorView& qkv,
                         const TensorView& out, const TensorView& log_sum_exp,
                         const TensorView& d_qkv) const {
  const Heads heads = Split(pass, qkv);
  const Heads gradients = Split(pass, d_qkv);
  const Shape shape = {pass.batch, pass.sequence, shape_.heads, shape_.head_size};
  pass.backend.AttentionBackward({Options(pass), d_out.Reshape(shape), heads.q, heads.k, heads.v,
                                  out.Reshape(shape), log_sum_exp, gradients.q, gradients.k,
                                  gradients.v});
  Rotate(pass, gradients, /*inverse=*/true);
}

// No multiplication is contracted with an addition, whatever processor this is compiled for.
#pragma STDC FP_CONTRACT OFF

namespace {

// Wavelengths beyond the trained context are stretched by `factor`, short ones kept, those between
// interpolated.
double Scaled(double frequency, const RopeScaling& scaling) {
  if (!scaling.enabled) return frequency;
  const double turns = scaling.original_max_positions * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - scaling.low_frequency_factor) /
                                     (scaling.high_frequency_factor - scaling.low_frequency_factor),
                                 0.0, 1.0);
  return frequency * (kept + (1 - kept) / scaling.factor);
}

}  // namespace

Rope::Rope(int64_t head_size, double base, const RopeScaling& scaling) {
  for (int64_t i = 0; i < head_size / 2; ++i) {
    frequencies_.push_back(Scaled(
        FixedPow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_size)), scaling));
  }
}

void Rope::Prepare(int64_t sequence, Backend& backend) {
  if (!cos_.view().empty() && cos_.view().dim(0) >= sequence) return;
  const int64_t half = static_cast<int64_t>(frequencies_.size());
  std::vector<float> cos, sin;
  for (int64_t t = 0; t < sequence; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies_[i];
      cos.push_back(static_cast<float>(FixedCos(angle)));
      sin.push_back(static_cast<float>(FixedSin(angle)));
    }
  }
  cos_ = Tensor(DType::kF32, {sequence, half}, backend.device());
  sin_ = Tensor(DType::kF32, {sequence, half}, backend.device());
  if (cos_.view().empty() || sin_.view().empty()) return;  // see AllocationScope
  backend.Upload(cos.data(), cos_);
  backend.Upload(sin.data(), sin_);
}

}  // namespace tessera
