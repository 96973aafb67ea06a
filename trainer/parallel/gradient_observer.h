#ifndef TESSERA_TRAINER_PARALLEL_GRADIENT_OBSERVER_H_
#define TESSERA_TRAINER_PARALLEL_GRADIENT_OBSERVER_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tessera {

// What a backward pass tells about the parameters' gradients while it runs, so that their memory
// can be made late, and their reduction over data-parallel ranks can start early.
//
// Ranges are of the gradient space: the flat space of the parameters, and behind it the second
// contributions of tied ones. A backward pass goes through the parameters in reverse order, each
// range being told once a pass; a tied table that a stage uses at both ends is ready last.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  // Gradients in [begin, end) are about to be written: from now until Ready() their views must
  // point to memory.
  virtual absl::Status Prepare(int64_t begin, int64_t end) = 0;
  // Gradients in [begin, end) have their final values for this micro-batch.
  virtual absl::Status Ready(int64_t begin, int64_t end) = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_GRADIENT_OBSERVER_H_
