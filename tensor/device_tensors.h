#ifndef TESSERA_TENSOR_DEVICE_TENSORS_H_
#define TESSERA_TENSOR_DEVICE_TENSORS_H_

#include "tensor/device.h"
#include "tensor/device_runtime.h"
#include "tensor/tensor.h"

namespace tessera {

// Makes Tensor(dtype, shape, device) work during its lifetime. Such memory is in the order of
// `stream`, and its purpose is the calling thread's memory category. AllocationScope in memory.h
// says what happens if too little memory is left. A process has at most one DeviceTensors for each
// device; the stream and the device's context outlive it and every tensor.
class DeviceTensors {
 public:
  DeviceTensors(Device device, Stream& stream);
  ~DeviceTensors();
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;

 private:
  const Device device_;
};

// Returns the memory of a GPU that has DeviceTensors; zeros if the driver does not say.
DeviceRuntime::MemoryInfo DeviceMemory(Device device);

}  // namespace tessera

#endif  // TESSERA_TENSOR_DEVICE_TENSORS_H_
