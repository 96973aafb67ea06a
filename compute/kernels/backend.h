#ifndef TESSERA_COMPUTE_KERNELS_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_BACKEND_H_

// The operations that models are made of, for one device. Implementations: cpu/ (oneDNN and vector
// loops, fp32 and bf16), reference/ (naive loops in fp64 over any dtype: the oracle of every test,
// and the engine of gradient checks), cuda/ (GPUs).
//
// Legend: R rows (tokens of a micro-batch, batch-major), B batch, T sequence, C channels, V
// vocabulary (local, padded), H heads, K key/value heads, D head size.
//
// Rules that every implementation keeps:
// - Results are a pure function of the operands and their shapes (and, for a matrix product, its
//   strides), never of the thread count, of addresses or of time. Work is divided into blocks by
//   shape alone, each block is computed by one thread, and sums over blocks are taken in a fixed
//   order.
// - Operations that compute row by row, sample by sample, head by head or element by element
//   (activations, dropout, attention, AdamW, and norms and losses except for the gradients of
//   weights) give the same result for each unit whatever other units are passed in the same call.
// - "compute dtype" is fp32 or bf16 (fp64 in the reference); sums are fp32 or better. Statistics,
//   losses and parameter gradients are fp32 (fp64 where the compute dtype is fp64).
// - Operands are dense in their last dim unless stated otherwise. Outputs may not overlap inputs
//   except where "in place" is allowed.
// - Calls are queued in order: on a device with streams they return early. Only Synchronize() and
//   the operations that return a number wait.
// - Wrong shapes or dtypes are bugs of the caller: CHECK.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "compute/random/philox.h"
#include "compute/tensor/tensor.h"

namespace tessera {

// The position of a dropout operand in the LOGICAL tensor of one sample, so that the mask does not
// depend on how samples and channels are distributed. Element (row r, column c) of a [R, C] operand
// is row g = row_offset + r of the micro-batch, whose row 0 is the first of sample first_sample. It
// belongs to sample first_sample + g / rows_per_sample and has index (g % rows_per_sample) *
// global_columns + column_offset + c. The sample's stream is `stream` with stream.stream =
// MixCoordinates(stream.stream, sample). An element is kept where RandomUniform(sample's stream,
// index) >= probability, and is then multiplied by 1 / (1 - probability).
struct Dropout {
  double probability = 0;  // 0: the operation is the identity
  RandomStream stream;     // the stream of the step and site
  int64_t first_sample = 0;
  int64_t rows_per_sample = 1;
  int64_t row_offset = 0;  // of the operand in the micro-batch; any
  int64_t global_columns = 0;
  int64_t column_offset = 0;
};

// Causal self-attention over B sequences. q [B,T,H,D], k and v [B,T,K,D]: strided views into a
// fused buffer are fine (last dim dense). Query head h attends with key/value head h / (H / K).
// Dropout of the probabilities: the element of (query t, key s) of GLOBAL head h has index (h * T +
// t) * T + s in the sample's stream (as for Dropout, above).
struct AttentionOptions {
  double scale = 1;  // usually 1 / sqrt(D)
  double dropout_probability = 0;
  RandomStream dropout_stream;
  int64_t first_sample = 0;
  int64_t first_head = 0;  // global index of local query head 0
};

struct AdamWOptions {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;       // for bias correction; 1 for the first update
  double grad_scale = 1;  // multiplies gradients first (clipping, averaging)
};

// One term of a sum of matrix products.
struct MatMulOperands {
  TensorView a, b;
};

// What AdamW updates, see Backend::AdamW().
struct AdamWOperands {
  TensorView grad, master, m, v, param;
  double weight_decay = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  // Waits for all that is queued. Returns the first error since the last call, which names what
  // failed; results of operations after it are undefined. Called at the end of a step.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }

  // --- host memory -------------------------------------------------------------------------------
  // `to` (contiguous) becomes the bytes at `host`, in the order of the queue. `host` may be reused
  // on return.
  virtual void Upload(const void* host, TensorView to) {
    std::memcpy(to.data(), host, static_cast<size_t>(to.bytes()));
  }
  // Copies `from` (contiguous) to `host` after everything queued before, and waits for it.
  virtual void Download(TensorView from, void* host) {
    std::memcpy(host, from.data(), static_cast<size_t>(from.bytes()));
  }

  // --- movement ----------------------------------------------------------------------------------
  virtual void Fill(TensorView x, double value) = 0;
  // Any strides, any two floating dtypes (round to nearest even), or equal dtypes.
  virtual void Copy(TensorView from, TensorView to) = 0;
  // out = a + b, elementwise, contiguous; out may be a or b.
  virtual void Add(TensorView a, TensorView b, TensorView out) = 0;
  // x *= factor
  virtual void Scale(TensorView x, double factor) = 0;

  // --- matrix products ---------------------------------------------------------------------------
  // c[M,N] = a[M,K] b[K,N] (+ bias[N]) (+ c when accumulate). a, b: views in which either dim is
  // dense (so Transpose(0, 1) gives the transposed product). dtypes: a and b compute dtype; c
  // compute dtype or fp32; bias compute dtype.
  virtual void MatMul(TensorView a, TensorView b, TensorView c, bool accumulate,
                      TensorView bias = {}) = 0;
  // c[M,N] (fp32; fp64 in the fp64 reference) = sum of the products a[M,K] b[K,N], each rounded to
  // c's dtype before it is added, in the tree T(0, n) of communicator.h's ReduceOp. The result is
  // bitwise that of n calls of MatMul into separate buffers that are then added, without the memory
  // traffic: c is a tensor-parallel sum over the shards of one process. All products have the same
  // shapes, strides and dtypes; n >= 1.
  virtual void MatMulTree(std::span<const MatMulOperands> products, TensorView c) = 0;
  // pre[M,N] = a b (+ bias), as MatMul() does, and act[M,N] = GELU(pre); both contiguous and of the
  // compute dtype. This definition has the bits of the two operations. A backend may instead take
  // the GELU before the product is rounded to `pre`: the result is still a pure function of
  // operands, shapes and strides.
  virtual void MatMulGelu(TensorView a, TensorView b, TensorView bias, TensorView pre,
                          TensorView act) {
    MatMul(a, b, pre, /*accumulate=*/false, bias);
    GeluForward(pre, act);
  }
  // d_pre[M,N] = a b times the derivative of GELU at pre[M,N]: the gradient of MatMulGelu()'s
  // product, where a b is that of its result. The same rules hold.
  virtual void MatMulGeluBackward(TensorView a, TensorView b, TensorView pre, TensorView d_pre) {
    MatMul(a, b, d_pre, /*accumulate=*/false);
    GeluBackward(d_pre, pre, d_pre);
  }
  // out[R,C] (compute dtype) = x[R,C] (fp32; fp64 in the fp64 reference) + bias[C] (compute dtype;
  // empty: none), rounded once. out may be x where the dtypes are equal.
  virtual void AddBias(TensorView x, TensorView bias, TensorView out) = 0;
  // out[N] (fp32) = sum over rows of x[R,N] (+ out when accumulate).
  virtual void SumRows(TensorView x, TensorView out, bool accumulate) = 0;

  // --- embeddings --------------------------------------------------------------------------------
  // out[R,C] = table[ids[R] - first_id, :], zero where the id lies outside [first_id, first_id + V)
  // (vocabulary-parallel).
  virtual void EmbeddingForward(TensorView table, TensorView ids, int64_t first_id,
                                TensorView out) = 0;
  // d_table[V,C] (fp32) += sums of d_out rows by id, rows of one id added in row order.
  virtual void EmbeddingBackward(TensorView d_out, TensorView ids, int64_t first_id,
                                 TensorView d_table) = 0;
  // x[R,C] += table[r % T, :]  (learned positions), in place.
  virtual void AddPositions(TensorView table, int64_t sequence, TensorView x) = 0;
  // d_table[T,C] (fp32) = sums of d_x over the batch (+ d_table when accumulate).
  virtual void AddPositionsBackward(TensorView d_x, int64_t sequence, TensorView d_table,
                                    bool accumulate) = 0;

  // --- norms -------------------------------------------------------------------------------------
  // mean, rstd [R] are written for the backward pass.
  virtual void LayerNormForward(TensorView x, TensorView weight, TensorView bias, double epsilon,
                                TensorView out, TensorView mean, TensorView rstd) = 0;
  // d_x = gradient (+ d_x when accumulate_dx: for the residual add). d_weight, d_bias (fp32)
  // likewise.
  virtual void LayerNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView mean,
                                 TensorView rstd, TensorView d_x, bool accumulate_dx,
                                 TensorView d_weight, TensorView d_bias, bool accumulate) = 0;
  virtual void RmsNormForward(TensorView x, TensorView weight, double epsilon, TensorView out,
                              TensorView rstd) = 0;
  // sum = a + b, then the norm of sum: in one pass over memory, with the bits of Add() and of the
  // norm's forward pass, one after the other. All matrices [R,C] of one dtype; sum may be a or b.
  virtual void AddLayerNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                                   TensorView bias, double epsilon, TensorView out, TensorView mean,
                                   TensorView rstd) = 0;
  virtual void AddRmsNormForward(TensorView a, TensorView b, TensorView sum, TensorView weight,
                                 double epsilon, TensorView out, TensorView rstd) = 0;
  virtual void RmsNormBackward(TensorView d_out, TensorView x, TensorView weight, TensorView rstd,
                               TensorView d_x, bool accumulate_dx, TensorView d_weight,
                               bool accumulate) = 0;

  // --- activations -------------------------------------------------------------------------------
  // GELU, tanh form. d_x may be d_out.
  virtual void GeluForward(TensorView x, TensorView out) = 0;
  virtual void GeluBackward(TensorView d_out, TensorView x, TensorView d_x) = 0;
  // gate_up [R, 2F] holds gate in columns [0, F) and up in [F, 2F). out[R,F] = silu(gate) * up.
  virtual void SwiGluForward(TensorView gate_up, TensorView out) = 0;
  virtual void SwiGluBackward(TensorView d_out, TensorView gate_up, TensorView d_gate_up) = 0;
  // x[R,C] = dropout(x), in place; backward is the same call on the gradient.
  virtual void ApplyDropout(const Dropout& dropout, TensorView x) = 0;

  // --- attention ---------------------------------------------------------------------------------
  // Rotates x [B,T,H,D] in place by position: pairs (i, i + D/2), as Hugging Face's Llama does;
  // cos, sin [T, D/2] fp32. inverse: the backward pass.
  virtual void Rope(TensorView cos, TensorView sin, bool inverse, TensorView x) = 0;
  // out[B,T,H,D]; log_sum_exp[B,H,T] (fp32) is written for the backward pass.
  virtual void AttentionForward(const AttentionOptions& options, TensorView q, TensorView k,
                                TensorView v, TensorView out, TensorView log_sum_exp) = 0;
  // d_q, d_k, d_v are overwritten.
  virtual void AttentionBackward(const AttentionOptions& options, TensorView d_out, TensorView q,
                                 TensorView k, TensorView v, TensorView out, TensorView log_sum_exp,
                                 TensorView d_q, TensorView d_k, TensorView d_v) = 0;

  // --- loss --------------------------------------------------------------------------------------
  // Softmax cross-entropy over a vocabulary that may be split. Step 1, per shard: logits[R,V]
  // (compute dtype or fp32), of which columns [0, valid) are real and the rest padding. Writes
  // stats[R,3] (fp32): row maximum, sum of exp(logit - maximum), logit of the target (0 if the
  // target is elsewhere).
  virtual void CrossEntropyStats(TensorView logits, int64_t valid, TensorView targets,
                                 int64_t first_id, TensorView stats) = 0;
  // Step 2: row losses[R] (fp32) from the stats of all `shards` ([S,R,3], combined in a binary
  // tree); the combined stats go to combined[R,3]. Rows whose target is negative are ignored: their
  // loss is 0.
  virtual void CrossEntropyLoss(TensorView stats, TensorView targets, TensorView combined,
                                TensorView losses) = 0;
  // Step 3: logits become d_logits in place: (softmax - onehot) * grad_scale; padding columns and
  // ignored rows get 0.
  virtual void CrossEntropyBackward(TensorView combined, TensorView targets, int64_t valid,
                                    int64_t first_id, double grad_scale, TensorView logits) = 0;

  // --- reductions and the optimizer --------------------------------------------------------------
  // Sum (of squares) of a contiguous tensor in fp64, fixed blocks, then a binary tree over blocks.
  virtual double SumOfSquares(TensorView x) = 0;
  virtual double Sum(TensorView x) = 0;
  // sums[i] = sum of squares, in fp64, of the elements [i * block, min((i + 1) * block, n)) of
  // contiguous x: a function of these elements and their number alone. One sum per block.
  virtual void SumOfSquaresByBlock(TensorView x, int64_t block, std::span<double> sums) = 0;
  // Decoupled weight decay. All operands are contiguous and of the same length. master, m, v fp32;
  // grad fp32; `param` (compute dtype) receives the rounded master; when param IS fp32, master may
  // be empty and param is updated itself.
  virtual void AdamW(const AdamWOptions& options, TensorView grad, TensorView master, TensorView m,
                     TensorView v, TensorView param) = 0;
  // AdamW() of each part, with the part's weight decay in place of the options'. The parts are
  // disjoint; their parameters have one dtype.
  virtual void AdamWAll(const AdamWOptions& options, std::span<const AdamWOperands> parts) {
    AdamWOptions own = options;
    for (const AdamWOperands& part : parts) {
      own.weight_decay = part.weight_decay;
      AdamW(own, part.grad, part.master, part.m, part.v, part.param);
    }
  }
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_BACKEND_H_
