#ifndef TESSERA_COMPUTE_PARALLEL_GRADIENT_OBSERVER_H_
#define TESSERA_COMPUTE_PARALLEL_GRADIENT_OBSERVER_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tessera {

// Notifications of a backward pass about the parameters' gradients, so that their memory can be
// allocated late, and their reduction over data-parallel ranks can start early.
//
// Ranges refer to the gradient space: the flat space of the parameters, followed by the second
// gradients of tied ones. A backward pass visits the parameters in reverse order and announces each
// range once; a tied table that a stage uses at both ends is ready last.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  // Gradients in [begin, end) are about to be written: until Ready() their views must point to
  // memory.
  virtual absl::Status Prepare(int64_t begin, int64_t end) = 0;
  // Gradients in [begin, end) have their final values for this micro-batch.
  virtual absl::Status Ready(int64_t begin, int64_t end) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_GRADIENT_OBSERVER_H_
