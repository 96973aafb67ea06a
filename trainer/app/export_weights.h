#ifndef TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_
#define TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_

#include "absl/status/status.h"
#include "trainer/app/session.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Whether the file that export_llmc names can be written, at the end of a run that may take weeks.
// For rank 0. One sentence with the name of the setting.
absl::Status CheckExport(const TrainConfig& config);

// Writes the session's weights, in the precision in which they are computed with, to the llm.c file
// that export_llmc names. Every rank calls it; rank 0 writes. No rank holds more of the model than
// it did, but for some MiB.
absl::Status ExportWeights(const Session& session);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_
