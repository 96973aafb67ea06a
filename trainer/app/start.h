#ifndef TESSERA_TRAINER_APP_START_H_
#define TESSERA_TRAINER_APP_START_H_

// What a run begins with: the decisions that a session and a dry run share. Which checkpoint it is
// decides ContinueFromSaved().

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/find_saved.h"
#include "trainer/state/run_state.h"

namespace tessera {

// The progress that a run begins with: the checkpoint's, as far as the settings permit. `config`
// becomes the settings of the run: see SettingsFor(), and the saved schedule where it is asked for.
// Errors: FailedPrecondition where the checkpoint does not tell what the run would continue with;
// DataLoss for an impossible state.
absl::StatusOr<Progress> StartingPoint(const std::optional<SavedRun>& saved, TrainConfig* config);

// FailedPrecondition where tensors would be loaded from another model; a note instead where the
// settings allow for differences.
absl::Status CheckModel(const SavedRun& saved, const TrainConfig& config, const NoteSink& notes);

// The model file of llm.c that llmc_filepath names. FailedPrecondition if it is another model's.
// Collective.
absl::StatusOr<SavedRun> FindLlmcFile(const TrainConfig& config, const RankGroup& group);

// The tokenizer of tokenizer_model. InvalidArgument where it is not the model's.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const TrainConfig& config);

// Adds the checkpoint's name to an error.
absl::Status InCheckpoint(const SavedRun& saved, const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_START_H_
