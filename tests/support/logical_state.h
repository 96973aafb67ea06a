#ifndef TESSERA_TESTS_SUPPORT_LOGICAL_STATE_H_
#define TESSERA_TESTS_SUPPORT_LOGICAL_STATE_H_

// The naive oracle of a run's state: the state gathered in one place, element by element, without
// the code that shards state for checkpoints.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "layout/dtype.h"
#include "models/layers/parameter.h"
#include "trainer/optim/adamw.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {

// A whole tensor, contiguous.
struct LogicalTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;

  bool operator==(const LogicalTensor&) const = default;
};

// The tensors of a state: weights by name; optimizer state as "<name>.master", "<name>.exp_avg",
// "<name>.exp_avg_sq". A tied table occurs once.
using LogicalState = std::map<std::string, LogicalTensor>;

// Returns the size of the whole state in bytes.
int64_t Bytes(const LogicalState& state);

// Assembles the state of all ranks. Internal if two ranks that hold the same element disagree about
// it, or if padding is not zero. Thread-safe.
class StateCollector {
 public:
  absl::Status Add(std::span<const TrainedChunk> chunks);
  // Returns Internal if no rank has added some element.
  absl::Status CheckComplete() const;
  LogicalState Take();

 private:
  struct Collected {
    LogicalTensor tensor;
    std::vector<bool> known;  // by element
  };
  absl::Status AddBuffer(const Parameter& parameter, int64_t begin, const TensorView& values,
                         const std::string& suffix);
  absl::Status AddRow(int64_t first, int64_t count, const std::byte* from, Collected& to);

  mutable Mutex mutex_;
  std::map<std::string, Collected> tensors_ ABSL_GUARDED_BY(mutex_);
};

// Sets a rank's part of a complete state. Does not change padding. Internal, naming the tensor, if
// the state lacks one that the rank has, or has it with another dtype or shape.
absl::Status SetState(std::span<const TrainedChunk> chunks, const LogicalState& state);

// Sets every element of a rank's state to a distinct value: a function of the seed, the tensor's
// name and the element's index in the whole tensor, rounded to its dtype. Does not change padding.
void FillState(std::span<const TrainedChunk> chunks, uint64_t seed);

// Returns the state of a bf16 run after loading an fp32 run's checkpoint: the fp32 weights become
// its master weights and, rounded to nearest even, its weights; moments are unchanged.
LogicalState AsBf16Run(const LogicalState& fp32_run);
// Returns the state of an fp32 run after loading a bf16 run's checkpoint: its weights are the
// master weights, the rounded ones are skipped, moments are unchanged.
LogicalState AsFp32Run(const LogicalState& bf16_run);

// Returns the first difference as a sentence; empty if the states are equal to the last bit.
std::string FirstStateDifference(const LogicalState& a, const LogicalState& b);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_LOGICAL_STATE_H_
