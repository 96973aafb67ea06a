// A micro-batch that is repeated on another replica: no bit of the run changes, no sound run is
// accused, and a rank that computes wrongly, once or always, is named before anything is updated.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/operations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSeed = 3;
constexpr int64_t kMicroBatches = 2;  // of a replica

std::string Tokens() {
  const std::string path = absl::StrCat(::testing::TempDir(), "/replay_tokens.bin");
  EXPECT_OK(testing::WriteTokens(path, testing::kVocabulary, 4000));
  return path;
}

testing::RunSettings Settings(const std::string& model, const std::string& topology) {
  const Topology parsed = OrFail(ParseTopology(topology));
  return {.model = model,
          .tokens = Tokens(),
          .topology = topology,
          .exact_shards = 2,
          .micro_batch_size = 2,
          .global_batch_size = parsed.data * kMicroBatches * 2,
          .seq_length = 8,
          .steps = 4};
}

TrainConfig Config(const testing::RunSettings& settings, int64_t interval) {
  TrainConfig config = OrFail(testing::MakeConfig(settings));
  config.mutable_parallel()->set_replay_check_interval(interval);
  return config;
}

// ---- Without a fault.

TEST(ReplayTest, NoBitOfTheRunChanges) {
  struct Case {
    std::string model, topology;
    bool exact, bf16;
  };
  const std::vector<Case> cases = {
      {testing::kGpt2, "single", true, false},
      {testing::kGpt2, "single", false, true},
      {testing::kGpt2, "dp2", true, false},
      {testing::kGpt2, "dp2", false, true},
      {testing::kGpt2, "dp2_tp2", true, true},
      {testing::kGpt2, "dp2_zero2_pp2", true, false},
      {testing::kGpt2, "dp3", false, false},
      {testing::kGpt2, "dp3", true, true},
      {testing::kGpt2, "dp2_pp2_vpp2", true, true},
      {testing::kGpt2, "dp2_tp2_pp2", false, false},
      {testing::kLlama, "dp2_zero1_tp2_sp", true, false},
      {testing::kTiedLlama, "dp2_zero2_pp2", false, true},
      {testing::kLlama, "dp2_pp2_vpp2", false, false},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(absl::StrCat(each.model, each.topology, each.exact ? " exact" : " fast",
                              each.bf16 ? " bf16" : ""));
    testing::RunSettings settings = Settings(each.model, each.topology);
    if (!each.exact) settings.exact_shards = 0;
    settings.bf16 = each.bf16;
    const auto without = testing::TrainOnThreads(Config(settings, 0));
    const auto with = testing::TrainOnThreads(Config(settings, 1));
    ASSERT_OK(without);
    ASSERT_OK(with);
    EXPECT_EQ(testing::FirstDifference(*without, *with), "");
  }
}

TEST(ReplayTest, RandomRunsAreNotAccused) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const std::vector<std::string> models = {testing::kGpt2, testing::kLlama, testing::kTiedLlama};
  for (int round = 0; round < TestRounds(8);) {
    const Topology topology = {.tensor = 1 << below(2),
                               .data = 1 + below(4),
                               .pipeline = 1 + below(3),
                               .virtual_pipeline = 1 + below(2),
                               .zero_stage = below(3),
                               .sequence_parallel = below(2) == 0};
    if (!ValidateSizes(topology).ok() || topology.world_size() > 8) continue;
    testing::RunSettings settings = Settings(models[below(3)], ToString(topology));
    settings.exact_shards = below(2) == 0 ? 0 : 2;
    settings.bf16 = below(2) == 0;
    settings.micro_batch_size = 1 + below(2);
    settings.global_batch_size =
        settings.micro_batch_size * topology.data * topology.pipeline * (1 << below(2));
    settings.bucket_elements = 500 + below(9000);
    absl::StatusOr<TrainConfig> config = testing::MakeConfig(settings);
    if (!config.ok()) continue;
    ++round;
    config->mutable_parallel()->set_replay_check_interval(1);
    config->mutable_training()->set_recompute_activations(below(2) == 0);
    EXPECT_OK(testing::TrainOnThreads(*config)) << config->DebugString();
  }
}

// ---- With a fault.

// What has a bit flipped: a norm's gradient, what a norm's backward pass hands on, or the MLP's
// activations.
enum class Where { kGradient, kBackward, kForward };

class FaultyBackend final : public Backend {
 public:
  explicit FaultyBackend(Where where) : where_(where) {}

  // From call `first` to before `end`, counted from now on. `fails`: as an operation that reports
  // an error.
  void Break(int64_t first, int64_t end, bool varies, bool fails) {
    first_ = calls_ + first;
    end_ = end == kAlways ? end : calls_ + end;
    varies_ = varies;
    fails_ = fails;
  }
  static constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
  // Operations so far that the fault may be in.
  int64_t calls() const { return calls_; }

  absl::Status Synchronize() override {
    return has_failed_ ? absl::InternalError("a kernel has failed") : backend_.Synchronize();
  }
  Device device() const override { return backend_.device(); }
  bool takes_any_operands() const override { return backend_.takes_any_operands(); }

 private:
  TESSERA_OPERATIONS(TESSERA_FORWARD_RUN)

  template <typename Op, typename Call>
  auto Forward(const Op& op, const char* /*name*/, const Call& call) -> decltype(call()) {
    if constexpr (std::is_same_v<Op, ops::LayerNormBackward>) {
      call();
      if (where_ != Where::kForward) Pass(where_ == Where::kGradient ? op.d_weight : op.d_x);
    } else if constexpr (std::is_same_v<Op, ops::MatMulGelu>) {
      call();
      if (where_ == Where::kForward) Pass(op.act);
    } else {
      return call();
    }
  }
  void Pass(const TensorView& result) {
    const int64_t now = calls_++;
    if (now < first_ || now >= end_) return;
    *result.as<uint32_t>() ^= uint32_t{1} << (varies_ ? 3 + now % 17 : 12);
    has_failed_ = fails_;
  }

  const Where where_;
  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1, /*exact=*/true);
  Backend& backend_ = *cpu_;
  int64_t calls_ = 0, first_ = kAlways, end_ = kAlways;
  bool varies_ = false, fails_ = false, has_failed_ = false;
};

struct Fault {
  std::string topology;
  int rank = 0;
  int64_t first_pass = 0;  // of a micro-batch through the rank
  bool once = false;       // in the middle of that pass
  Where where = Where::kGradient;
  bool varies = false;
  bool exact = true;
  bool fails = false;
  absl::Status unread = {};  // by some rank, as all ranks know after the pass
};
// The checked micro-batch is the first of the step, whose repetitions follow the others.
constexpr int64_t kOriginal = 0, kRepetition = kMicroBatches;

class ReplayFaultTest : public ::testing::Test {
 protected:
  // A step without a check, then one with a check, with a fault in it.
  static std::vector<absl::Status> Run(const Fault& fault,
                                       ReplicaDivergence::Value answer = ReplicaDivergence::STOP) {
    testing::RunSettings settings = Settings(testing::kGpt2, fault.topology);
    if (!fault.exact) settings.exact_shards = 0;
    TrainConfig config = Config(settings, 2);
    config.mutable_parallel()->set_replica_divergence(answer);
    config.mutable_parallel()->set_check_weight_hash_across_dp_replicas_interval(0);
    ThreadWorld world(ConfigTopology(config).world_size());
    std::vector<absl::Status> statuses(ConfigTopology(config).world_size());
    world
        .Run([&](Communicator& rank) {
          return statuses[rank.rank()] = RunRank(config, fault, rank);
        })
        .IgnoreError();
    return statuses;
  }

  // Whom all ranks accuse, and why.
  static std::string Accused(const Fault& fault) {
    std::string accused;
    for (const absl::Status& status : Run(fault)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      const std::string message(status.message());
      // A rank that ends ends the others, with its name before its message.
      const std::string said = message.substr(std::min(message.find("step 2: "), message.size()));
      if (accused.empty()) accused = said;
      EXPECT_EQ(said, accused);
    }
    return accused;
  }

 private:
  static absl::Status RunRank(const TrainConfig& config, const Fault& fault, Communicator& world) {
    FaultyBackend backend(fault.where);
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<testing::TrainingRank> rank,
        testing::TrainingRank::Create(config, kSeed, &world, nullptr, {.backend = &backend}));
    rank->Initialize();
    const int64_t before_training = backend.calls();
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
    const int64_t of_a_pass = (backend.calls() - before_training) / kMicroBatches;
    if (world.rank() == fault.rank) {
      // One call in the middle of a pass, or all.
      const int64_t first = fault.first_pass * of_a_pass;
      backend.Break(fault.once ? first + 1 : first, fault.once ? first + 2 : FaultyBackend::kAlways,
                    fault.varies, fault.fails);
    }
    rank->trainer().set_before_update([&] { return fault.unread; });
    const std::vector<float> weights = Weights(rank->trainer());
    const absl::Status status = rank->Step().status();
    if (!status.ok()) EXPECT_EQ(Weights(rank->trainer()), weights);
    return status;
  }

  static std::vector<float> Weights(const Trainer& trainer) {
    std::vector<float> weights;
    for (const TrainedChunk& chunk : trainer.chunks()) {
      const TensorView view = chunk.parameters->values();
      weights.insert(weights.end(), view.as<float>(), view.as<float>() + view.elements());
    }
    return weights;
  }
};

Where Other(Where where) { return where == Where::kGradient ? Where::kBackward : Where::kGradient; }

TEST_F(ReplayFaultTest, ARankThatIsWrongOnceIsNamed) {
  const std::vector<std::pair<std::string, int>> ranks = {
      {"dp2", 0},     {"dp2", 1},     {"dp3", 2},           {"dp2_tp2", 1}, {"dp2_tp2", 2},
      {"dp2_pp2", 0}, {"dp2_pp2", 3}, {"dp2_zero2_pp2", 1}, {"single", 0},
  };
  Where where = Where::kGradient;
  for (const auto& [topology, rank] : ranks) {
    for (const int64_t pass : {kOriginal, kRepetition}) {
      SCOPED_TRACE(
          absl::StrCat(topology, ", rank ", rank, ", pass ", pass, ", ", static_cast<int>(where)));
      const std::string message = Accused(
          {.topology = topology, .rank = rank, .first_pass = pass, .once = true, .where = where});
      EXPECT_THAT(message, HasSubstr(absl::StrCat("At fault: rank ", rank, " (")));
      EXPECT_THAT(message, HasSubstr(" (once: "));
      EXPECT_THAT(message, Not(HasSubstr(" or rank ")));
      EXPECT_THAT(message, Not(HasSubstr("; micro-batch")));
      EXPECT_THAT(message, HasSubstr("step 2: micro-batch "));
      EXPECT_THAT(message, HasSubstr("the gradient of '"));
      if (pass == kOriginal) where = Other(where);
    }
  }
}

// What is sent on differs before any gradient does, and what is summed over tensor ranks on all.
TEST_F(ReplayFaultTest, AWrongForwardPassIsFoundWhereItIsFirstSeen) {
  for (const int64_t pass : {kOriginal, kRepetition}) {
    EXPECT_THAT(Accused({.topology = "dp2_pp2",
                         .rank = 1,
                         .first_pass = pass,
                         .once = true,
                         .where = Where::kForward}),
                ContainsRegex("differs in the activations behind stage 0: .*At fault: "
                              "rank 1 \\([^()]*\\) \\(once: "));
    EXPECT_THAT(Accused({.topology = "dp2_pp2",
                         .rank = 2,
                         .first_pass = pass,
                         .once = true,
                         .where = Where::kForward}),
                ContainsRegex("differs in the loss: .*At fault: rank 2 \\([^()]*\\) \\(once: "));
    EXPECT_THAT(
        Accused({.topology = "dp2_tp2",
                 .rank = 1,
                 .first_pass = pass,
                 .once = true,
                 .where = Where::kForward}),
        ContainsRegex("differs in .*: silent corruption. At fault: rank 0 \\([^()]*\\) or rank 1 "
                      "\\([^()]*\\) \\(once: "));
  }
}

TEST_F(ReplayFaultTest, FastNumericsCompareReplicasToo) {
  const std::string message = Accused({.topology = "dp3", .rank = 2, .exact = false});
  EXPECT_THAT(message, HasSubstr("At fault: rank 2 ("));
  EXPECT_THAT(message, HasSubstr("a third replica agrees"));
}

TEST_F(ReplayFaultTest, AnOperationThatReportsItsErrorIsNoSilentCorruption) {
  for (const int64_t pass : {kOriginal, kRepetition}) {
    const std::vector<absl::Status> statuses =
        Run({.topology = "dp2", .rank = 1, .first_pass = pass, .once = true, .fails = true});
    EXPECT_EQ(statuses[1], absl::InternalError("a kernel has failed"));
    EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("a kernel has failed"));
  }
}

// It leaves zeros in the place of a batch, which a repetition may read.
TEST_F(ReplayFaultTest, WhatCouldNotBeReadIsNoSilentCorruption) {
  for (const absl::Status& status : Run({.topology = "dp2",
                                    .rank = 1,
                                    .once = true,
                                    .unread = absl::NotFoundError("no more tokens")})) {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no more tokens"));
  }
}

TEST_F(ReplayFaultTest, AFaultInAnotherMicroBatchIsNotSeen) {
  for (const absl::Status& status :
       Run({.topology = "dp2", .rank = 1, .first_pass = kOriginal + 1, .once = true})) {
    EXPECT_OK(status);
  }
}

TEST_F(ReplayFaultTest, GoesOnWhereItOnlyWarns) {
  ::testing::internal::CaptureStderr();
  for (const absl::Status& status :
       Run({.topology = "dp2", .rank = 1, .once = true}, ReplicaDivergence::WARN)) {
    EXPECT_OK(status);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("At fault: rank 1 ("));
  EXPECT_EQ(said.find("At fault"), said.rfind("At fault")) << said;
}

TEST(ReplayTest, TheMemoryOfARepetitionIsCounted) {
  for (const char* model : {testing::kGpt2, testing::kLlama, testing::kTiedLlama}) {
    for (const int exact_shards : {0, 1}) {
      SCOPED_TRACE(absl::StrCat(model, exact_shards));
      testing::RunSettings settings = Settings(model, "single");
      settings.exact_shards = exact_shards;
      int64_t counted[2] = {}, taken[2] = {};
      for (const int64_t interval : {0, 2}) {
        ThreadWorld world(1);
        ASSERT_OK(world.Run([&](Communicator& comm) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              const std::unique_ptr<testing::TrainingRank> rank,
              testing::TrainingRank::Create(Config(settings, interval), kSeed, &comm, nullptr));
          rank->Initialize();
          TESSERA_RETURN_IF_ERROR(rank->Step().status());
          ResetPeakMemory();
          const int64_t before = TensorMemory(MemoryCategory::kGradients).live_bytes;
          TESSERA_RETURN_IF_ERROR(rank->Step().status());
          counted[interval / 2] = rank->trainer().memory().gradients;
          taken[interval / 2] = TensorMemory(MemoryCategory::kGradients).peak_bytes - before;
          return absl::OkStatus();
        }));
      }
      EXPECT_EQ(taken[0], 0);
      EXPECT_GT(taken[1], 0);
      EXPECT_LE(taken[1], counted[1] - counted[0]);
      EXPECT_GE(2 * taken[1], counted[1] - counted[0]);
    }
  }
}

}  // namespace
}  // namespace tessera
