#ifndef TESSERA_TRAINER_STATE_LOAD_TENSORS_H_
#define TESSERA_TRAINER_STATE_LOAD_TENSORS_H_

// From a saved run into a trainer's memory.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/find_saved.h"
#include "trainer/state/state_dict.h"

namespace tessera {

// Permitted differences between the saved and the wanted state. By default none.
struct LoadPolicy {
  bool with_weights = true;    // without: no master weights either, since these are the weights
  bool with_optimizer = true;  // master weights and moments, too
  // Without the optimizer: master weights nevertheless, from the saved weights.
  bool with_masters = false;
  // Parameters that were not saved keep their current values, as does their optimizer state. A
  // parameter that was saved without optimizer state, because it was frozen, keeps its moments,
  // which must be zero, and takes its master weight from its weight. A parameter that was saved
  // with one of its two moments is still an error.
  bool allow_missing = false;
  // Saved tensors that the model does not have are skipped.
  bool allow_unexpected = false;
  // Only parameters whose names match one of these (base/files.h), with their optimizer state;
  // empty: all.
  std::vector<std::string> patterns;
  // Compare the digests of what has been loaded with the saved ones.
  bool verify = false;

  // Whether anything may keep its current value.
  bool partial() const { return allow_missing || !patterns.empty(); }
};

// The policy of the settings, for a run that has an optimizer to load or not.
LoadPolicy PolicyOf(const CheckpointConfig& config, bool has_optimizer);

// How LoadTensors deviated from a plain load, one sentence each, for the log of rank 0.
struct LoadNotes {
  std::vector<std::string> sentences;
  ckpt::LoadReport report;
  // Counts of the whole checkpoint's parameters: all, and those that match the policy's patterns.
  int64_t saved_parameters = 0;
  int64_t matching_parameters = 0;
};

// Loads weights and, if the policy includes them, master weights and moments: those that the
// manifest's mapping assigns to a parameter, whatever they are called. Differences of
// precision are bridged: fp32 weights come from saved master weights; master weights that were not
// saved come from the saved weights. Everything is compared first (FailedPrecondition listing every
// mismatch); after DataLoss while reading, buffers are partly overwritten. Collective.
absl::StatusOr<LoadNotes> LoadTensors(const SavedRun& run, StateChunks chunks,
                                      const LoadPolicy& policy, const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_LOAD_TENSORS_H_
