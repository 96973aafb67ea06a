#ifndef TESSERA_TRAINER_STATE_SAVED_SETTINGS_H_
#define TESSERA_TRAINER_STATE_SAVED_SETTINGS_H_

// The settings that a checkpoint was saved with, and what a resume makes of them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/flag_options.pb.h"
#include "checkpoint/include/manifest.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Records in `state` the settings of `config` that the results of a run depend on, if only in the
// last bits, as their declarations say (`effect` in base/flag_options.proto). The model's and the
// topology are in the manifest already.
// `seed` replaces the config's: a resumed run keeps the seed of the saved one.
void SaveSettings(const TrainConfig& config, uint64_t seed, ckpt::TrainerState& state);

// The text of the settings that the bits of a run in EXACT numerics depend on, those of the model
// included. `seed` as above.
std::string DeterminingSettings(const TrainConfig& config, uint64_t seed);

// "FAST" or "EXACT with 2 shards": the entry kNumerics of TrainerState::extra.
inline constexpr char kNumerics[] = "numerics";
std::string NumericsText(const TrainConfig& config);

struct ChangedSetting {
  std::string name;
  std::string saved;
  std::string now;
  Effect::Value effect = Effect::RESULTS;
};

// The settings, the model's included, in which a run with `config` and `seed` differs from the
// saved one. A setting that one of the two does not have is not compared, so that none is reported
// for a checkpoint of an older version, which records none.
std::vector<ChangedSetting> ChangedSettings(const ckpt::Manifest& manifest,
                                            const TrainConfig& config, uint64_t seed);

// The changes as a table of a few lines for the log, whether the bits of the losses change with
// them, and what they make of the learning rate of the update that follows `step`. Empty without
// changes.
std::string DescribeChangedSettings(const ckpt::Manifest& manifest, const TrainConfig& config,
                                    uint64_t seed, int64_t step);

// Replaces the schedule in `config`: the fields that their declarations mark `of_schedule` become
// the saved run's. FailedPrecondition where the checkpoint does not record them; DataLoss where
// they are not those of a possible run.
absl::Status TakeSavedSchedule(const ckpt::Manifest& manifest, TrainConfig* config);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVED_SETTINGS_H_
