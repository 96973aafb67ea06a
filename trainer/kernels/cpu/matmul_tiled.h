#ifndef TESSERA_TRAINER_KERNELS_CPU_MATMUL_TILED_H_
#define TESSERA_TRAINER_KERNELS_CPU_MATMUL_TILED_H_

#include "trainer/kernels/cpu/gemm_cache.h"
#include "trainer/kernels/cpu/matmul_product.h"
#include "trainer/kernels/cpu/thread_pool.h"
#include "trainer/kernels/cpu/workspace.h"

namespace tessera {

// The product in tiles of c, of any shape and dtype.
void TiledMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms);

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_MATMUL_TILED_H_
