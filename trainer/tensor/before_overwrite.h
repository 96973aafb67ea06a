#ifndef TESSERA_TRAINER_TENSOR_BEFORE_OVERWRITE_H_
#define TESSERA_TRAINER_TENSOR_BEFORE_OVERWRITE_H_

#include <functional>

#include "trainer/tensor/tensor.h"

namespace tessera {

// Called with memory right before an update overwrites it, so that the callee can wait for pending
// reads of it. Null if there are none.
using BeforeOverwrite = std::function<void(const TensorView& memory)>;

}  // namespace tessera

#endif  // TESSERA_TRAINER_TENSOR_BEFORE_OVERWRITE_H_
