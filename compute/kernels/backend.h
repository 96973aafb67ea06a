#ifndef TESSERA_COMPUTE_KERNELS_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_BACKEND_H_

// The operations of operations.h, on one device. Implementations: cpu/ (matrix products
// and vector loops, fp32 and bf16), reference/ (naive loops in fp64 over any dtype: the oracle of
// every test, and the engine of gradient checks), cuda/ (GPUs).
//
// Rules that every implementation keeps:
// - Results are a pure function of the operands and their shapes (and, for a matrix product, its
//   strides), never of the thread count, of addresses or of time. One thread computes each block of
//   the work, and sums over blocks are taken in a fixed order. Where blocks begin depends on shapes
//   alone, or changes no bit.
// - Operations that compute unit by unit (rows, samples, heads or elements) give the same result
//   for each unit, whatever other units are passed in the same call. These are activations,
//   dropout, attention, AdamW, and norms and losses except for the gradients of weights.
// - Sums are fp32 or better. Statistics, losses and parameter gradients are fp32 (fp64 where the
//   compute dtype is fp64).
// - Calls are queued in order: on a device with streams they return early. Only Synchronize() and
//   the operations that return a number wait, unless the number is for later.
// - Wrong shapes or dtypes are bugs of the caller: CHECK.

#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "compute/kernels/operations.h"
#include "tensor/tensor.h"

namespace tessera {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  // Waits for all queued operations. Returns the first error since the last call, which names what
  // failed; results of operations after it are undefined. Called at the end of a step.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }

  // Copies the bytes at `host` to `to` (contiguous), in the order of the queue. `host` may be
  // reused on return.
  virtual void Upload(const void* host, TensorView to) {
    std::memcpy(to.data(), host, static_cast<size_t>(to.bytes()));
  }
  // Copies `from` (contiguous) to `host` after everything queued before, and waits for it.
  virtual void Download(TensorView from, void* host) {
    std::memcpy(host, from.data(), static_cast<size_t>(from.bytes()));
  }

  // Returns whether operands of any dtypes and strides are allowed, as only in the reference.
  virtual bool takes_any_operands() const { return false; }

  // One method for each operation: GeluForward({x, out}) checks the operands and runs it.
#define TESSERA_CALL_OPERATION(Result, Name) \
  Result Name(const ops::Name& op) {         \
    ops::Check(op, !takes_any_operands());   \
    return Run(op);                          \
  }
  TESSERA_OPERATIONS(TESSERA_CALL_OPERATION)
#undef TESSERA_CALL_OPERATION

 protected:
  // The methods of an implementation: each operation, on operands that have been checked.
#define TESSERA_RUN_PRIMITIVE(Result, Name) virtual Result Run(const ops::Name& op) = 0;
#define TESSERA_RUN_COMPOSED(Result, Name) virtual Result Run(const ops::Name& op);
  TESSERA_PRIMITIVE_OPERATIONS(TESSERA_RUN_PRIMITIVE)
  TESSERA_COMPOSED_OPERATIONS(TESSERA_RUN_COMPOSED)
#undef TESSERA_RUN_PRIMITIVE
#undef TESSERA_RUN_COMPOSED
};

// Declares the implementations of the operations of a list, in a class derived from Backend.
#define TESSERA_DECLARE_RUN(Result, Name) Result Run(const ops::Name& op) override;

// Defines the implementations of the operations of a list, in a class that wraps the Backend
// `backend_`. Each calls the class's template Forward(op, name, call), where call() runs the
// operation on backend_; Forward() returns the result of call().
#define TESSERA_FORWARD_RUN(Result, Name)                               \
  Result Run(const ops::Name& op) override {                            \
    return Forward(op, #Name, [&] { return this->backend_.Name(op); }); \
  }

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_BACKEND_H_
