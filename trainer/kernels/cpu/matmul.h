#ifndef TESSERA_TRAINER_KERNELS_CPU_MATMUL_H_
#define TESSERA_TRAINER_KERNELS_CPU_MATMUL_H_

#include <cstdint>

#include "trainer/tensor/dtype.h"

namespace tessera {

struct TileShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// The tiles that a product [m,k] x [k,n] is cut into: a pure function of the shape, chosen
// so that 2 to 16 threads have near-equal work and one tile runs near the processor's peak.
TileShape ChooseTile(int64_t m, int64_t n, int64_t k, DType dtype);

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_MATMUL_H_
