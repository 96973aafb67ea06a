#ifndef TESSERA_COMPUTE_DEVICE_KERNEL_REDUCER_H_
#define TESSERA_COMPUTE_DEVICE_KERNEL_REDUCER_H_

#include <memory>

#include "comm/nccl/device_reducer.h"

namespace tessera {

// Returns a reducer that runs the kernel of tree_reduce.h: on the GPU of the stream if nvcc
// compiled it (:kernel_reducer), otherwise on the simulated device (:simulated_kernel_reducer). For
// more than 256 ranks it allocates memory of the stream for one partial sum per 256 ranks, in fp32
// for bf16. More than 65,536 ranks are Unimplemented. Thread-safe.
std::unique_ptr<DeviceReducer> MakeKernelReducer();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_KERNEL_REDUCER_H_
