#ifndef TESSERA_TRAINER_STATE_LOAD_TENSORS_H_
#define TESSERA_TRAINER_STATE_LOAD_TENSORS_H_

// Loading of a saved run into a trainer's memory.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/saved_run.h"
#include "trainer/state/state_chunks.h"

namespace tessera {

// Permitted differences between the saved and the wanted state. By default none.
struct LoadPolicy {
  bool with_weights = true;    // without: no master weights either, since these are the weights
  bool with_optimizer = true;  // master weights and moments, too
  // Whether master weights come from the saved weights, without the optimizer.
  bool with_masters = false;
  // Whether parameters that were not saved, and their optimizer state, keep their current values. A
  // parameter that was saved without optimizer state, because it was frozen, keeps its moments,
  // which must be zero, and takes its master weight from its weight. A parameter that was saved
  // with only one of its two moments is still an error.
  bool allow_missing = false;
  // Whether saved tensors that the model does not have are skipped.
  bool allow_unexpected = false;
  // Patterns (base/files.h) of the names of the parameters to load, with their optimizer state;
  // empty: all.
  std::vector<std::string> patterns;
  // Whether to compare the digests of the loaded tensors with the saved ones.
  bool verify = false;

  // Returns whether anything may keep its current value.
  bool partial() const { return allow_missing || !patterns.empty(); }
};

// Returns the policy of the settings, for a run with or without an optimizer to load.
LoadPolicy PolicyOf(const CheckpointConfig& config, bool has_optimizer);

// The deviations of LoadTensors() from a plain load, one sentence each, for the log of rank 0.
struct LoadNotes {
  std::vector<std::string> sentences;
  ckpt::LoadReport report;
  bool lacks_tensors = false;  // any rank lacks a tensor that the policy lets it do without
  // Counts of the whole checkpoint's parameters: all, and those that match the policy's patterns.
  int64_t saved_parameters = 0;
  int64_t matching_parameters = 0;
};

// Returns whether a tensor of this role was saved.
bool HasRole(const ckpt::Manifest& manifest, ckpt::TensorRole role);

// Returns whether the manifest describes an optimizer without any state, such as SGD of another
// framework.
bool IsOfStatelessOptimizer(const ckpt::Manifest& manifest);

// Loads weights and, if the policy includes them, master weights and moments, which the manifest's
// mapping assigns to parameters, whatever their names. Differences of precision are bridged: fp32
// weights come from saved master weights; master weights that were not saved come from the saved
// weights. Everything is compared first (FailedPrecondition listing every mismatch); after DataLoss
// while reading, buffers are partly overwritten. Collective.
absl::StatusOr<LoadNotes> LoadTensors(const SavedRun& run, StateChunks chunks,
                                      const LoadPolicy& policy, const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_LOAD_TENSORS_H_
