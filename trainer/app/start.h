#ifndef TESSERA_TRAINER_APP_START_H_
#define TESSERA_TRAINER_APP_START_H_

// The start of a run: the decisions that a session and a dry run share, apart from the choice of
// the checkpoint, which LoadSavedRun() makes.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "tokenizer/tokenizer.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/dataset.h"
#include "trainer/state/run_state.h"
#include "trainer/state/saved_run.h"

namespace tessera {

// Returns the progress with which a run begins: the checkpoint's, as far as the settings permit.
// Sets `config` to the settings of the run: see SettingsFor(), and the saved schedule if requested.
// Errors: FailedPrecondition if the checkpoint does not record the progress from which the run
// would continue; DataLoss for an impossible state.
absl::StatusOr<Progress> StartingPoint(const std::optional<SavedRun>& saved, TrainConfig* config);

// Adds a resume at the present step to the list of those that left out parts of their checkpoint.
void AddPartialResume(const std::string& left_out, Progress& progress);

// Returns FailedPrecondition if tensors would be loaded from another model; only a note if the
// settings allow differences. With strict_topology, also if the topology differs.
absl::Status CheckModel(const SavedRun& saved, const TrainConfig& config, const NoteSink& notes);

// Returns whether the run leaves weights, optimizer or the position in the data of its own
// checkpoint out, as its next start will again. `given` is what the user gave.
bool ResumesInPart(const SavedRun& saved, const CheckpointConfig& given);

// Finds the model file of llm.c that llmc_filepath names. FailedPrecondition if it is another
// model's. Collective.
absl::StatusOr<SavedRun> FindLlmcFile(const TrainConfig& config, const RankGroup& group);

// Adds the setting's name to an error.
absl::Status InSetting(const char* setting, const absl::Status& status);

// Opens the token files that `pattern` matches, of train_data_path or valid_data_path. Errors:
// those of TokenDataset::Open(), with the setting's name.
absl::StatusOr<std::unique_ptr<TokenDataset>> OpenTokens(const char* setting,
                                                         const std::string& pattern,
                                                         const TrainConfig& config);

// Opens the tokenizer of tokenizer_model. InvalidArgument if it is not the model's. Errors name the
// setting.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const TrainConfig& config);

// Adds the checkpoint's name to an error.
absl::Status InCheckpoint(const SavedRun& saved, const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_START_H_
