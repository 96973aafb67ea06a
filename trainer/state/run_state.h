#ifndef TESSERA_TRAINER_STATE_RUN_STATE_H_
#define TESSERA_TRAINER_STATE_RUN_STATE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "models/config/config.pb.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/token_checksums.h"

namespace tessera {

// The progress of a run: everything besides tensors that a resume needs. The learning rate is a
// function of `step`, random numbers of the seed and their coordinates, the next sample of
// `consumed_samples`, so nothing else is required.
struct Progress {
  int64_t step = 0;              // optimizer steps completed
  int64_t updates = 0;           // steps that changed the weights (for Adam's bias correction)
  int64_t earlier_updates = 0;   // those among them from before step 0: of a run whose optimizer,
                                 // but not its step, was loaded
  int64_t consumed_samples = 0;  // sequences read since the first step
  double last_loss = 0;          // of step `step`
  double last_learning_rate = 0;
  // The lowest losses, infinite before the first one: of evaluations, and of steps.
  double best_loss = std::numeric_limits<double>::infinity();
  double best_training_loss = std::numeric_limits<double>::infinity();
  std::string best_loss_data;  // DataIdentity::validation of best_loss; empty if it is not known
  uint64_t seed = 0;           // for dropout and sampling
  uint64_t data_seed = 0;      // for the sample order, kept when `seed` changes
  std::string ledger;          // head of the chain of steps; empty before the first (ledger.h)
  // The resumes that continued at the step of a checkpoint, but left parts of it out:
  // "step 4 without sampler; step 8 without optimizer". Empty without one.
  std::string partial_resumes;
};

// The data to which consumed_samples refers. A position is meaningless in other data, or in samples
// of another length.
struct DataIdentity {
  DataFingerprint fingerprint;
  int64_t sequence_length = 0;
  int64_t samples_per_epoch = 0;
  // Identifies the samples of evaluations. Empty in a run without evaluations.
  std::string validation;
};

// Returns a manifest without tensors and files: progress, data position, schedule, topology, model,
// numerics (of every rank).
ckpt::Manifest DescribeRun(const TrainConfig& config, const ModelConfig& model,
                           const Progress& progress, const DataIdentity& data,
                           const NumericsFingerprint& numerics);

// Convert to and from the manifest's messages.
ckpt::ModelProto ToProto(const ModelConfig& model);
ckpt::NumericsState ToProto(const NumericsFingerprint& numerics);
NumericsFingerprint FromProto(const ckpt::NumericsState& state);

// Returns the progress in a manifest. DataLoss for values that no run could have written.
absl::StatusOr<Progress> ReadProgress(const ckpt::Manifest& manifest);

// Checks that `model` is the one saved with `manifest`, which the shapes of weights alone do not
// tell (ModelDifferences()). FailedPrecondition, listing every difference, saved and wanted.
// Checkpoints of foreign programs, without a known config, pass, since the load compares their
// tensors' shapes.
absl::Status CheckSameModel(const ckpt::Manifest& manifest, const ModelConfig& model);

// Returns the topology under which a checkpoint was saved, "dp2_tp2"; empty if the manifest does
// not record it.
std::string SavedTopology(const ckpt::Manifest& manifest);

// Describes the differences between a run that continues from `manifest` and the saved one on which
// the bits of losses depend: topology, and numerics as configured and as on this machine. One
// sentence each, for the log. Properties that the checkpoint does not record, because it is older,
// are not compared, nor are machines where DescribeChangedSettings() tells of another precision or
// of other numerics.
std::vector<std::string> DescribeChanges(const ckpt::Manifest& manifest, const TrainConfig& config,
                                         const NumericsFingerprint& numerics);

// Checks that the run has the topology of the saved one, sequence parallelism included.
// FailedPrecondition, naming both; a checkpoint that does not record its topology passes.
absl::Status CheckSameTopology(const ckpt::Manifest& manifest, const TrainConfig& config);

// Checks that random numbers keyed by the saved seed equal those of the saved run.
// FailedPrecondition, naming both algorithms; a checkpoint without random numbers passes.
absl::Status CheckSameRandomNumbers(const ckpt::Manifest& manifest);

// Returns whether the manifest records the data, and its order, to which its position refers. Other
// programs' positions are only numbers of samples, and are taken as positions in this program's own
// order.
bool KnowsItsData(const ckpt::Manifest& manifest);

// Checks that the position in `manifest` refers to `data`, as far as the manifest tells.
// FailedPrecondition, naming both sides.
absl::Status CheckSameData(const ckpt::Manifest& manifest, const DataIdentity& data);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_RUN_STATE_H_
