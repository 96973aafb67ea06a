#ifndef TESSERA_TRAINER_KERNELS_CPU_MATMUL_PACKED_H_
#define TESSERA_TRAINER_KERNELS_CPU_MATMUL_PACKED_H_

#include "trainer/kernels/cpu/gemm_cache.h"
#include "trainer/kernels/cpu/matmul_product.h"
#include "trainer/kernels/cpu/thread_pool.h"
#include "trainer/kernels/cpu/workspace.h"

namespace tessera {

// bf16 on processors whose oneDNN kernels want packed operands: does the product, or returns false
// where its shape does not suit them.
bool PackedMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms);

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_MATMUL_PACKED_H_
