#ifndef TESSERA_COMM_NCCL_DEVICE_REDUCER_H_
#define TESSERA_COMM_NCCL_DEVICE_REDUCER_H_

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "tensor/device.h"

namespace tessera {

// Reduces on the device the data that NCCL has moved: ReduceInTreeOrder() over device memory.
class DeviceReducer {
 public:
  virtual ~DeviceReducer() = default;

  // Queues setting output[i] to the reduction over inputs[0][i], inputs[1][i], ... in the order
  // that ReduceOp promises. `output` may be one of the inputs; no other overlap. The stream's
  // context keeps errors.
  virtual void Reduce(Stream& stream, ReduceOp op, CommType type,
                      std::span<const void* const> inputs, void* output, int64_t elements) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMM_NCCL_DEVICE_REDUCER_H_
