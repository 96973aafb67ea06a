#include "checkpoint/plan/state_dict.h"

#include "checkpoint/format/dtype.h"

namespace tessera::ckpt {

size_t ElementBytes(ElementType dtype) { return DTypeSize(static_cast<DType>(dtype)); }

}  // namespace tessera::ckpt
