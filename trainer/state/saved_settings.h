#ifndef TESSERA_TRAINER_STATE_SAVED_SETTINGS_H_
#define TESSERA_TRAINER_STATE_SAVED_SETTINGS_H_

// The settings with which a checkpoint was saved, and their use in a resume.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/flag_options.pb.h"
#include "checkpoint/include/manifest.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/saved_run.h"

namespace tessera {

// Parses settings in protobuf's text format. Returns false for other text, such as a foreign
// program's. Fields of a later version are skipped; `has_unknown` (may be null) is then true.
bool ParseSettings(const std::string& text, google::protobuf::Message* message,
                   bool* has_unknown = nullptr);

// Records in `state` the settings of `config` on which the results of a run depend, if only in the
// last bits, as their declarations say (`effect` in base/flag_options.proto). The model's settings
// and the topology are in the manifest already. `seed` replaces the config's, since a resumed run
// keeps the seed of the saved one.
void SaveSettings(const TrainConfig& config, uint64_t seed, ckpt::TrainerState& state);

// Returns the text of the settings on which the bits of a run in EXACT numerics depend, the model's
// included. `seed` replaces the config's.
std::string DeterminingSettings(const TrainConfig& config, uint64_t seed);

// The entry kNumerics of TrainerState::extra, and its text: "FAST" or "EXACT with 2 shards".
inline constexpr char kNumerics[] = "numerics";
std::string NumericsText(const TrainConfig& config);

struct ChangedSetting {
  std::string name;
  std::string saved;
  std::string now;
  Effect::Value effect = Effect::RESULTS;
};

// Returns the settings, the model's included, that differ between a run with `config` and `seed`
// and the saved one. A setting that one of the two lacks is not compared. So none is reported for a
// checkpoint of an older version, which records no settings.
std::vector<ChangedSetting> ChangedSettings(const ckpt::Manifest& manifest,
                                            const TrainConfig& config, uint64_t seed);

// Describes the changes for the log: a table of a few lines, whether the bits of the losses change,
// and the change of the learning rate of the update that follows `step`. Empty without changes.
std::string DescribeChangedSettings(const ckpt::Manifest& manifest, const TrainConfig& config,
                                    uint64_t seed, int64_t step);

// Replaces the schedule in `config`: the fields that their declarations mark `of_schedule` become
// the saved run's. FailedPrecondition if the checkpoint does not record them; DataLoss if no run
// could have them.
absl::Status TakeSavedSchedule(const ckpt::Manifest& manifest, TrainConfig* config);

// Returns the settings for a run that continues from `saved`. Settings that concern a start from
// another folder (finetune, no_load_optim and so on) do not apply to a resume from the run's own
// folder; without saved optimizer state, no_load_optim does, and no_save_optim implies it. So does
// another framework's optimizer without state.
TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVED_SETTINGS_H_
