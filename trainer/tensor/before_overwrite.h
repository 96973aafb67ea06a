#ifndef TESSERA_TRAINER_TENSOR_BEFORE_OVERWRITE_H_
#define TESSERA_TRAINER_TENSOR_BEFORE_OVERWRITE_H_

#include <functional>

#include "trainer/tensor/tensor.h"

namespace tessera {

// Told of memory right before an update overwrites it: the place to wait for whoever still reads it.
// Null where nobody does.
using BeforeOverwrite = std::function<void(const TensorView& memory)>;

}  // namespace tessera

#endif  // TESSERA_TRAINER_TENSOR_BEFORE_OVERWRITE_H_
