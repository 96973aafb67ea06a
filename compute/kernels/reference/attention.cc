// B batch, T sequence, H query heads, K key/value heads, D head size.

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/random/philox.h"
#include "tensor/tensor.h"

namespace tessera::reference {
namespace {

// The operands of attention, with the quantities that both passes derive from them.
struct Heads {
  Heads(const AttentionOptions& attention_options, const TensorView& query, const TensorView& key,
        const TensorView& value)
      : options(attention_options), q(query), k(key), v(value) {}

  int64_t batch() const { return q.dim(0); }
  int64_t sequence() const { return q.dim(1); }
  // The number of keys that query t sees.
  int64_t Seen(int64_t t) const { return k.dim(1) - q.dim(1) + t + 1; }
  int64_t heads() const { return q.dim(2); }
  int64_t size() const { return q.dim(3); }
  int64_t KeyHead(int64_t h) const { return h / (heads() / k.dim(2)); }

  // scale * sum_d q[b,t,h,d] k[b,s,h/(H/K),d]
  double Score(int64_t b, int64_t h, int64_t t, int64_t s) const {
    double sum = 0;
    for (int64_t d = 0; d < size(); ++d) sum += q(b, t, h, d) * k(b, s, KeyHead(h), d);
    return options.scale * sum;
  }

  // Returns the factor that dropout applies to the probability of (query t, key s): 0 or 1 / (1 -
  // p).
  double DropoutFactor(int64_t b, int64_t h, int64_t t, int64_t s) const {
    if (options.dropout_probability == 0) return 1;
    RandomStream stream = options.dropout_stream;
    stream.stream = MixCoordinates(stream.stream, options.first_sample + b);
    const int64_t index = ((options.first_head + h) * sequence() + t) * sequence() + s;
    const bool drop = RandomUniform(stream, index) < options.dropout_probability;
    return drop ? 0 : 1 / (1 - options.dropout_probability);
  }

  const AttentionOptions& options;
  const Array q, k, v;
};

}  // namespace

// (y[i] + j y[i+D/2]) = (x[i] + j x[i+D/2]) (cos[t,i] + j sin[t,i]), j the imaginary unit; the
// inverse multiplies by the conjugate.
void ReferenceBackend::Run(const ops::Rope& op) {
  const Array cosines(op.cos), sines(op.sin), input(op.x);
  const int64_t half = input.dim(3) / 2;
  Array output(input.shape());
  for (int64_t b = 0; b < input.dim(0); ++b) {
    for (int64_t t = 0; t < input.dim(1); ++t) {
      for (int64_t h = 0; h < input.dim(2); ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const double real = input(b, t, h, i), imaginary = input(b, t, h, i + half);
          const double c = cosines(t, i), s = op.inverse ? -sines(t, i) : sines(t, i);
          output(b, t, h, i) = real * c - imaginary * s;
          output(b, t, h, i + half) = imaginary * c + real * s;
        }
      }
    }
  }
  output.StoreTo(op.x);
}

// With S[b,h,t,s] the score for s <= t and m[t,s] the dropout factor:
// log_sum_exp[b,h,t] = log sum_{s<=t} exp(S[t,s])
// out[b,t,h,:] = sum_{s<=t} exp(S[t,s] - log_sum_exp[t]) m[t,s] v[b,s,h/(H/K),:]
void ReferenceBackend::Run(const ops::AttentionForward& op) {
  const Heads in(op.options, op.q, op.k, op.v);
  Array output(op.q.shape()), lse({in.batch(), in.heads(), in.sequence()});
  for (int64_t b = 0; b < in.batch(); ++b) {
    for (int64_t h = 0; h < in.heads(); ++h) {
      for (int64_t t = 0; t < in.sequence(); ++t) {
        std::vector<double> scores;
        for (int64_t s = 0; s < in.Seen(t); ++s) scores.push_back(in.Score(b, h, t, s));
        const double maximum = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double score : scores) sum += std::exp(score - maximum);
        lse(b, h, t) = maximum + std::log(sum);
        for (int64_t s = 0; s < in.Seen(t); ++s) {
          const double weight = std::exp(scores[s] - lse(b, h, t)) * in.DropoutFactor(b, h, t, s);
          for (int64_t d = 0; d < in.size(); ++d) {
            output(b, t, h, d) += weight * in.v(b, s, in.KeyHead(h), d);
          }
        }
      }
    }
  }
  output.StoreTo(op.out);
  lse.StoreTo(op.log_sum_exp);
}

// With P[t,s] = exp(S[t,s] - log_sum_exp[t]), A[t,s] = m[t,s] sum_d d_out[b,t,h,d] v[b,s,kv,d] and
// dS[t,s] = P[t,s] (A[t,s] - sum_{j<=t} P[t,j] A[t,j]), kv = h/(H/K):
// d_q[b,t,h,:] = scale sum_s dS[t,s] k[b,s,kv,:]
// d_k[b,s,kv,:] = scale sum_{h of kv} sum_t dS[t,s] q[b,t,h,:]
// d_v[b,s,kv,:] = sum_{h of kv} sum_t P[t,s] m[t,s] d_out[b,t,h,:]
// The inner sum over j is d_out[b,t,h,:] . out[b,t,h,:]; computed from P it needs no rounded
// output.
void ReferenceBackend::Run(const ops::AttentionBackward& op) {
  const Heads in(op.options, op.q, op.k, op.v);
  const Array gradient(op.d_out), lse(op.log_sum_exp);
  Array dq(op.q.shape()), dk(op.k.shape()), dv(op.v.shape());
  for (int64_t b = 0; b < in.batch(); ++b) {
    for (int64_t h = 0; h < in.heads(); ++h) {
      const int64_t kv = in.KeyHead(h);
      for (int64_t t = 0; t < in.sequence(); ++t) {
        std::vector<double> p(t + 1), a(t + 1);
        double mean_a = 0;
        for (int64_t s = 0; s <= t; ++s) {
          p[s] = std::exp(in.Score(b, h, t, s) - lse(b, h, t));
          const double factor = in.DropoutFactor(b, h, t, s);
          for (int64_t d = 0; d < in.size(); ++d) {
            a[s] += factor * gradient(b, t, h, d) * in.v(b, s, kv, d);
            dv(b, s, kv, d) += p[s] * factor * gradient(b, t, h, d);
          }
          mean_a += p[s] * a[s];
        }
        for (int64_t s = 0; s <= t; ++s) {
          const double d_score = op.options.scale * p[s] * (a[s] - mean_a);
          for (int64_t d = 0; d < in.size(); ++d) {
            dq(b, t, h, d) += d_score * in.k(b, s, kv, d);
            dk(b, s, kv, d) += d_score * in.q(b, t, h, d);
          }
        }
      }
    }
  }
  dq.StoreTo(op.d_q);
  dk.StoreTo(op.d_k);
  dv.StoreTo(op.d_v);
}

}  // namespace tessera::reference
