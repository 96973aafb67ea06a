#ifndef TESSERA_TESTS_PERF_RESHARD_LOAD_STATE_H_
#define TESSERA_TESTS_PERF_RESHARD_LOAD_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "comm/communicator.h"
#include "tests/perf/gpt2_run.h"

namespace tessera {

// The training state of some layers of GPT-2 124M (bf16 weights; fp32 master weights and two
// moments) on one rank of a topology. Every element has a value derived from its tensor's name and
// its index in the tensor, so that a load can be checked under any topology.
class ReshardLoadState {
 public:
  // Makes the state, with all memory prefaulted. Collective over `world`, which must outlive the
  // result.
  static absl::StatusOr<std::unique_ptr<ReshardLoadState>> Create(const std::string& topology,
                                                                  int layers, Communicator& world);

  const std::string& topology() const { return topology_; }
  ckpt::StateDict& dict() { return dict_; }
  const ckpt::StateDict& dict() const { return dict_; }

  // Returns the bytes of the logical tensors, each counted once.
  uint64_t logical_bytes() const { return logical_bytes_; }
  // Returns the bytes of this rank's shards.
  uint64_t local_bytes() const { return local_bytes_; }

  // Overwrites a sample of the elements.
  void Spoil();
  // Returns DataLoss, naming tensor and element, if an element of the sample has the wrong value.
  absl::Status Check() const;

 private:
  explicit ReshardLoadState(std::string topology) : topology_(std::move(topology)) {}

  const std::string topology_;
  std::unique_ptr<Gpt2Run> run_;  // owns the memory
  ckpt::StateDict dict_;
  uint64_t logical_bytes_ = 0;
  uint64_t local_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_RESHARD_LOAD_STATE_H_
