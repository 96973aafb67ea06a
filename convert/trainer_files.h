#ifndef TESSERA_CONVERT_TRAINER_FILES_H_
#define TESSERA_CONVERT_TRAINER_FILES_H_

#include <string_view>

#include "absl/status/status.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

// Adds what trainers of transformers, and accelerate, keep beside a model: tensors and values of
// "optimizer.pt" or "optimizer.bin" below "optimizer.", of "scheduler.pt" or "scheduler.bin" below
// "scheduler.", and values of trainer_state.json, a JSON object, below "trainer_state.". What is
// not there is left out, as is what is damaged in files that are not `needed`, with a note. Errors:
// DataLoss naming the file; those of the storage.
absl::Status AddTrainerFiles(Storage& storage, std::string_view folder, bool needed,
                             ForeignCheckpoint& checkpoint);

// Sets the step of the trainer, and the consumed samples, from values whose names have one meaning:
// those that a known program gives them, which another of its names tells. Numbers under names that
// any script may use, such as "step", stay values only. A step that the optimizer has counted is
// kept; a note says where the other differs.
void TakeTrainerValues(ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TRAINER_FILES_H_
