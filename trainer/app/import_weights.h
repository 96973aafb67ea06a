#ifndef TESSERA_TRAINER_APP_IMPORT_WEIGHTS_H_
#define TESSERA_TRAINER_APP_IMPORT_WEIGHTS_H_

#include <span>
#include <string>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "trainer/step/trainer.h"

namespace tessera {

// Fills the weights of a trainer's chunks, which are those of `backend`, from an llm.c file. Master
// weights take the file's full precision; the compute weights are rounded from them. Errors: those
// of ImportLlmc().
absl::Status ImportWeights(const std::string& llmc_file, const ModelConfig& model,
                           std::span<const TrainedChunk> chunks, Backend& backend);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_IMPORT_WEIGHTS_H_
