#ifndef TESSERA_COMPUTE_PARALLEL_REPLICAS_H_
#define TESSERA_COMPUTE_PARALLEL_REPLICAS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "compute/kernels/backend.h"
#include "tensor/tensor.h"

namespace tessera {

// Comparison of the copies of weights and gradients that several ranks hold, and which are computed
// and communicated so that they have the same bits. Copies that differ never converge again, and
// the trained or saved model is useless.

// A rank's knowledge of one of its copies.
struct ReplicaBits {
  int world_rank = 0;
  uint64_t bits = 0;  // bits of a sum or of a checksum
};

// Returns "ranks 0, 1, 3 against rank 2", the largest group first; empty if all have the same bits.
std::string DescribeParties(std::span<const ReplicaBits> copies);

// A function that is called on all ranks of a group that found a divergence, with the same
// `message`, which names tensor and ranks. `is_reporter` is true on one rank. The check returns the
// function's result, so OK continues.
using OnDivergence = std::function<absl::Status(const std::string& message, bool is_reporter)>;

// Returns "weight of 'h.0.ln_1.bias' and 3 more tensors differ between ...": `key` and `parties`
// belong to the first of `tensors` tensors.
std::string DescribeDivergence(std::string_view what, std::string_view key, int64_t tensors,
                               std::string_view parties);

// Returns the CRC-32C of the bytes of `value`, which is contiguous and in the backend's memory.
uint32_t TensorChecksum(const TensorView& value, Backend& backend);

// A tensor that all ranks of a group hold a copy of, in the same order.
struct ReplicatedTensor {
  std::string key;
  TensorView value;  // contiguous, in the backend's memory
};

// Compares the copies of every tensor by their checksums (CRC-32C). Collective over `group`, which
// is for host memory; null if there is nothing to compare. Sends 8 bytes to each rank and, if
// anything differs, 4 more for each tensor. Cost: one pass over the memory.
absl::Status CheckReplicas(std::string_view what, std::span<const ReplicatedTensor> tensors,
                           Backend& backend, Communicator* group,
                           const OnDivergence& on_divergence);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_REPLICAS_H_
