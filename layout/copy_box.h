#ifndef TESSERA_LAYOUT_COPY_BOX_H_
#define TESSERA_LAYOUT_COPY_BOX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/box.h"

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

}  // namespace tessera::ckpt

#endif  // TESSERA_LAYOUT_COPY_BOX_H_
