#ifndef TESSERA_TRAINER_CONVERT_MODEL_RULES_H_
#define TESSERA_TRAINER_CONVERT_MODEL_RULES_H_

#include "convert/core/model_rules.h"

namespace tessera {

// What the registered architectures (models/registry.h) declare about the files of other
// frameworks, in the terms of the checkpoint library. Thread-safe.
const ckpt::convert::ModelRules& RegisteredModelRules();

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONVERT_MODEL_RULES_H_
