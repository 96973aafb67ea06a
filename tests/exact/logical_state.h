#ifndef TESSERA_TESTS_EXACT_LOGICAL_STATE_H_
#define TESSERA_TESTS_EXACT_LOGICAL_STATE_H_

// The naive oracle of what a run holds: everything gathered in one place, element by element, with
// nothing of the code that cuts state into shards for checkpoints.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/layers/parameter.h"
#include "trainer/optim/adamw.h"
#include "trainer/step/trainer.h"
#include "trainer/tensor/dtype.h"

namespace tessera::testing {

// A whole tensor, contiguous.
struct LogicalTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;

  bool operator==(const LogicalTensor&) const = default;
};

// Weights by name; optimizer state as "<name>.master", "<name>.exp_avg", "<name>.exp_avg_sq". A
// tied table is there once.
using LogicalState = std::map<std::string, LogicalTensor>;

// Of the whole, in bytes.
int64_t Bytes(const LogicalState& state);

// Puts the state of all ranks together. Internal where two ranks that hold the same element
// disagree about it, and where padding is not zero. Threads: any number.
class StateCollector {
 public:
  absl::Status Add(std::span<const TrainedChunk> chunks);
  // Internal when there are elements that no rank has given.
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

  std::mutex mutex_;
  std::map<std::string, Collected> tensors_;
};

// Gives every element of a rank's state a value of its own: a function of the seed, the tensor's
// name and the element's place in the whole tensor, rounded to its dtype. Padding stays as it is.
void FillState(std::span<const TrainedChunk> chunks, uint64_t seed);

// What a bf16 run holds after loading what an fp32 run saved: the fp32 weights are its master
// weights, its weights are those rounded to nearest even, moments stay what they are.
LogicalState AsBf16Run(const LogicalState& fp32_run);
// What an fp32 run holds after loading what a bf16 run saved: its weights are the master weights,
// the rounded ones are passed over, moments stay what they are.
LogicalState AsFp32Run(const LogicalState& bf16_run);

// The first difference as a sentence; empty when they are equal to the last bit.
std::string FirstStateDifference(const LogicalState& a, const LogicalState& b);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_EXACT_LOGICAL_STATE_H_
