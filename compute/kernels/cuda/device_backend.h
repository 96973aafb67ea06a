#ifndef TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/products.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "tensor/device.h"
#include "tensor/host_copies.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Returns a backend on one stream of a GPU. Under nvcc (:device_backend) the kernels of this folder
// run on the GPU of the stream; under another compiler (:simulated_device_backend) they run on the
// simulated device, whose stream is one of a FakeDeviceRuntime.
//
// Every operation is queued, and returns before it has run; operations that return a number wait
// for it. Synchronize() reports errors: the error of a launch names the kernel, the operation and
// the shapes of its operands.
//
// Memory: scratch memory grows to the need of the largest operation, and stays. An operation for
// which too little memory is left does nothing, and Synchronize() reports the error.
//
// `numerics`: with kExactProducts, products of fp32 operands are a kernel of ours, with the bits of
// the contract of cpu/gemm/gemm.h, instead of `products`. With kExact, so is every operation, which
// then computes the bits of processors in EXACT numerics; operands must be fp32.
//
// `choices`: only those about attention are used; `products` has choices of its own.
//
// `compute` must outlive the backend; `products` works on the same stream. Not thread-safe.
std::unique_ptr<Backend> MakeDeviceBackend(Device device, Stream& compute,
                                           std::unique_ptr<Products> products,
                                           DeviceNumerics numerics = DeviceNumerics::kFast,
                                           const ProductChoices& choices = {});

// Checks on fixed examples whether the device computes sums, products, multiply-adds, quotients and
// square roots as IEEE 754 does, rounded to nearest, with subnormal numbers. FailedPrecondition
// names `device`, which EXACT numerics cannot use, and the first result that differs. Waits.
absl::Status CheckArithmetic(const std::string& device, Stream& compute, HostCopies& copies);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_DEVICE_BACKEND_H_
