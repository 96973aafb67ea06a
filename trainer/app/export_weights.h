#ifndef TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_
#define TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "trainer/app/session.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Checks that the file named by export_llmc can be written, since that happens at the end of a run
// that may take weeks. For rank 0. The error is one sentence with the name of the setting.
absl::Status CheckExport(const TrainConfig& config);

// Writes the session's weights, in the compute precision, to an llm.c file. Every rank calls it;
// rank 0 writes. The file appears complete or not at all. A rank needs only some MiB in addition to
// its part of the model.
absl::Status ExportWeights(const Session& session, const std::string& path);

// The file of export_llmc_interval at `step`: "weights.bin" becomes "weights-00000100.bin".
std::string ExportPathOfStep(const std::string& export_llmc, int64_t step);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_
