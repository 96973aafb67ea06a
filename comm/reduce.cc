#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "tensor/bfloat16.h"

namespace tessera {
namespace {

// Partial results of one block fit into the first-level cache.
constexpr int64_t kBlock = 512;

// The type of partial sums.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <ReduceOp kOp, typename T>
inline T Pair(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  } else {
    // NaN where either input is NaN: a comparison with NaN is false.
    return ((a > b) | (a != a)) ? a : b;  // NOLINT(misc-redundant-expression)
  }
}

// Returns m of T(a, b) for a = 0: the largest power of two below `count`. Precondition: count > 1.
int TreeSplit(int count) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
}

template <ReduceOp kOp, typename T>
class Tree {
 public:
  using A = Accumulator<T>;

  explicit Tree(std::span<const void* const> inputs)
      : inputs_(inputs),
        // Three blocks per level: one for a result and two that the halves leave free (see Node()).
        scratch_(inputs.size() == 2 ? 0 : kBlock * (3 * std::bit_width(inputs.size()) + 2)) {}

  void Run(T* output, int64_t elements) {
    const int count = static_cast<int>(inputs_.size());
    for (int64_t at = 0; at < elements; at += kBlock) {
      at_ = at;
      n_ = std::min(kBlock, elements - at);
      const int m = TreeSplit(count);
      A* scratch = scratch_.data();
      if (count == 2) {
        Combine(Leaf(0), Leaf(1), output + at);
      } else if (count - m == 1) {
        Combine(Node(0, m, scratch), Leaf(m), output + at);
      } else {
        const A* left = Node(0, m, scratch);
        Combine(left, Node(m, count, scratch + kBlock), output + at);
      }
    }
  }

 private:
  const T* Leaf(int i) const { return static_cast<const T*>(inputs_[i]) + at_; }

  // Computes T(a, b) into scratch[0, kBlock), b - a > 1; deeper levels use scratch from 2 kBlock
  // on.
  const A* Node(int a, int b, A* scratch) {
    const int m = a + TreeSplit(b - a);
    A* deeper = scratch + 2 * kBlock;
    if (b - a == 2) {
      Combine(Leaf(a), Leaf(a + 1), scratch);
    } else if (b - m == 1) {
      Combine(Node(a, m, deeper), Leaf(m), scratch);
    } else {
      const A* left = Node(a, m, deeper);
      Combine(left, Node(m, b, deeper + kBlock), scratch);
    }
    return scratch;
  }

  // Rounds to the type of `out`. `out` may be `left` or `right`: no element depends on another. The
  // pragma states this to the compiler, which would otherwise not vectorise the aliased case.
  template <typename L, typename R, typename Out>
  void Combine(const L* left, const R* right, Out* out) const {
    const int64_t n = n_;  // a local copy: stores to `out` cannot alias it
#pragma clang loop vectorize(assume_safety)
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<Out>(Pair<kOp, A>(static_cast<A>(left[i]), static_cast<A>(right[i])));
    }
  }

  const std::span<const void* const> inputs_;
  std::vector<A> scratch_;
  int64_t at_ = 0, n_ = 0;
};

template <typename T>
void Reduce(ReduceOp op, std::span<const void* const> inputs, void* output, int64_t elements) {
  if (op == ReduceOp::kSum) {
    Tree<ReduceOp::kSum, T>(inputs).Run(static_cast<T*>(output), elements);
  } else {
    Tree<ReduceOp::kMax, T>(inputs).Run(static_cast<T*>(output), elements);
  }
}

}  // namespace

void ReduceInTreeOrder(ReduceOp op, CommType type, std::span<const void* const> inputs,
                       void* output, int64_t elements) {
  if (elements == 0) return;
  if (inputs.size() == 1) {
    if (output != inputs[0]) std::memcpy(output, inputs[0], elements * ElementSize(type));
    return;
  }
  switch (type) {
    case CommType::kF32:
      return Reduce<float>(op, inputs, output, elements);
    case CommType::kBF16:
      return Reduce<BFloat16>(op, inputs, output, elements);
    case CommType::kF64:
      return Reduce<double>(op, inputs, output, elements);
    case CommType::kI32:
      return Reduce<int32_t>(op, inputs, output, elements);
    case CommType::kI64:
      return Reduce<int64_t>(op, inputs, output, elements);
    case CommType::kBytes:
      break;
  }
  LOG(FATAL) << "bytes cannot be reduced";
}

}  // namespace tessera
