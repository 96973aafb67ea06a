#ifndef TESSERA_TESTS_PERF_RANKS_H_
#define TESSERA_TESTS_PERF_RANKS_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "comm/communicator.h"

namespace tessera {

// Returns the slowest rank's `seconds`, on every rank.
inline absl::StatusOr<double> Slowest(Communicator& world, double seconds) {
  TESSERA_RETURN_IF_ERROR(world.AllReduce(std::span(&seconds, 1), ReduceOp::kMax));
  return seconds;
}

// Returns the sum of all ranks' values, on every rank.
inline absl::StatusOr<int64_t> Sum(Communicator& world, uint64_t value) {
  auto sum = static_cast<int64_t>(value);
  TESSERA_RETURN_IF_ERROR(world.AllReduce(std::span(&sum, 1), ReduceOp::kSum));
  return sum;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_RANKS_H_
