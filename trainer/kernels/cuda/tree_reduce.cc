// The sum or maximum over the pieces of all ranks, in one fixed order.

#include "trainer/kernels/cuda/tree_reduce.h"

#include <glog/logging.h>

#include <cstdint>
#include <span>
#include <type_traits>

#include "trainer/kernels/cuda/simt.h"
#include "trainer/tensor/dtype.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
// Subtrees of 1, 2, 4, ... inputs.
constexpr int kLevels = 9;
static_assert((1 << (kLevels - 1)) == kMaxTreeInputs);

template <typename T>
struct TreeInputs {
  const T* at[kMaxTreeInputs];
  int count;
};

// Partial results of bf16 are fp32.
template <typename T>
using Partial = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <typename T>
TESSERA_DEVICE Partial<T> Widen(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return simt::ToFloat(value);
  } else {
    return value;
  }
}

template <typename T>
TESSERA_DEVICE T Narrow(Partial<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return simt::FromFloat<BFloat16>(value);
  } else {
    return value;
  }
}

template <TreeOp kOp, typename A>
TESSERA_DEVICE A Pair(A a, A b) {
  if constexpr (kOp == TreeOp::kMax) {
    return (a > b || a != a) ? a : b;  // NOLINT(misc-redundant-expression): NaN
  } else if constexpr (std::is_integral_v<A>) {
    using Unsigned = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

// subtrees[l] holds 2^l adjacent inputs where bit l of the number of inputs so far is set. Every
// index into it is a constant once the loops are unrolled, so that it stays in registers.
template <TreeOp kOp, typename T>
TESSERA_KERNEL void ReduceTree(TreeInputs<T> inputs, int64_t elements, T* output) {
  using A = Partial<T>;
  const int64_t i = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (i >= elements) return;
  A subtrees[kLevels] = {};
  for (int input = 0; input < inputs.count; ++input) {
    A sum = Widen(inputs.at[input][i]);
    bool placed = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const bool occupied = ((input >> level) & 1) != 0;
      if (!placed && occupied) sum = Pair<kOp>(subtrees[level], sum);
      if (!placed && !occupied) {
        subtrees[level] = sum;
        placed = true;
      }
    }
  }
  A result = {};
  bool any = false;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if (((inputs.count >> level) & 1) == 0) continue;
    result = any ? Pair<kOp>(subtrees[level], result) : subtrees[level];
    any = true;
  }
  output[i] = Narrow<T>(result);
}

}  // namespace

template <typename T>
void TreeReduce(simt::Stream stream, TreeOp op, std::span<const T* const> inputs, int64_t elements,
                T* output) {
  CHECK(!inputs.empty() && inputs.size() <= kMaxTreeInputs) << inputs.size() << " inputs";
  TreeInputs<T> addresses = {};
  addresses.count = static_cast<int>(inputs.size());
  for (int i = 0; i < addresses.count; ++i) addresses.at[i] = inputs[static_cast<size_t>(i)];
  const simt::Grid grid = {simt::BlocksOf(elements, kThreads)};
  if (op == TreeOp::kSum) {
    simt::Launch<ReduceTree<TreeOp::kSum, T>>(grid, kThreads, 0, stream, addresses, elements,
                                              output);
  } else {
    simt::Launch<ReduceTree<TreeOp::kMax, T>>(grid, kThreads, 0, stream, addresses, elements,
                                              output);
  }
}

template void TreeReduce(simt::Stream, TreeOp, std::span<const float* const>, int64_t, float*);
template void TreeReduce(simt::Stream, TreeOp, std::span<const BFloat16* const>, int64_t,
                         BFloat16*);
template void TreeReduce(simt::Stream, TreeOp, std::span<const double* const>, int64_t, double*);
template void TreeReduce(simt::Stream, TreeOp, std::span<const int32_t* const>, int64_t, int32_t*);
template void TreeReduce(simt::Stream, TreeOp, std::span<const int64_t* const>, int64_t, int64_t*);

}  // namespace tessera::cuda
