#ifndef TESSERA_TESTS_PERF_GPT2_RUN_H_
#define TESSERA_TESTS_PERF_GPT2_RUN_H_

// Training of GPT-2 124M, for programs that measure steps.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "compute/comm/communicator.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/mesh.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/step/trainer.h"

namespace tessera {

struct Gpt2RunOptions {
  std::string topology = "single";  // as ParseTopology reads it
  int threads = 1;                  // of each rank
  bool bf16 = false;
  int exact_tp_shards = 0;  // 0: FAST numerics
  int64_t micro_batch = 1;
  int64_t micro_batches = 1;  // of the global batch
  int64_t sequence = 1024;
};

// A training run on random tokens, ready to step.
class Gpt2Run {
 public:
  // `world`: null on one process. It must outlive the run.
  static absl::StatusOr<std::unique_ptr<Gpt2Run>> Create(const Gpt2RunOptions& options,
                                                         Communicator* world);

  // Runs one optimizer step; returns its duration in seconds on this rank.
  absl::StatusOr<double> Step();
  // The share of the last step that this rank waited for its pipeline neighbours.
  double wait_share() const { return wait_share_; }
  Trainer& trainer() const { return *trainer_; }

 private:
  Gpt2Run() = default;

  std::unique_ptr<TokenDataset> data_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Trainer> trainer_;
  StepPosition position_;
  int64_t global_batch_ = 0;
  double wait_share_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_GPT2_RUN_H_
