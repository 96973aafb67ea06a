#ifndef TESSERA_CONVERT_CORE_STATE_NAMES_H_
#define TESSERA_CONVERT_CORE_STATE_NAMES_H_

#include "checkpoint/include/checkpoint.h"

namespace tessera::ckpt::convert {

// The same checkpoint with the name "<parameter>.<state>" (transformer.wte.weight.exp_avg) for each
// tensor of optimizer state whose parameter the manifest's mapping tells, whatever its name is: two
// that were exchanged are exchanged back. The mapping may give a parameter by its second name.
//
// Optimizer state that the mapping does not mention keeps its name. Where the mapping gives that
// name to another tensor, it is called "<name> (of no parameter)".
//
// Where names change, the result uses the storage of `checkpoint`, which must outlive it.
Checkpoint WithStatesNamedByMapping(const Checkpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_STATE_NAMES_H_
