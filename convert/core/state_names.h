#ifndef TESSERA_CONVERT_CORE_STATE_NAMES_H_
#define TESSERA_CONVERT_CORE_STATE_NAMES_H_

#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt::convert {

// Returns the checkpoint with the name "<parameter>.<state>" (transformer.wte.weight.exp_avg) for
// each tensor of optimizer state that the manifest's mapping assigns to a parameter, whatever its
// name was: two exchanged names are exchanged back. The mapping may give a parameter by its second
// name.
//
// Optimizer state that the mapping does not mention keeps its name, or becomes "<name> (of no
// parameter)" if the mapping gives the name to another tensor.
//
// If names change, the result uses the storage of `checkpoint`, which must outlive it.
Checkpoint WithStatesNamedByMapping(const Checkpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_STATE_NAMES_H_
