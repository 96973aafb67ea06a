#ifndef TESSERA_COMPUTE_KERNELS_CUDA_PRODUCTS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_PRODUCTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// A matrix in which one dim is dense.
struct MatrixLayout {
  bool row_major = true;        // the last dim is dense; or else the first
  int64_t leading_dim = 0;      // the distance of rows, or of columns, in elements
  int64_t alignment_bytes = 0;  // that all rows, or all columns, have: 16 or less
};

// Returns the layout of a matrix: a pure function of shape, strides and dtype. Precondition: one
// dim is dense.
MatrixLayout LayoutOf(const TensorView& x);

inline constexpr int64_t kProductAlignmentBytes = 16;
// Returns the alignment of a matrix with this leading dim: kProductAlignmentBytes or less.
int64_t AlignmentOf(int64_t leading_dim, DType dtype);

enum class GeluUse {
  kForward,   // of the product
  kBackward,  // its derivative, a factor of the product
};

// The number of a library's proposal (ProductChoices) by the name of a product: shapes, strides,
// dtypes and whatever else decides its algorithm.
using ProductProposals = std::map<std::string, int>;

// Measures products one by one: each is waited for before and after.
struct ProductTimer {
  // Gets the name of each product, the number of its proposal, and its time. Null: products are not
  // measured.
  std::function<void(const std::string& product, int proposal, double seconds)> add;
  std::function<double()> now;  // seconds; null: those of the steady clock
};

// What a device may compute in more than one way. Each choice has bits of its own, and which is
// faster depends on the type of GPU.
struct ProductChoices {
  // Whether GELU, or its gradient, may be a product's last step, which saves a pass over memory but
  // makes the product slower: on GPUs before Hopper, by more than it saves.
  bool gelu = true;
  bool gelu_gradient = true;
  // Whether a product may sum one of its factors. No GPU has run it yet.
  bool sums = false;
  // Whether attention's backward pass of bf16 without dropout is one kernel, which computes scores
  // once (attention_backward.cc). It needs up to 113 KiB of shared memory in a block, and scratch
  // memory for d_q in fp32 (attention_memory.h). No GPU has run it yet.
  bool attention_at_once = false;
  // Whether attention's forward pass of bf16 without dropout, with heads of 64 or 128, multiplies
  // by warpgroups (attention_warpgroups.cc). Compute capability 9.0 alone can. No GPU has run it.
  bool attention_by_warpgroups = false;
  // Whether the backward pass of these operands is by warpgroups, too, even with
  // attention_at_once. No GPU has run it.
  bool attention_gradients_by_warpgroups = false;
  // The number of an algorithm among the library's proposals with a fixed order of additions, the
  // best by the library's estimate first. With fewer proposals, the last one.
  int proposal = 0;
  // For some products, the proposals that were measured to be the fastest; null: for none. A number
  // that the library does not propose means the first, with one warning. EXACT numerics do not use
  // this table, because their products are not the library's.
  std::shared_ptr<const ProductProposals> measured = nullptr;
  ProductTimer timer = {};
};

// Matrix products on one stream, for which DeviceBackend has no kernels of its own. The stream's
// context keeps errors. Not thread-safe.
class Products {
 public:
  virtual ~Products() = default;

  // Queues c[M,N] = a[M,K] b[K,N] (+ c when accumulate) (+ bias[N]), sums in fp32, rounded once.
  // The bits of the result are a pure function of the operands, their strides and whether there is
  // a bias; with accumulate and c in fp32, the result is the product by itself, added to c.
  //
  // Returns false if the bias is left to the caller, because the product of these shapes, strides
  // and dtypes cannot add one; the product without it has been queued.
  //
  // Preconditions: M, N and K are above 0; a and b have one dtype, fp32 or bf16; c is fp32 or of
  // that dtype, and row-major; the bias, which may be missing, has c's dtype; addresses are
  // multiples of LayoutOf()'s alignment, and the address of the bias is a multiple of
  // kProductAlignmentBytes.
  virtual bool MatMul(const TensorView& a, const TensorView& b, const TensorView& c,
                      bool accumulate, const TensorView& bias) = 0;

  // Queues a product whose last step is GELU (tanh form), in fp32, before the result is rounded:
  // kForward, aux[M,N] = a b (+ bias), rounded, and c = GELU(a b (+ bias)); kBackward, without a
  // bias, c = a b times the derivative of GELU at aux. Returns false, and queues nothing, if such a
  // product is not available or is slower than the two steps: a function of shapes, strides and
  // dtypes.
  //
  // Preconditions: as for MatMul(); all operands are bf16; rows of aux begin at multiples of
  // kProductAlignmentBytes.
  virtual bool MatMulGelu(GeluUse use, const TensorView& a, const TensorView& b,
                          const TensorView& bias, const TensorView& aux, const TensorView& c) = 0;

  // Queues MatMul() without a bias that also overwrites sums[N] with the sums over K of b or,
  // without `sums_b`, sums[M] with those of a, in fp32. Returns false, and queues nothing, where
  // MatMulGelu() would.
  //
  // Preconditions: as for MatMul(); a and b are bf16; c and sums are fp32; the address of sums is a
  // multiple of kProductAlignmentBytes.
  virtual bool MatMulSums(const TensorView& a, const TensorView& b, const TensorView& c,
                          bool accumulate, bool sums_b, const TensorView& sums) = 0;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_PRODUCTS_H_
