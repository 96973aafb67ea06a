#include "models/layers/attention.h"

#include <cmath>

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

}  // namespace tessera
