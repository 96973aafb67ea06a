#ifndef TESSERA_TESTS_PERF_GENERATED_STATE_H_
#define TESSERA_TESTS_PERF_GENERATED_STATE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "comm/communicator.h"
#include "tests/perf/gpt2_run.h"

namespace tessera {

class GeneratedMemory;

// The training state of a GPT-2 (bf16 weights; fp32 master weights and two moments) on one rank of
// a topology, which may be larger than the memory of the machine. Its shards have the trainer's
// boxes, on a device (checkpoint/include/device_memory.h) that keeps no element. A save receives
// values that are derived from the tensor's name and the element's index in the tensor; a load's
// elements are compared with these values. Values come from a table of 8 MiB by memcpy(), about as
// fast as from memory.
class GeneratedState {
 public:
  // `model` is a ModelConfig in text format. `world`, which has the ranks of the topology, must
  // outlive the result.
  static absl::StatusOr<std::unique_ptr<GeneratedState>> Create(const std::string& model,
                                                                const std::string& topology,
                                                                Communicator& world);

  const ckpt::StateDict& dict() const { return dict_; }
  // Returns memory that stands in for all of this rank's state, piece by piece: generated values,
  // the same memory many times.
  std::vector<std::span<std::byte>> Buffers() const;

  // Returns DataLoss, naming the tensor, unless loads have filled each element once since the last
  // call. A load fails with DataLoss at the first element that is not what was saved.
  absl::Status CheckLoaded();

 private:
  GeneratedState() = default;

  std::unique_ptr<Gpt2Run> run_;  // has the addresses, but no memory
  std::shared_ptr<GeneratedMemory> memory_;
  ckpt::StateDict dict_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_GENERATED_STATE_H_
