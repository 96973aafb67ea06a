#ifndef TESSERA_TRAINER_STEP_PRODUCT_RATE_H_
#define TESSERA_TRAINER_STEP_PRODUCT_RATE_H_

#include "absl/status/statusor.h"
#include "compute/kernels/backend.h"
#include "layout/dtype.h"

namespace tessera {

// Returns the rate of products: the best FLOP/s of large products in a dtype on this backend.
// The share of the peak is the model's FLOP/s (Trainer::FlopsPerToken()) over this rate, in the
// programs `train` and check_device, and the least time of a step is the model's FLOPs over it.
//
// The products are y = x w^T of square matrices with sides from 256 to 8,192. The numbers are
// random, since a GPU multiplies constants faster. The best of several rounds with each side is
// used: other load on the machine can only slow a round down. A round queues enough products that
// waiting for them costs little.
//
// Cost: about 0.5 s. A side is left out if it is predicted to take long, or no memory is left for
// it; returns 0 if none is left for the least. Errors: those of the backend.
absl::StatusOr<double> MeasureProductRate(Backend& backend, DType dtype);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_PRODUCT_RATE_H_
