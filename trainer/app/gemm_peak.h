#ifndef TESSERA_TRAINER_APP_GEMM_PEAK_H_
#define TESSERA_TRAINER_APP_GEMM_PEAK_H_

#include "trainer/kernels/backend.h"
#include "trainer/tensor/dtype.h"

namespace tessera {

// FLOP/s of a large matrix product on this backend: what the share of peak in the progress line is
// a share of. Takes some 0.3 s; the best of several runs, since other work on the machine can only
// slow it down.
double MeasureGemmPeak(Backend& backend, DType dtype);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_GEMM_PEAK_H_
