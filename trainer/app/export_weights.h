#ifndef TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_
#define TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_

#include "absl/status/status.h"
#include "trainer/app/session.h"
#include "trainer/state/foreign_weights.h"

namespace tessera {

// Checks that what export_llmc and export_hf_interval name can be written, since that happens at
// the end, or in the middle, of a run that may take weeks. For rank 0. The error is one sentence
// with the name of the setting.
absl::Status CheckExport(const Session& session);

// Writes the session's weights, in the compute precision. Every rank calls it; rank 0 writes. File
// or folder appear complete or not at all. A rank needs only some MiB in addition to its part of
// the model.
absl::Status ExportWeights(const Session& session, const ForeignWeights& weights);

// What export_llmc names at the end of a run.
ForeignWeights LlmcExport(const Session& session);
// That of export_llmc_interval at the present step: "weights.bin" becomes "weights-00000100.bin".
ForeignWeights LlmcExportOfStep(const Session& session);
// The folder of export_hf_interval at the present step: "hf-00000100" in `save`.
ForeignWeights HuggingFaceExportOfStep(const Session& session);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_EXPORT_WEIGHTS_H_
