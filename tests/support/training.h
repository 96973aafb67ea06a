#ifndef TESSERA_TESTS_SUPPORT_TRAINING_H_
#define TESSERA_TESTS_SUPPORT_TRAINING_H_

// Short training runs with threads as ranks, on any topology, from any checkpoint.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "compute/kernels/backend.h"
#include "compute/parallel/mesh.h"
#include "layout/topology.h"
#include "tensor/device.h"
#include "tests/support/logical_state.h"
#include "trainer/config/config.pb.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/state/device_mirror.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/run_saver.h"
#include "trainer/state/run_state.h"
#include "trainer/state/saved_run.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {

// Small models, in the text format of ModelConfig, with the features that make resharding
// difficult:
// - a vocabulary whose padding depends on the tensor axis;
// - a number of layers that is not divisible by the number of stages;
// - eight heads for up to eight tensor ranks.
inline constexpr int64_t kVocabulary = 211;
// A GPT-2 with tied embeddings and dropout.
inline constexpr char kGpt2[] =
    "size: \"gpt2-tiny\" num_layers: 5 hidden_size: 32 num_attention_heads: 8 vocab_size: 211 "
    "hidden_dropout: 0.1 attention_dropout: 0.1 ";
// A Llama-3 with an untied head and grouped queries, so that a fused q, k, v has unequal parts.
inline constexpr char kLlama[] =
    "size: \"llama3-tiny\" num_layers: 5 hidden_size: 32 num_attention_heads: 8 "
    "num_query_groups: 4 vocab_size: 211 untie_embeddings_and_output_weights: true ";
// A Llama-3 with tied embeddings, and grouped queries that eight tensor ranks can share.
inline constexpr char kTiedLlama[] =
    "size: \"llama3-tiny\" num_layers: 5 hidden_size: 32 num_attention_heads: 16 "
    "num_query_groups: 8 vocab_size: 211 ";

// Writes a token file with a learnable pattern.
absl::Status WriteTokens(const std::string& path, int64_t vocabulary, int64_t count);

// The settings by which short runs differ.
struct RunSettings {
  std::string model;   // ModelConfig in text format
  std::string tokens;  // file
  std::string topology = "single";
  int exact_shards = 0;  // 0: FAST
  bool bf16 = false;
  int64_t micro_batch_size = 2;
  int64_t global_batch_size = 16;
  int64_t seq_length = 24;
  int64_t steps = 20;        // train_iters
  int64_t decay_steps = 20;  // decay of the learning rate
  int64_t bucket_elements = 5000;
  int64_t seed = 1234;
};
// Returns a resolved, and therefore validated, config.
absl::StatusOr<TrainConfig> MakeConfig(const RunSettings& settings);

// A log of every training sample that any rank has read. Thread-safe.
class SampleLog {
 public:
  struct Read {
    Coordinate rank;
    int64_t position = 0;  // in the global sequence
    std::vector<int32_t> ids;
    std::vector<int32_t> targets;
  };
  void Add(Read read);
  std::vector<Read> Take();

 private:
  Mutex mutex_;
  std::vector<Read> reads_ ABSL_GUARDED_BY(mutex_);
};

// The parts of a rank with a device, instead of the CPU.
struct RankDevice {
  Backend* backend = nullptr;
  Communicator* world = nullptr;  // for device memory
  Stream* compute = nullptr;      // null: the state is neither saved nor loaded
  double bytes_per_second = 0;    // of copies of the state; 0: no limit
  int64_t piece_bytes = 4096;     // of the same
};

// One rank of a run. Every rank makes the same calls.
class TrainingRank {
 public:
  // Creates a rank. `world` may be null on one process, and `log` on any. `seed` is the seed of
  // dropout. `device` must outlive the rank.
  static absl::StatusOr<std::unique_ptr<TrainingRank>> Create(const TrainConfig& config,
                                                              uint64_t seed, Communicator* world,
                                                              SampleLog* log,
                                                              const RankDevice& device = {});

  // Sets initial weights, at step 0.
  void Initialize();
  // Loads the complete checkpoint, as a resumed run does.
  absl::StatusOr<LoadNotes> Load(const SavedRun& saved);
  absl::StatusOr<StepResult> Step();
  // Saves to config.checkpoint.save, which must be set.
  absl::Status Save();
  // Lets background saves proceed, as a training loop does after each step. Returns whether one is
  // in flight.
  bool PollSaves();
  // Waits for background saves. Returns the reports of all saves since the last call.
  absl::StatusOr<std::vector<ckpt::SaveReport>> FinishSaves();

  Trainer& trainer() const { return *trainer_; }
  const BatchLoader& data() const { return *loader_; }
  const Progress& progress() const { return progress_; }
  void set_progress(const Progress& progress) { progress_ = progress; }
  std::vector<StateChunk> state() const;

 private:
  TrainingRank() = default;
  RankGroup group() const { return {.ranks = *group_}; }
  DataIdentity data_identity() const;
  absl::Status OpenSaver(Communicator* world);

  TrainConfig config_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ckpt::ProcessGroup> group_;
  std::unique_ptr<Backend> cpu_;  // null with a device
  RankDevice device_;
  std::unique_ptr<TokenDataset> dataset_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<DeviceMirror> mirror_;     // null without a device
  std::unique_ptr<RunSaver> saver_;          // null without saves
  std::vector<ckpt::SaveOutcome> outcomes_;  // that PollSaves() has seen
  Progress progress_;
};

// The results of a run, independent of its topology.
struct TrainedRun {
  int64_t first_step = 0;      // steps completed before the run
  std::vector<double> losses;  // of each step from first_step on
  std::vector<double> grad_norms;
  double evaluation_loss = 0;  // after the last step
  Progress progress;
  LogicalState state;
};

// Trains to step train_iters with threads as ranks, as many as the config's topology has. Resumes
// from the newest checkpoint in config.checkpoint.load if it is set; saves every save_interval
// steps to config.checkpoint.save if it is set. Internal if two ranks that hold the same elements
// disagree about them.
absl::StatusOr<TrainedRun> TrainOnThreads(const TrainConfig& resolved_config,
                                          SampleLog* log = nullptr);

// The digests of all tensors of a checkpoint in the folder: of a step, or the newest one. Equal
// ones mean equal contents, however they are sharded.
using Digests = std::map<std::string, std::pair<uint64_t, uint64_t>>;
absl::StatusOr<Digests> ReadDigests(const std::string& folder,
                                    std::optional<int64_t> step = std::nullopt);

// Returns the first difference between the losses and norms of two runs, as a sentence; empty if
// they are equal to the last bit. Compares the steps that both have taken, of which there must be
// some.
std::string FirstLossDifference(const TrainedRun& a, const TrainedRun& b);
// Returns the first difference between losses, evaluation and state after the same last step.
std::string FirstDifference(const TrainedRun& a, const TrainedRun& b);

// Returns the largest relative difference of losses, over the steps that both have taken.
double LargestLossDifference(const TrainedRun& a, const TrainedRun& b);

// Returns the first field that differs, as a sentence; empty if all fields are equal.
std::string FirstProgressDifference(const Progress& a, const Progress& b);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_TRAINING_H_
