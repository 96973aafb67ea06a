#ifndef TESSERA_CONVERT_TRAINER_FILES_H_
#define TESSERA_CONVERT_TRAINER_FILES_H_

// What trainers keep beside a model.

#include "absl/status/status.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Adds the files that transformers' trainers and accelerate keep beside a model. Names of tensors
// and values begin with "optimizer." (optimizer.pt or .bin) or "scheduler." (scheduler.pt or .bin),
// those in the JSON object trainer_state.json with "trainer_state.". Those of Lightning's meta.pt,
// beside a folder of DCP, are kept. Missing files are skipped. Damaged files are skipped with a
// note, unless `needed`. Another note lists the trainer's other files, such as rng_state.pth.
// Errors: DataLoss, naming the file; those of the storage.
absl::Status AddTrainerFiles(Storage& storage, bool needed, ForeignCheckpoint& checkpoint);

// Sets the step of the trainer, and the consumed samples, from values of the usual names: the names
// of known programs, and "global_step", "step", "iteration" and "iter_num" in the outermost dict. A
// step that the optimizer has counted takes precedence, then the first value; notes name others.
void TakeTrainerValues(ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TRAINER_FILES_H_
