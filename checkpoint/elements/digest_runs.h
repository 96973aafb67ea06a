#ifndef TESSERA_CHECKPOINT_ELEMENTS_DIGEST_RUNS_H_
#define TESSERA_CHECKPOINT_ELEMENTS_DIGEST_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checkpoint/elements/box_runs.h"
#include "checkpoint/format/digest.h"

namespace tessera::ckpt {

// Digest of elements [first, last) of a box's own storage, which are at `data`. `global` maps them
// to their row-major indices in the logical tensor.
inline LogicalDigest DigestRuns(const BoxRuns& global, int64_t first, int64_t last,
                                const std::byte* data, int64_t element_bytes) {
  LogicalDigest digest;
  global.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const std::byte* const from = data + (run.outer_element - first) * element_bytes;
    if (global.run_stride() == 1) {
      digest += DigestRun(run.strided_element, from, run.count, element_bytes);
      return;
    }
    // In a box one element wide, neighbours in its storage are not neighbours in the tensor.
    for (int64_t i = 0; i < run.count; ++i) {
      digest += DigestRun(run.strided_element + i * global.run_stride(), from + i * element_bytes,
                          1, element_bytes);
    }
  });
  return digest;
}

// The same digest, while copying the elements from `data` to `to`.
inline LogicalDigest CopyAndDigestRuns(const BoxRuns& global, int64_t first, int64_t last,
                                       const std::byte* data, std::byte* to,
                                       int64_t element_bytes) {
  if (global.run_stride() != 1) {
    std::memcpy(to, data, (last - first) * element_bytes);
    return DigestRuns(global, first, last, to, element_bytes);
  }
  LogicalDigest digest;
  global.ForEach(first, last, [&](const BoxRuns::Run& run) {
    const int64_t offset = (run.outer_element - first) * element_bytes;
    digest +=
        CopyAndDigestRun(run.strided_element, data + offset, to + offset, run.count, element_bytes);
  });
  return digest;
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_ELEMENTS_DIGEST_RUNS_H_
