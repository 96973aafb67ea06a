#ifndef TESSERA_CHECKPOINT_LAYOUT_COPY_BOX_H_
#define TESSERA_CHECKPOINT_LAYOUT_COPY_BOX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/layout/box.h"

namespace tessera::ckpt {

// A box of a logical tensor in memory that another object owns.
template <typename Byte>
struct BasicBoxView {
  Byte* data = nullptr;  // element at box.global_offset
  Box box;
  std::vector<int64_t> strides;  // in elements, one per dim; empty: contiguous row-major
};
using BoxView = BasicBoxView<std::byte>;
using ConstBoxView = BasicBoxView<const std::byte>;

// Copies the elements of `region` from `from` to `to`. Runs that are contiguous on both sides are
// copied as one. Preconditions: both views contain the region and have element_bytes-sized
// elements; their memory does not overlap. Cost: one memcpy per common contiguous run. Threads:
// safe for disjoint destinations.
void CopyBox(const Box& region, const ConstBoxView& from, const BoxView& to, size_t element_bytes);

// Visits the parts of `inner` that are contiguous in the row-major storage of `outer`, in ascending
// order and as long as possible: fn(first_element, element_count), counted from the beginning of
// outer's storage. Concatenated, the parts are inner's own row-major order: inner's storage offset
// is the sum of the counts so far. An empty inner has no parts. Precondition: Contains(outer,
// inner).
template <typename Function>
void ForEachContiguousRun(const Box& outer, const Box& inner, Function&& fn) {
  if (inner.empty()) return;
  const std::vector<int64_t> strides = ContiguousStrides(outer.shape);
  const int rank = static_cast<int>(outer.shape.size());
  int64_t run_elements = 1;
  int first_run_dim = rank;  // dims from here on lie inside one run
  while (first_run_dim > 0) {
    const int d = first_run_dim - 1;
    run_elements *= inner.shape[d];
    first_run_dim = d;
    if (inner.shape[d] != outer.shape[d]) break;
  }
  int64_t at = 0;
  for (int d = 0; d < rank; ++d)
    at += (inner.global_offset[d] - outer.global_offset[d]) * strides[d];
  std::vector<int64_t> index(first_run_dim, 0);
  while (true) {
    fn(at, run_elements);
    int d = first_run_dim - 1;
    for (; d >= 0; --d) {
      at += strides[d];
      if (++index[d] < inner.shape[d]) break;
      at -= index[d] * strides[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LAYOUT_COPY_BOX_H_
