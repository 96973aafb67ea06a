#ifndef TESSERA_COMPUTE_DEVICE_KERNEL_REDUCER_H_
#define TESSERA_COMPUTE_DEVICE_KERNEL_REDUCER_H_

#include <memory>

#include "comm/nccl/device_reducer.h"

namespace tessera {

// Adds with the kernel of tree_reduce.h: on the GPU of the stream where nvcc has compiled it
// (:kernel_reducer), else on the simulated device (:simulated_kernel_reducer). Of more than 256
// ranks, it takes memory of the stream for one partial sum per 256 ranks, in fp32 for bf16. Pieces
// of more than 65,536 ranks are Unimplemented. Thread-safe.
std::unique_ptr<DeviceReducer> MakeKernelReducer();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_KERNEL_REDUCER_H_
