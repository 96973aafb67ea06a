#ifndef TESSERA_COMPUTE_KERNELS_REFERENCE_BACKEND_IMPL_H_
#define TESSERA_COMPUTE_KERNELS_REFERENCE_BACKEND_IMPL_H_

// Internal to this package. The formula of each operation is above its definition.

#include <cstdint>
#include <span>

#include "compute/kernels/backend.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {

class ReferenceBackend final : public Backend {
 public:
  Device device() const override { return {}; }
  bool takes_any_operands() const override { return true; }

 protected:
  using Backend::Run;
  TESSERA_PRIMITIVE_OPERATIONS(TESSERA_DECLARE_RUN)
};

}  // namespace tessera::reference

#endif  // TESSERA_COMPUTE_KERNELS_REFERENCE_BACKEND_IMPL_H_
