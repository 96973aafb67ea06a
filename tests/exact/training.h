#ifndef TESSERA_TESTS_EXACT_TRAINING_H_
#define TESSERA_TESTS_EXACT_TRAINING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config/config.pb.h"

namespace tessera::testing {

// What a short training run leaves behind, whatever it ran on.
struct TrainedRun {
  std::vector<double> losses;  // by step
  std::vector<double> grad_norms;
  double evaluation_loss = 0;  // after the last step
  // Every logical tensor (weights, master weights, moments) as contiguous bytes, put together from
  // the shards of all ranks.
  std::map<std::string, std::vector<std::byte>> state;
};

// Writes a token file with something to learn.
absl::Status WriteTokens(const std::string& path, int64_t vocabulary, int64_t count);

// Trains config.training.train_iters steps with threads as ranks: as many as the config's topology
// has. Internal when two ranks that hold the same elements disagree about them.
absl::StatusOr<TrainedRun> TrainOnThreads(const TrainConfig& resolved_config);

// The first difference between two runs as a sentence; empty when they are equal to the last bit.
std::string FirstDifference(const TrainedRun& a, const TrainedRun& b);

// The largest relative difference of losses.
double LargestLossDifference(const TrainedRun& a, const TrainedRun& b);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_EXACT_TRAINING_H_
