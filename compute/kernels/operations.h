#ifndef TESSERA_COMPUTE_KERNELS_OPERATIONS_H_
#define TESSERA_COMPUTE_KERNELS_OPERATIONS_H_

// The operations that models are made of. Each is a struct whose fields are the operands in the
// order of the call, `backend.GeluForward({x, out})`. The list at the end names all of them; the
// methods of Backend, of its implementations and of its wrappers are generated from the list.
//
// Legend: R rows (tokens of a micro-batch, batch-major), B batch, T sequence, C channels, V
// vocabulary (local, padded), H heads, K key/value heads, D head size.
//
// "compute dtype" is fp32 or bf16 (fp64 in the reference). "fp32" stands for fp64 where the compute
// dtype is fp64. Operands are dense in their last dim unless stated otherwise. Outputs may not
// overlap inputs except where "in place" is allowed.

#include <cstdint>
#include <memory>
#include <span>

#include "compute/random/philox.h"
#include "tensor/tensor.h"

namespace tessera {

// Dropout sets random elements to zero and scales up the others. Whether an element is kept depends
// on its place in the LOGICAL tensor of its sample, not on how samples and channels are
// distributed. For element (row r, column c) of an operand [R,C]:
//
// - its row in the micro-batch is g = row_offset + r, where row 0 is the first of first_sample;
// - its sample is first_sample + g / rows_per_sample, and its index in the sample is
//   (g % rows_per_sample) * global_columns + column_offset + c;
// - the sample's stream is `stream` with stream.stream = MixCoordinates(stream.stream, sample).
//
// The element is kept if RandomUniform(sample's stream, index) >= probability, and is then
// multiplied by 1 / (1 - probability).
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
  double scale = 1;  // usually 1 / sqrt(D); positive
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

// The tensors that AdamW reads and updates, see ops::AdamW.
struct AdamWOperands {
  TensorView grad, master, m, v, param;
  double weight_decay = 0;
};

namespace ops {

// --- movement ------------------------------------------------------------------------------------

// Sets every element of x to a value: x[...] = value. Any strides, any dtype.
struct Fill {
  TensorView x;
  double value = 0;
};

// Copies, and converts between floating dtypes: to = from. Any strides, any two floating dtypes
// (round to nearest even), or equal dtypes.
struct Copy {
  TensorView from, to;
};

// Adds element by element: out = a + b. All contiguous; out may be a or b.
struct Add {
  TensorView a, b, out;
};

// Multiplies every element in place: x *= factor. x is contiguous.
struct Scale {
  TensorView x;
  double factor = 1;
};

// --- matrix products -----------------------------------------------------------------------------

// The product of two matrices, to which a bias and the previous c can be added:
// c[M,N] = a[M,K] b[K,N] (+ bias[N]) (+ c when accumulate). a, b: views in which either dim is
// dense (so Transpose(0, 1) gives the transposed product). dtypes: a and b compute dtype; c compute
// dtype or fp32; bias compute dtype.
struct MatMul {
  TensorView a, b, c;
  bool accumulate = false;
  TensorView bias = {};
};

// A tensor-parallel sum over the shards of one process: c[M,N] (fp32) = the sum of n products
// a[M,K] b[K,N]. Each product is rounded to c's dtype before it is added, in the tree T(0, n) of
// communicator.h's ReduceOp. The result is bitwise that of n calls of MatMul into separate buffers
// that are then added, without the memory traffic. All products have the same shapes, strides and
// dtypes; n >= 1.
struct MatMulTree {
  std::span<const MatMulOperands> products;
  TensorView c;
};

// A product and the activation after it: pre[M,N] = a b (+ bias), as MatMul does, and act[M,N] =
// GELU(pre). Both are contiguous and of the compute dtype. This definition has the bits of MatMul
// and GELU. A backend may instead take the GELU before the product is rounded to `pre`; the result
// is still a pure function of operands, shapes and strides.
struct MatMulGelu {
  TensorView a, b, bias, pre, act;
};

// The gradient of MatMulGelu's product, where a b is the gradient of its result: d_pre[M,N] = a b
// times the derivative of GELU at pre[M,N]. The rules of MatMulGelu hold.
//
// The result of the operation is whether a backend has also done, in the same pass over d_pre, what
// SumRows({d_pre, d_bias, accumulate}) does, with its bits. Otherwise d_bias (fp32, [N], may be
// empty) is as before, and left to the caller.
struct MatMulGeluBackward {
  TensorView a, b, pre, d_pre;
  TensorView d_bias = {};
  bool accumulate = false;
};

// The gradients of a weight and of a bias, from the layer's input and the gradient of its output,
// which is summed: c[M,N] (fp32) = a[M,K] b[K,N] (+ c when accumulate). sums (fp32) = the sums over
// K of b, [N], or without sums_b of a, [M] (+ sums when accumulate).
//
// This definition has the bits of MatMul and SumRows. A backend may add the sums in another order;
// they are still fp32, and a pure function of operands, shapes and strides.
struct MatMulSums {
  TensorView a, b, c, sums;
  bool sums_b = true;
  bool accumulate = false;
};

// Adds a bias to every row and rounds once: out[R,C] (compute dtype) = x[R,C] (fp32) + bias[C]
// (out's dtype; may be empty). out may be x where the dtypes are equal.
struct AddBias {
  TensorView x, bias, out;
};

// The gradient of a bias: out[N] (fp32) = the sum over rows of x[R,N] (+ out when accumulate).
struct SumRows {
  TensorView x, out;
  bool accumulate = false;
};

// --- embeddings ----------------------------------------------------------------------------------

// Looks up a row of the table for each id: out[R,C] = table[ids[R] - first_id, :]. A row is zero if
// its id lies outside [first_id, first_id + V): another rank has the row (vocabulary-parallel).
struct EmbeddingForward {
  TensorView table, ids;
  int64_t first_id = 0;
  TensorView out;
};

// Sums over rows are taken in canonical units: `units` equal runs of rows, a power of two. Within a
// unit, rows are added in order; the units' sums are added in the tree T(0, units) of
// communicator.h's ReduceOp.

// The gradient of an embedding: d_table[V,C] (fp32) += the sums of d_out's rows by id. Rows of one
// id are added in row order, in units.
struct EmbeddingBackward {
  TensorView d_out, ids;
  int64_t first_id = 0;
  TensorView d_table;
  int64_t units = 1;
};

// Adds learned positions in place: x[R,C] += table[r % sequence, :].
struct AddPositions {
  TensorView table;
  int64_t sequence = 0;
  TensorView x;
};

// The gradient of learned positions: d_table[T,C] (fp32) = the sums of d_x over the batch, in units
// (+ d_table when accumulate). Rows of the table past the sequence get a gradient of zero.
struct AddPositionsBackward {
  TensorView d_x;
  int64_t sequence = 0;
  TensorView d_table;
  bool accumulate = false;
  int64_t units = 1;
};

// --- norms ---------------------------------------------------------------------------------------

// LayerNorm over the rows of x. mean, rstd [R] (fp32) are written for the backward pass.
struct LayerNormForward {
  TensorView x, weight, bias;
  double epsilon = 0;
  TensorView out, mean, rstd;
};

// The gradients of LayerNorm. They replace d_x, or are added to it with accumulate_dx, for the
// residual add. They replace d_weight and d_bias, [C] (fp32), or are added with accumulate.
struct LayerNormBackward {
  TensorView d_out, x, weight, mean, rstd, d_x;
  bool accumulate_dx = false;
  TensorView d_weight, d_bias;
  bool accumulate = false;
};

struct RmsNormForward {
  TensorView x, weight;
  double epsilon = 0;
  TensorView out, rstd;
};

struct RmsNormBackward {
  TensorView d_out, x, weight, rstd, d_x;
  bool accumulate_dx = false;
  TensorView d_weight;
  bool accumulate = false;
};

// sum = a + b, then the norm of sum: in one pass over memory, with the bits of Add and of the
// norm's forward pass, one after the other. All matrices [R,C] of one dtype; sum may be a or b.
struct AddLayerNormForward {
  TensorView a, b, sum, weight, bias;
  double epsilon = 0;
  TensorView out, mean, rstd;
};

struct AddRmsNormForward {
  TensorView a, b, sum, weight;
  double epsilon = 0;
  TensorView out, rstd;
};

// --- activations ---------------------------------------------------------------------------------

// GELU, tanh form.
struct GeluForward {
  TensorView x, out;
};

// The gradient of GELU; d_x may be d_out.
struct GeluBackward {
  TensorView d_out, x, d_x;
};

// The activation of Llama's feed-forward layer: out[R,F] = silu(gate) * up. gate_up [R,2F] holds
// gate in columns [0, F) and up in [F, 2F).
struct SwiGluForward {
  TensorView gate_up, out;
};

struct SwiGluBackward {
  TensorView d_out, gate_up, d_gate_up;
};

// Applies dropout to x[R,C] in place. The backward pass is the same call on the gradient.
struct ApplyDropout {
  Dropout dropout;
  TensorView x;
};

// --- attention -----------------------------------------------------------------------------------

// Rotary positions: rotates x [B,T,H,D] in place by position, in pairs (i, i + D/2) of a head as in
// Hugging Face's Llama. cos, sin [T, D/2] fp32. inverse: the backward pass.
struct Rope {
  TensorView cos, sin;
  bool inverse = false;
  TensorView x;
};

// Attention, see AttentionOptions: out[B,T,H,D]. log_sum_exp[B,H,T] (fp32) is written for the
// backward pass. On the CPU k and v may have more tokens than q, whose rows are then the last ones
// (no dropout).
struct AttentionForward {
  AttentionOptions options;
  TensorView q, k, v, out, log_sum_exp;
};

// The gradient of attention; d_q, d_k, d_v are overwritten.
struct AttentionBackward {
  AttentionOptions options;
  TensorView d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v;
};

// --- loss ----------------------------------------------------------------------------------------
// Softmax cross-entropy over a vocabulary that may be split.

// Step 1, per shard: logits[R,V] (compute dtype or fp32), of which columns [0, valid) are real and
// the rest padding. Writes stats[R,3] (fp32): row maximum, sum of exp(logit - maximum), logit of
// the target (0 if the target is elsewhere).
struct CrossEntropyStats {
  TensorView logits;
  int64_t valid = 0;
  TensorView targets;
  int64_t first_id = 0;
  TensorView stats;
};

// Step 2: row losses[R] (fp32) from the stats of all `shards` ([S,R,3], combined in a binary tree);
// the combined stats go to combined[R,3]. Rows whose target is negative are ignored: their loss is
// 0.
struct CrossEntropyLoss {
  TensorView stats, targets, combined, losses;
};

// Step 3: logits become d_logits in place: (softmax - onehot) * grad_scale; padding columns and
// ignored rows get 0.
struct CrossEntropyBackward {
  TensorView combined, targets;
  int64_t valid = 0;
  int64_t first_id = 0;
  double grad_scale = 1;
  TensorView logits;
};

// All three steps for a vocabulary of one shard: stats [1,R,3].
struct CrossEntropyGradient {
  TensorView logits;
  int64_t valid = 0;
  TensorView targets;
  double grad_scale = 1;
  TensorView stats, combined, losses;
};

// --- reductions and the optimizer ----------------------------------------------------------------

// The sum (of squares) of a contiguous tensor in fp64: fixed blocks, then a binary tree over them.
struct SumOfSquares {
  TensorView x;
};
// With `later`, the result has no meaning, nothing waits, and the sum is there when
// Backend::Synchronize() has returned; all who hold it may have dropped it by then.
struct Sum {
  TensorView x;
  std::shared_ptr<double> later = nullptr;
};

// sums[i] = the sum of squares of parts[i], in fp64; 0 for an empty one. Blocks of `block` elements
// of a part are summed first, each to a function of its elements and their number alone, then its
// blocks in the tree T(0, n) of communicator.h's ReduceOp. So a subtree of a part's tree has the
// same sum if it is given as a part of its own. Parts are contiguous and of one dtype. Waits once
// for all sums.
struct SumsOfSquares {
  std::span<const TensorView> parts;
  int64_t block = 1;
  std::span<double> sums;
};

// One update of AdamW, with decoupled weight decay. All operands are contiguous and of the same
// length. master, m, v fp32; grad fp32; `param` (compute dtype) receives the rounded master; when
// param IS fp32, master may be empty and param is updated itself.
struct AdamW {
  AdamWOptions options;
  TensorView grad, master, m, v, param;
};

// AdamW of several parts, each with its own weight decay instead of the options'. The parts are
// disjoint; their parameters have one dtype.
struct AdamWAll {
  AdamWOptions options;
  std::span<const AdamWOperands> parts;
};

}  // namespace ops

// Calls V(type of the result, name) for the operations that every implementation of Backend has:
// matrix products, which are a library's, and loops of our own.
#define TESSERA_PRODUCT_OPERATIONS(V) \
  V(void, MatMul)                     \
  V(void, MatMulTree)

#define TESSERA_LOOP_OPERATIONS(V) \
  V(void, Fill)                    \
  V(void, Copy)                    \
  V(void, Add)                     \
  V(void, Scale)                   \
  V(void, AddBias)                 \
  V(void, SumRows)                 \
  V(void, EmbeddingForward)        \
  V(void, EmbeddingBackward)       \
  V(void, AddPositions)            \
  V(void, AddPositionsBackward)    \
  V(void, LayerNormForward)        \
  V(void, LayerNormBackward)       \
  V(void, RmsNormForward)          \
  V(void, RmsNormBackward)         \
  V(void, GeluForward)             \
  V(void, GeluBackward)            \
  V(void, SwiGluForward)           \
  V(void, SwiGluBackward)          \
  V(void, ApplyDropout)            \
  V(void, Rope)                    \
  V(void, AttentionForward)        \
  V(void, AttentionBackward)       \
  V(void, CrossEntropyStats)       \
  V(void, CrossEntropyLoss)        \
  V(void, CrossEntropyBackward)    \
  V(double, SumOfSquares)          \
  V(double, Sum)                   \
  V(void, SumsOfSquares)           \
  V(void, AdamW)

#define TESSERA_PRIMITIVE_OPERATIONS(V) \
  TESSERA_PRODUCT_OPERATIONS(V)         \
  TESSERA_LOOP_OPERATIONS(V)

// Calls V(type of the result, name) for the operations that Backend composes of others unless an
// implementation has a better one.
#define TESSERA_COMPOSED_OPERATIONS(V) \
  V(void, MatMulGelu)                  \
  V(bool, MatMulGeluBackward)          \
  V(void, MatMulSums)                  \
  V(void, AddLayerNormForward)         \
  V(void, AddRmsNormForward)           \
  V(void, CrossEntropyGradient)        \
  V(void, AdamWAll)

#define TESSERA_OPERATIONS(V)     \
  TESSERA_PRIMITIVE_OPERATIONS(V) \
  TESSERA_COMPOSED_OPERATIONS(V)

namespace ops {

// CHECK-fails unless the operands fit each other, as documented above. If not `strict`, checks the
// shapes alone, whatever the dtypes and strides.
#define TESSERA_DECLARE_CHECK(Result, Name) void Check(const Name& op, bool strict);
TESSERA_OPERATIONS(TESSERA_DECLARE_CHECK)
#undef TESSERA_DECLARE_CHECK

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_OPERATIONS_H_
