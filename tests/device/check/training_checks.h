#ifndef TESSERA_TESTS_DEVICE_CHECK_TRAINING_CHECKS_H_
#define TESSERA_TESTS_DEVICE_CHECK_TRAINING_CHECKS_H_

// Comparison of whole models on a device with the CPU, on one rank, without NCCL. Each check
// returns what it has measured, or an error that says what was wrong.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/device/training_device.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera::testing {

struct TrainingSizes {
  // Models in text format: GPT-2, and Llama-3 with fewer key/value heads than query heads.
  std::string gpt2, llama3;
  int64_t vocabulary = 0;
  int64_t seq_length = 0;
  int64_t batch = 0;  // sequences of a step, in two micro-batches
  int64_t curve_steps = 0;
  int64_t same_bits_steps = 0;
  int64_t exact_steps = 10;
  int threads = 1;  // of the CPU
};

// Returns sizes for the simulated device, which take seconds.
TrainingSizes SmallTraining();
// Returns sizes for a GPU: models of three to four million weights, 100 steps; fewer with `quick`.
TrainingSizes FullTraining(bool quick);

// The results of fixed examples in EXACT numerics in fp32, as processors have computed them.
inline constexpr FixedResults kExactResults = {.products_hash = 0x8b8eb3869c0073d5,
                                               .loops_hash = 0x112efa4716dde54d};

// Checks whether configs of these sizes can be made, and Llama-3's attention be computed by
// warpgroups, for tests of FullTraining().
absl::Status CheckSizes(const TrainingSizes& sizes, const std::string& folder);

// The checks. `folder` must exist; token files and checkpoints are written there.
struct TrainingChecks {
  TrainingDevice& device;
  TrainingSizes sizes;
  std::string folder;

  // Compares the loss, the gradients' norm and, through the first moments after one step, the
  // gradient of every weight.
  absl::StatusOr<std::string> Gradients() const;
  // Compares the losses of every step, in fp32 and bf16.
  absl::StatusOr<std::string> Curves() const;
  // Saves while training on the device, resumes on the CPU, saves there and resumes on the device.
  absl::StatusOr<std::string> Resume() const;
  // Compares losses, norms and moments of two runs from the same start, with dropout, bit for bit.
  absl::StatusOr<std::string> SameBits() const;
  // Compares the fixed examples with kExactResults, and executes the first steps of a run of the
  // CPU in EXACT numerics again, in fp32: losses, norms and moments, bit for bit.
  absl::StatusOr<std::string> Exact() const;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_TRAINING_CHECKS_H_
