#ifndef TESSERA_TRAINER_STATE_SAVED_MODEL_H_
#define TESSERA_TRAINER_STATE_SAVED_MODEL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Returns the model of the checkpoint with which a run with these settings begins. With
// auto_resume, it is the newest one in `save`, otherwise the one in `load`, which may be another
// framework's. nullopt if there is no checkpoint, or its files describe no known model. Not
// collective: every rank reads the manifest, or the headers of the other framework's files.
//
// Errors: those of files in `load` that are damaged or in no known format; InvalidArgument, with
// the reader's notes, for another framework's checkpoint of an unknown model.
absl::StatusOr<std::optional<SavedModel>> FindSavedModel(const CheckpointConfig& config);

// Returns InvalidArgument, listing the formats, if load_format is set to anything else.
absl::Status CheckLoadFormat(const CheckpointConfig& config);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVED_MODEL_H_
