#ifndef TESSERA_CONVERT_TESTING_FUZZ_CHECK_H_
#define TESSERA_CONVERT_TESTING_FUZZ_CHECK_H_

// Checks of fuzz targets, which hold for all inputs.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "layout/box.h"
#include "layout/dtype.h"

namespace tessera::ckpt::convert {

inline void Check(bool condition) {
  if (!condition) std::abort();
}

// Checks that a tensor, as described by a reader, lies inside its file.
template <typename Tensor>
void CheckInside(const Tensor& tensor, size_t file_bytes) {
  Check(tensor.shape.size() == tensor.strides.size());
  if (ElementCount(tensor.shape) == 0) return;
  uint64_t last = 0;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    last += static_cast<uint64_t>((tensor.shape[d] - 1) * tensor.strides[d]);
  }
  Check(tensor.offset_bytes + (last + 1) * ElementSize(tensor.dtype) <= file_bytes);
  Check(static_cast<uint64_t>(ElementCount(tensor.shape)) <= file_bytes);
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TESTING_FUZZ_CHECK_H_
