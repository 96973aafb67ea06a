// Edge cases of a trainer, on topologies that must agree to the last bit:
// - evaluations of few samples, and texts of any length;
// - gradients that are broken on one rank only;
// - memory that an update overwrites, and bytes that ranks send.

#include "trainer/step/trainer.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "trainer/config/config.h"
#include "trainer/data/dataset.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

constexpr int64_t kVocabulary = 53, kLength = 8;

const std::vector<std::string>& Topologies() {
  static const auto& topologies = *new std::vector<std::string>{
      "single", "dp4_zero2", "tp2_sp", "tp4_sp", "pp2_vpp2", "tp2_pp2_sp", "dp2_zero1_tp2_pp2_sp"};
  return topologies;
}

TrainConfig Config(const std::string& topology, const std::string& tokens, int64_t micro_batch_size,
                   bool bf16 = false) {
  const TrainConfig parsed = OrFail(ParseConfig(
      absl::StrCat(
          "model { size: \"gpt2-tiny\" num_layers: 4 hidden_size: 16 "
          "num_attention_heads: 4 vocab_size: ",
          kVocabulary, " } training { threads: 1 train_iters: 4 bf16: ", bf16 ? "true" : "false",
          " seq_length: ", kLength, " micro_batch_size: ", micro_batch_size,
          " global_batch_size: ", 4 * micro_batch_size,
          " } optimizer { lr_decay_iters: 4 lr_warmup_iters: 0 } parallel { topology: \"", topology,
          "\" numerics: EXACT exact_tp_shards: 4 } data { train_data_path: \"", tokens, "\" }"),
      "the test's"));
  return OrFail(ResolveConfig(parsed));
}

class TrainerTest : public ::testing::Test {
 protected:
  // A token file of `samples` sequences.
  std::string WriteSamples(int64_t samples) const {
    std::vector<int32_t> tokens(samples * kLength + 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>((i * i + 3 * i) % kVocabulary);
    }
    const std::string path = absl::StrCat(::testing::TempDir(), "/samples_", samples, ".bin");
    const auto writer = OrFail(TokenFileWriter::Create(path, TokenFormat::kGpt2));
    EXPECT_OK(writer->Append(tokens));
    EXPECT_OK(writer->Close());
    return path;
  }

  using RankMain = std::function<absl::Status(Trainer&, const BatchLoader&, Mesh&)>;
  // Initialises the weights on every rank, then calls `rank_main`.
  static absl::Status RunRanks(const TrainConfig& config, const RankMain& rank_main) {
    ThreadWorld world(ConfigTopology(config).world_size());
    return world.Run([&](Communicator& rank) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Mesh> mesh,
                               Mesh::Create(ConfigTopology(config), &rank));
      const bool exact = config.parallel().numerics() == Numerics::EXACT;
      const std::unique_ptr<Backend> backend = MakeCpuBackend(1, exact);
      TESSERA_ASSIGN_OR_RETURN(
          const std::unique_ptr<TokenDataset> dataset,
          TokenDataset::Open(config.data().train_data_path(), kLength, kVocabulary));
      const BatchLoader loader(dataset.get(), /*seed=*/1);
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                               Trainer::Create(config, {.seed = 1}, *mesh, *backend));
      trainer->InitializeWeights(/*seed=*/1);
      trainer->ResetOptimizer();
      return rank_main(*trainer, loader, *mesh);
    });
  }
};

TEST_F(TrainerTest, EvaluatesFewerSamplesThanRanksAndThanAMicroBatch) {
  EXPECT_EQ(EvaluatedSamples(/*wanted=*/6400, /*global_batch=*/64, /*there=*/1000), 960);
  EXPECT_EQ(EvaluatedSamples(6400, 64, 4096), EvaluatedSamples(12800, 128, 4096));
  for (const int64_t samples : {1, 3, 7, 15, 100}) {
    const std::string tokens = WriteSamples(samples);
    double expected = 0;
    for (const std::string& topology : Topologies()) {
      SCOPED_TRACE(absl::StrCat(samples, " samples, ", topology));
      Mutex mutex;
      std::vector<double> losses;
      ASSERT_OK(RunRanks(
          Config(topology, tokens, /*micro_batch_size=*/2),
          [&](Trainer& trainer, const BatchLoader& data, const Mesh&) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(const EvaluationResult result,
                                     trainer.Evaluate(data, /*samples=*/1000));
            // In rounds, after which it may be stopped, it has the same bits.
            int asked = 0, stop_at = -1;
            const auto stop = [&]() -> absl::StatusOr<bool> { return ++asked == stop_at; };
            TESSERA_ASSIGN_OR_RETURN(EvaluationResult other, trainer.Evaluate(data, 1000, stop));
            EXPECT_EQ(other.loss, result.loss);
            EXPECT_EQ(asked > 0, samples == 100);
            stop_at = std::exchange(asked, 0);
            TESSERA_ASSIGN_OR_RETURN(other, trainer.Evaluate(data, 1000, stop));
            EXPECT_EQ(other.stopped, samples == 100);
            const MutexLock lock(&mutex);
            EXPECT_EQ(result.tokens, (samples < 8 ? samples : samples / 8 * 8) * kLength);
            losses.push_back(result.loss);
            return absl::OkStatus();
          }));
      if (topology == "single") expected = losses[0];
      EXPECT_GT(expected, 0);
      for (const double loss : losses) EXPECT_EQ(loss, expected);
    }
  }
}

// Three ranks share each layer. The 8 rows of activations, which are not cut, need not be a
// multiple of 3.
TEST_F(TrainerTest, FastNumericsSplitLayersWhateverTheRows) {
  const std::string tokens = WriteSamples(16);
  std::vector<double> expected;
  for (const std::string topology : {"single", "tp3"}) {
    TrainConfig config = Config("single", tokens, /*micro_batch_size=*/1);
    config.mutable_model()->set_hidden_size(24);
    config.mutable_model()->set_num_attention_heads(3);
    config.mutable_model()->set_num_query_groups(3);
    config.mutable_model()->set_ffn_hidden_size(96);
    config.clear_parallel();  // the sizes of "single", in EXACT numerics
    config.mutable_parallel()->set_topology(topology);
    const absl::StatusOr<TrainConfig> resolved = ResolveConfig(config);
    ASSERT_OK(resolved) << topology;
    Mutex mutex;
    std::vector<double> losses;
    ASSERT_OK(
        RunRanks(*resolved,
                 [&](Trainer& trainer, const BatchLoader& data, const Mesh& mesh) -> absl::Status {
                   for (int64_t step = 0; step < 4; ++step) {
                     TESSERA_ASSIGN_OR_RETURN(
                         const StepResult result,
                         trainer.Step(data, {.step = step, .consumed_samples = 4 * step}));
                     const MutexLock lock(&mutex);
                     if (mesh.world()->rank() == 0) losses.push_back(result.loss);
                   }
                   return absl::OkStatus();
                 }));
    if (topology == "single") expected = losses;
    ASSERT_EQ(losses.size(), 4);
    for (int step = 0; step < 4; ++step) EXPECT_NEAR(losses[step], expected[step], 1e-5) << step;
  }
}

// The rows of a short text cannot always be divided among the ranks of sequence parallelism.
TEST_F(TrainerTest, ContinuesATextOfAnyLength) {
  const std::string tokens = WriteSamples(16);
  std::vector<int32_t> text(kLength);
  std::iota(text.begin(), text.end(), 5);
  std::vector<std::vector<float>> expected;
  for (const std::string& topology : Topologies()) {
    SCOPED_TRACE(topology);
    Mutex mutex;
    ASSERT_OK(RunRanks(Config(topology, tokens, /*micro_batch_size=*/1),
                       [&](Trainer& trainer, const BatchLoader& data, const Mesh&) -> absl::Status {
                         std::vector<std::vector<float>> logits;
                         for (int64_t length = 1; length <= kLength; ++length) {
                           TESSERA_ASSIGN_OR_RETURN(
                               std::vector<float> next,
                               trainer.NextLogits(std::span(text).first(length)));
                           logits.push_back(std::move(next));
                         }
                         // Training continues with its former shapes.
                         TESSERA_RETURN_IF_ERROR(trainer.Step(data, {}).status());
                         const MutexLock lock(&mutex);
                         if (expected.empty()) expected = logits;
                         EXPECT_EQ(logits, expected);
                         return absl::OkStatus();
                       }));
  }
  ASSERT_EQ(expected.size(), static_cast<size_t>(kLength));
  EXPECT_EQ(expected[0].size(), static_cast<size_t>(kVocabulary));
  EXPECT_NE(expected[0], expected[1]);
}

// The evaluation of a text has the bits of the log-probabilities of its tokens, each of which is
// computed after those before it, with the keys and values that were kept.
TEST_F(TrainerTest, DecodedTokensHaveTheLossesOfAPassOverTheText) {
  const std::string tokens = WriteSamples(1);
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(1);
  for (const bool bf16 : {false, true}) {
    double expected = 0;
    for (const std::string& topology : Topologies()) {
      SCOPED_TRACE(absl::StrCat(topology, bf16 ? " in bf16" : ""));
      TrainConfig config = Config(topology, tokens, /*micro_batch_size=*/1);
      config.mutable_training()->set_bf16(bf16);
      ASSERT_OK(RunRanks(
          config, [&](Trainer& trainer, const BatchLoader& data, const Mesh& mesh) -> absl::Status {
            std::vector<int32_t> ids(kLength), targets(kLength);
            TESSERA_RETURN_IF_ERROR(data.FillBatch(0, 0, 1, ids, targets));
            const Tensor losses(DType::kF32, {kLength});
            for (int64_t i = 0; i < kLength; ++i) {
              TESSERA_ASSIGN_OR_RETURN(const std::vector<float> logits,
                                       trainer.NextLogits(std::span(ids).first(i + 1)));
              TESSERA_ASSIGN_OR_RETURN(const float log_probability,
                                       trainer.LogProbability(logits, targets[i]));
              losses.view().as<float>()[i] = -log_probability;
            }
            TESSERA_ASSIGN_OR_RETURN(const EvaluationResult result, trainer.Evaluate(data, 1));
            if (mesh.world()->rank() != 0) return absl::OkStatus();
            EXPECT_EQ(result.loss, cpu->Sum({losses}) / kLength);
            if (topology == "single") expected = result.loss;
            EXPECT_EQ(result.loss, expected);
            return absl::OkStatus();
          }));
    }
  }
}

// The weights and moments of a rank, and the number of updates.
std::vector<float> Contents(const Trainer& trainer) {
  std::vector<float> contents = {static_cast<float>(trainer.updates())};
  const auto append = [&contents](const TensorView& view) {
    contents.insert(contents.end(), view.as<float>(), view.as<float>() + view.elements());
  };
  for (const TrainedChunk& chunk : trainer.chunks()) {
    append(chunk.parameters->values());
    for (size_t i = 0; i < chunk.optimizer->parameters().size(); ++i) {
      const AdamW::ParameterState state = chunk.optimizer->State(static_cast<int>(i));
      if (state.exp_avg.empty()) continue;
      append(state.exp_avg);
      append(state.exp_avg_sq);
    }
  }
  return contents;
}

TEST_F(TrainerTest, ABrokenWeightOnOneRankSkipsTheUpdateOnAll) {
  const std::string tokens = WriteSamples(40);
  for (const std::string& topology : Topologies()) {
    SCOPED_TRACE(topology);
    const TrainConfig config = Config(topology, tokens, /*micro_batch_size=*/1);
    const int broken_rank = ConfigTopology(config).world_size() - 1;
    ASSERT_OK(RunRanks(
        config,
        [broken_rank](Trainer& trainer, const BatchLoader& data, const Mesh& mesh) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(const StepResult good, trainer.Step(data, {}));
          EXPECT_TRUE(good.updated);
          // The first parameter is not replicated over the tensor axis of the last stage's ranks,
          // so the others' weights stay intact.
          float& weight =
              trainer.chunks().back().parameters->parameters().front()->value.as<float>()[0];
          const float whole = weight;
          if (mesh.rank() == broken_rank) weight = std::numeric_limits<float>::quiet_NaN();
          const StepPosition second{.step = 1, .consumed_samples = 4};
          const std::vector<float> before = Contents(trainer);
          TESSERA_ASSIGN_OR_RETURN(const StepResult broken, trainer.Step(data, second));
          EXPECT_FALSE(broken.updated);
          EXPECT_EQ(trainer.skipped_in_a_row(), 1);
          if (mesh.rank() != broken_rank) EXPECT_EQ(Contents(trainer), before);
          weight = whole;
          TESSERA_ASSIGN_OR_RETURN(const StepResult repaired, trainer.Step(data, second));
          EXPECT_TRUE(repaired.updated);
          EXPECT_EQ(trainer.updates(), 2);
          EXPECT_NE(Contents(trainer), before);
          return absl::OkStatus();
        }));
  }
}

// After a correct step, flips one bit in one rank's copy of a parameter, then runs two more steps.
// Returns their results, for a run that compares weights after every `interval` steps.
struct BitFlip {
  std::string topology;
  int rank;
  std::function<bool(const Parameter&)> parameter;
  int64_t interval;
  ReplicaDivergence::Value answer = ReplicaDivergence::STOP;
};

absl::Status FlipAndStep(const BitFlip& flip, Trainer& trainer, const BatchLoader& data,
                         const Mesh& mesh) {
  TESSERA_RETURN_IF_ERROR(trainer.Step(data, {}).status());
  if (mesh.rank() == flip.rank) {
    const auto& parameters = trainer.chunks().back().parameters->parameters();
    const auto found = std::ranges::find_if(
        parameters, [&](const Parameter* parameter) { return flip.parameter(*parameter); });
    EXPECT_NE(found, parameters.end());
    (*found)->value.as<uint32_t>()[3] ^= uint32_t{1} << 18;
  }
  for (int64_t step = 1; step < 3; ++step) {
    TESSERA_RETURN_IF_ERROR(
        trainer.Step(data, {.step = step, .consumed_samples = 4 * step}).status());
  }
  return absl::OkStatus();
}

std::function<bool(const Parameter&)> Named(const std::string& part) {
  return [part](const Parameter& parameter) { return parameter.key.find(part) != part.npos; };
}

class DivergenceTest : public TrainerTest {
 protected:
  // Returns every rank's own result.
  std::vector<absl::Status> Run(const BitFlip& flip) const {
    TrainConfig config = Config(flip.topology, WriteSamples(16), /*micro_batch_size=*/1);
    config.mutable_parallel()->set_replica_divergence(flip.answer);
    config.mutable_parallel()->set_check_weight_hash_across_dp_replicas_interval(flip.interval);
    std::vector<absl::Status> results(ConfigTopology(config).world_size());
    const absl::Status status = RunRanks(
        config, [&](Trainer& trainer, const BatchLoader& data, const Mesh& mesh) -> absl::Status {
          return results[mesh.rank()] = FlipAndStep(flip, trainer, data, mesh);
        });
    EXPECT_EQ(status.ok(), results[0].ok());
    return results;
  }
};

TEST_F(DivergenceTest, EndsTheRunOnEveryRankNamingTensorAndRanks) {
  struct Case {
    BitFlip flip;
    std::string expected;
  };
  const std::vector<Case> cases = {
      // A rank that computes with a different weight has different gradients.
      {{"tp2", 1, Named("2.ln_2.weight"), 0}, "step 2: gradient of '"},
      // The sum over ranks is the same on every rank, whatever was added.
      {{"dp4", 2, Named("mlp.c_fc.weight"), 3}, "step 3: weight of '"},
      {{"pp2", 1, [](const Parameter& p) { return !p.tied_name.empty(); }, 1},
       "step 2: weight of '"},
  };
  for (const Case& each : cases) {
    const std::vector<absl::Status> results = Run(each.flip);
    for (const absl::Status& status : results) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << each.flip.topology;
      const std::string message(status.message());
      EXPECT_NE(message.find(each.expected), message.npos) << message;
      EXPECT_NE(message.find(absl::StrCat(" against rank ", each.flip.rank, ".")), message.npos)
          << message;
    }
  }
}

TEST_F(DivergenceTest, WeightsAreComparedAtTheIntervalOnly) {
  for (const int64_t interval : {0, 4}) {
    for (const absl::Status& status : Run({"dp4", 2, Named("mlp.c_fc.weight"), interval})) {
      EXPECT_OK(status);
    }
  }
}

TEST_F(DivergenceTest, GoesOnWhereItOnlyWarnsAndSaysSoOnce) {
  ::testing::internal::CaptureStderr();
  for (const absl::Status& status :
       Run({"tp2", 1, Named("2.ln_2.weight"), 1, ReplicaDivergence::WARN})) {
    EXPECT_OK(status);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  const size_t first = said.find("Replicas have diverged");
  ASSERT_NE(first, said.npos) << said;
  EXPECT_EQ(said.find("Replicas have diverged", first + 1), said.npos) << said;
}

// A copy of the trainer's memory that a checkpoint is made of, and the memory that an update
// announced.
class Watched {
 public:
  explicit Watched(const Trainer& trainer) {
    for (const TrainedChunk& chunk : trainer.chunks()) {
      Add(chunk.parameters->values());
      for (size_t i = 0; i < chunk.optimizer->parameters().size(); ++i) {
        const AdamW::ParameterState state = chunk.optimizer->State(static_cast<int>(i));
        for (const TensorView& view : {state.master, state.exp_avg, state.exp_avg_sq}) Add(view);
      }
    }
  }

  void Announce(const TensorView& memory) {
    const std::byte* const first = memory.as<std::byte>();
    const std::byte* const last = first + memory.bytes();
    for (Region& region : regions_) {
      const std::byte* const end = region.memory + region.before.size();
      const std::byte* const begin = std::max(first, region.memory);
      for (const std::byte* at = begin; at < std::min(last, end); ++at) {
        const size_t i = at - region.memory;
        if (!region.announced[i] && *at != region.before[i]) ++overwritten_too_early_;
        region.announced[i] = true;
      }
    }
  }

  void ExpectAllThatChangedWasAnnounced() const {
    int64_t changed = 0, unannounced = 0;
    for (const Region& region : regions_) {
      for (size_t i = 0; i < region.before.size(); ++i) {
        if (region.memory[i] == region.before[i]) continue;
        ++changed;
        unannounced += region.announced[i] ? 0 : 1;
      }
    }
    EXPECT_GT(changed, 0);
    EXPECT_EQ(unannounced, 0) << "of " << changed << " bytes that have changed";
    EXPECT_EQ(overwritten_too_early_, 0);
  }

 private:
  struct Region {
    const std::byte* memory;
    std::vector<std::byte> before;
    std::vector<bool> announced;
  };

  void Add(const TensorView& view) {
    if (view.empty()) return;
    const std::byte* const memory = view.as<std::byte>();
    regions_.push_back({memory, std::vector<std::byte>(memory, memory + view.bytes()),
                        std::vector<bool>(view.bytes())});
  }

  std::vector<Region> regions_;
  int64_t overwritten_too_early_ = 0;
};

TEST_F(TrainerTest, AnUpdateAnnouncesEveryByteBeforeItChanges) {
  const std::string tokens = WriteSamples(16);
  for (const std::string& topology : Topologies()) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(topology + (bf16 ? ", bf16" : ""));
      ASSERT_OK(
          RunRanks(Config(topology, tokens, /*micro_batch_size=*/1, bf16),
                   [](Trainer& trainer, const BatchLoader& data, const Mesh&) -> absl::Status {
                     Watched watched(trainer);
                     trainer.set_before_overwrite(
                         [&watched](const TensorView& memory) { watched.Announce(memory); });
                     TESSERA_RETURN_IF_ERROR(trainer.Step(data, {}).status());
                     watched.ExpectAllThatChangedWasAnnounced();
                     // While nothing reads the state, nothing is announced.
                     trainer.set_before_overwrite([](const TensorView&) { FAIL() << "announced"; },
                                                  [] { return false; });
                     TESSERA_RETURN_IF_ERROR(trainer.Step(data, {.step = 1}).status());
                     trainer.set_before_overwrite(nullptr);
                     return absl::OkStatus();
                   }));
    }
  }
}

// Bytes that one of two tensor ranks sends in a step: activations at both ends of every region,
// statistics of the losses, gradients of norms.
TEST_F(TrainerTest, TensorParallelTrafficIsTheTheory) {
  constexpr int64_t kMicroBatches = 4, kLayers = 4, kShards = 4, kFloat = 4;
  constexpr int64_t kHidden = 16, kRows = 2 * kLength, kActivations = kRows * kHidden * kFloat;
  // Attention and MLP of each layer, forward and backward; the embedding in the forward pass and
  // the head in the backward pass.
  constexpr int64_t kSums = 4 * kLayers + 2;
  constexpr int64_t kStatistics = kShards / 2 * kRows * 3 * kFloat;
  for (const bool sequence_parallel : {false, true}) {
    const TrainConfig config =
        Config(sequence_parallel ? "tp2_sp" : "tp2", WriteSamples(16), /*micro_batch_size=*/2);
    ASSERT_OK(RunRanks(
        config, [&](Trainer& trainer, const BatchLoader& data, Mesh& mesh) -> absl::Status {
          mesh.TakeTraffic();
          TESSERA_RETURN_IF_ERROR(trainer.Step(data, {}).status());
          std::map<CommOp, int64_t> sent;
          for (const WireTraffic& traffic : mesh.TakeTraffic()) {
            EXPECT_EQ(traffic.group, "tp");
            sent[traffic.op] = traffic.bytes_sent;
          }
          const int64_t norms = static_cast<int64_t>(
              8 *
              trainer.chunks().front().parameters->parameters().size());  // comparison of gradients
          std::map<CommOp, int64_t> expected;
          if (sequence_parallel) {
            expected[CommOp::kReduceScatter] = kMicroBatches * kSums * kActivations / 2;
            // Outputs of norms, again in the backward pass, and the gradients of what is summed.
            expected[CommOp::kAllGather] =
                kMicroBatches * ((6 * kLayers + 2) * kActivations / 2 + kStatistics) + norms;
            // Weight and bias of every norm.
            expected[CommOp::kAllReduce] = kMicroBatches * (2 * kLayers + 1) * 2 * kHidden * kFloat;
          } else {
            expected[CommOp::kAllReduce] = kMicroBatches * kSums * kActivations;
            expected[CommOp::kAllGather] = kMicroBatches * kStatistics + norms;
          }
          EXPECT_EQ(sent, expected);
          return absl::OkStatus();
        }));
  }
}

}  // namespace
}  // namespace tessera
