#ifndef TESSERA_TESTS_PERF_GPT2_RUN_H_
#define TESSERA_TESTS_PERF_GPT2_RUN_H_

// Training of GPT-2 124M, or of a part of it, for programs that measure steps and checkpoints.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "comm/communicator.h"
#include "compute/kernels/backend.h"
#include "models/testing/profiling_backend.h"
#include "tests/support/training.h"
#include "trainer/step/trainer.h"

namespace tessera {

struct Gpt2RunOptions {
  // A ModelConfig in text format, which replaces GPT-2 124M and `layers`; empty: those.
  std::string model = {};
  // Number of layers; GPT-2 124M has twelve. With fewer layers, the vocabulary is smaller in
  // proportion, so that computing, messages, memory and files shrink alike while shapes stay the
  // same.
  int layers = 12;
  std::string topology = "single";  // as ParseTopology reads it
  int threads = 1;                  // of each rank
  bool bf16 = false;
  int exact_tp_shards = 0;  // 0: FAST numerics
  int64_t micro_batch = 1;
  int64_t micro_batches = 1;  // of the global batch
  int64_t sequence = 1024;
  // Whether weights and optimizer state have their initial values. Otherwise nothing has touched
  // them, and they take addresses but no memory.
  bool initialize = true;
  bool profile = false;  // measure each operation
};

// A training run on random tokens, ready to step.
class Gpt2Run {
 public:
  // `world` must outlive the run; null on one process.
  static absl::StatusOr<std::unique_ptr<Gpt2Run>> Create(const Gpt2RunOptions& options,
                                                         Communicator* world);

  // Runs one optimizer step; returns its duration in seconds on this rank.
  absl::StatusOr<double> Step();
  Trainer& trainer() const { return rank_->trainer(); }
  // Returns the operations since the last call. Precondition: `profile`.
  std::map<std::string, testing::ProfilingBackend::Total> TakeProfile() {
    return profiler_->Take();
  }
  // Returns the rank's weights and optimizer state, in the memory of the run.
  ckpt::StateDict State() const;
  // Returns the memory of the whole state, padding included: a few large pieces.
  std::vector<std::span<std::byte>> Buffers() const;

 private:
  Gpt2Run() = default;

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<testing::ProfilingBackend> profiler_;  // or null
  std::unique_ptr<testing::TrainingRank> rank_;
};

// The state of a run of GPT-2 124M in bf16 on one process, with random contents, which neither a
// disk nor a connection can compress: bf16 weights; fp32 master weights and two moments.
struct Gpt2State {
  static absl::StatusOr<Gpt2State> Create();

  std::unique_ptr<Gpt2Run> run;  // owns the memory
  ckpt::StateDict dict;
  uint64_t bytes = 0;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_GPT2_RUN_H_
