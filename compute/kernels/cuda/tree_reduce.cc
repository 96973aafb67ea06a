// The sum or maximum over the pieces of all ranks, in one fixed order.

#include "compute/kernels/cuda/tree_reduce.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "tensor/bfloat16.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
// Subtrees of 1, 2, 4, ... inputs.
constexpr int kLevels = 9;
static_assert((1 << (kLevels - 1)) == kLaunchTreeInputs);

template <typename T>
struct TreeInputs {
  const T* at[kLaunchTreeInputs];
  int count;
};

// Partial results of bf16 are fp32.
template <typename T>
using Partial = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

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
template <TreeOp kOp, typename T, typename Out>
TESSERA_KERNEL void ReduceTree(TreeInputs<T> inputs, int64_t elements, Out* output) {
  using A = Partial<T>;
  static_assert(std::is_same_v<A, Partial<Out>>);
  const int64_t i = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (i >= elements) return;
  A subtrees[kLevels] = {};
  for (int input = 0; input < inputs.count; ++input) {
    A sum = static_cast<A>(inputs.at[input][i]);
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
  output[i] = Narrow<Out>(result);
}

template <typename T, typename Out>
void LaunchTree(simt::Stream stream, TreeOp op, std::span<const T* const> inputs, int64_t elements,
                Out* output) {
  TreeInputs<T> addresses = {};
  addresses.count = static_cast<int>(inputs.size());
  std::copy(inputs.begin(), inputs.end(), addresses.at);
  const simt::Grid grid = {simt::BlocksOf(elements, kThreads)};
  if (op == TreeOp::kSum) {
    simt::Launch<ReduceTree<TreeOp::kSum, T, Out>>(grid, kThreads, 0, stream, addresses, elements,
                                                   output);
  } else {
    simt::Launch<ReduceTree<TreeOp::kMax, T, Out>>(grid, kThreads, 0, stream, addresses, elements,
                                                   output);
  }
}

}  // namespace

template <typename T>
int64_t TreeReduceScratchBytes(int64_t inputs, int64_t elements) {
  if (inputs <= kLaunchTreeInputs) return 0;
  return simt::BlocksOf(inputs, kLaunchTreeInputs) * elements *
         static_cast<int64_t>(sizeof(Partial<T>));
}

template <typename T>
void TreeReduce(simt::Stream stream, TreeOp op, std::span<const T* const> inputs, int64_t elements,
                T* output, void* scratch) {
  CHECK(!inputs.empty() && inputs.size() <= kMaxTreeInputs) << inputs.size() << " inputs";
  if (inputs.size() <= kLaunchTreeInputs) return LaunchTree(stream, op, inputs, elements, output);
  CHECK(scratch != nullptr || elements == 0);
  // Partial results stay as wide as they are within one launch, and are rounded once.
  std::vector<const Partial<T>*> groups;
  for (size_t begin = 0; begin < inputs.size(); begin += kLaunchTreeInputs) {
    Partial<T>* const group =
        static_cast<Partial<T>*>(scratch) + static_cast<int64_t>(groups.size()) * elements;
    const size_t count = std::min<size_t>(kLaunchTreeInputs, inputs.size() - begin);
    LaunchTree(stream, op, inputs.subspan(begin, count), elements, group);
    groups.push_back(group);
  }
  LaunchTree(stream, op, std::span<const Partial<T>* const>(groups), elements, output);
}

#define TESSERA_DEFINE_TREE_REDUCE(T)                                                            \
  template void TreeReduce(simt::Stream, TreeOp, std::span<const T* const>, int64_t, T*, void*); \
  template int64_t TreeReduceScratchBytes<T>(int64_t, int64_t)

TESSERA_DEFINE_TREE_REDUCE(float);
TESSERA_DEFINE_TREE_REDUCE(BFloat16);
TESSERA_DEFINE_TREE_REDUCE(double);
TESSERA_DEFINE_TREE_REDUCE(int32_t);
TESSERA_DEFINE_TREE_REDUCE(int64_t);

}  // namespace tessera::cuda
