#ifndef TESSERA_CONVERT_CORE_TRAINER_VALUES_H_
#define TESSERA_CONVERT_CORE_TRAINER_VALUES_H_

#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

// Sets the step of the trainer, and the consumed samples, from values whose names have one meaning:
// those that a known program gives them, which another of its names tells. Numbers under names that
// any script may use, such as "step", stay values only. A step that the optimizer has counted is
// kept; a note says where the other differs.
void TakeTrainerValues(ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_TRAINER_VALUES_H_
