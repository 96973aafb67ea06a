#ifndef TESSERA_TESTS_THIRD_ARCHITECTURE_POSITIONLESS_H_
#define TESSERA_TESTS_THIRD_ARCHITECTURE_POSITIONLESS_H_

// An architecture that Tessera does not have: GPT-2 without positions and without biases.

#include "models/layers/architecture.h"

namespace tessera::testing {

extern const Architecture kPositionless;

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_THIRD_ARCHITECTURE_POSITIONLESS_H_
