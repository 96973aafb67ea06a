// The trainer's own session and loop on simulated GPUs, as `train --device=cuda` runs them. There
// are steps, evaluations, asynchronous saves, resumes on the processors and back, weights of llm.c
// in and out, and what it refuses. Host code cannot touch device memory here, and streams run late.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/mutex.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "base/wall_clock_jump.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/include/manifest.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/device/testing/simulated_devices.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "models/layers/model.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "nlohmann/json.hpp"
#include "tensor/device.h"
#include "tests/support/session_run.h"
#include "tests/support/training.h"
#include "trainer/app/host_share.h"
#include "trainer/app/session.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_saver.h"
#include "trainer/state/run_state.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSavedStep = 2;
constexpr int64_t kLastStep = 3;
// Sums of few terms in another order than the CPU's, over few steps.
constexpr double kTolerance = 2e-5;

constexpr char kModel[] =
    "size: \"gpt2-tiny\" num_layers: 2 hidden_size: 16 ffn_hidden_size: 64 num_attention_heads: 2 "
    "vocab_size: 48 hidden_dropout: 0.1";

using Body = testing::SessionBody;
using Losses = std::map<int64_t, double>;
using testing::Digests;

absl::Status Train(Session& session) { return testing::TrainSession(session); }

ckpt::Manifest Described(const Session& session) {
  return DescribeRun(session.config, session.config.model(), session.progress,
                     session.data_identity(), session.numerics());
}

// Writes what was loaded as a checkpoint of its own.
absl::Status SaveAgain(Session& session) {
  TESSERA_RETURN_IF_ERROR(session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
  for (const ckpt::SaveOutcome& outcome : session.saver->Finish()) {
    TESSERA_RETURN_IF_ERROR(outcome.report.status());
  }
  return absl::OkStatus();
}

class SimulatedSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(testing::WriteTokens(root_ / "tokens.bin", /*vocabulary=*/48, /*count=*/1000));
  }

  // The config of the run `name`, which saves in its folder after kSavedStep and kLastStep steps.
  TrainConfig Config(const std::string& name, const std::string& topology, bool on_gpus,
                     bool exact = false) const {
    TrainConfig config = OrFail(testing::MakeConfig({.model = kModel,
                                                     .tokens = root_ / "tokens.bin",
                                                     .topology = topology,
                                                     .exact_shards = exact ? 2 : 0,
                                                     .micro_batch_size = 1,
                                                     .global_batch_size = 4,
                                                     .seq_length = 8,
                                                     .steps = kLastStep,
                                                     .bucket_elements = 1000}));
    if (on_gpus) config.mutable_training()->set_device(ComputeDevice::CUDA);
    config.mutable_data()->set_valid_data_path(root_ / "tokens.bin");
    config.mutable_training()->set_eval_interval(kLastStep);
    config.mutable_training()->set_eval_iters(1);
    config.mutable_output()->set_run_dir(root_ / name);
    config.mutable_checkpoint()->set_save(Checkpoints(name));
    config.mutable_checkpoint()->set_save_interval(kSavedStep);
    config.mutable_checkpoint()->set_async_save(true);
    return config;
  }
  // A run of two GPUs, each on a machine of its own, whose store has nothing before the last step.
  TrainConfig Replicating(const std::string& name, bool async_save) const {
    TrainConfig config = Config(name, "dp2_zero2", /*on_gpus=*/true);
    CheckpointConfig& checkpoint = *config.mutable_checkpoint();
    checkpoint.set_save_interval(1000);
    checkpoint.set_async_save(async_save);
    checkpoint.set_replicate_to_peers(true);
    checkpoint.set_replicate_interval(1);
    checkpoint.set_replicate_ranks_per_node(1);
    checkpoint.set_replicate_folder(root_ / (name + "_memory"));
    return config;
  }
  // The same as Config(), beginning with the checkpoint of a step of another run.
  TrainConfig After(const std::string& other, int64_t step, TrainConfig config) const {
    config.mutable_checkpoint()->set_load(Checkpoints(other));
    config.mutable_checkpoint()->set_ckpt_step(step);
    return config;
  }
  fs::path Checkpoints(const std::string& name) const { return root_ / name / "checkpoints"; }

  absl::StatusOr<std::string> Run(const TrainConfig& config, ComputeDevices& devices,
                                  const Body& body) {
    return testing::RunSessions(config, devices, body);
  }
  absl::StatusOr<std::string> Run(const TrainConfig& config, const Body& body, uint64_t seed = 0) {
    SimulatedDevices devices({.count = ConfigTopology(config).world_size(), .seed = seed});
    return Run(config, devices, body);
  }

  Losses LossesOf(const std::string& name) const {
    Losses losses;
    std::ifstream file(root_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      const bool is_step = record["kind"] == "step";
      const std::string bits = record[is_step ? "loss_bits" : "eval_loss_bits"];
      // The evaluation after the last step stands at 0.
      losses[is_step ? record["step"].get<int64_t>() : 0] =
          std::bit_cast<double>(static_cast<uint64_t>(std::strtoull(bits.c_str(), nullptr, 16)));
    }
    return losses;
  }

  std::vector<std::string> LedgerOf(const std::string& name) const {
    std::vector<std::string> ledger;
    std::ifstream file(root_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record["kind"] == "step") ledger.push_back(record["ledger"].get<std::string>());
    }
    return ledger;
  }

  Digests DigestsOf(const std::string& name, int64_t step) const {
    return OrFail(testing::ReadDigests(Checkpoints(name), step));
  }

  const TestFolder folder_;
  const fs::path root_ = folder_.path();
};

void ExpectNear(const Losses& a, const Losses& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [step, loss] : a) EXPECT_NEAR(loss, b.at(step), kTolerance) << step;
}

class TopologyTest : public SimulatedSessionTest,
                     public ::testing::WithParamInterface<const char*> {
 protected:
  // The losses of a run on one process, which all tests share.
  const Losses& LossesOnProcessors() {
    static const Losses& losses = *new Losses([this] {
      EXPECT_OK(Run(Config("cpu", "single", false), Train));
      return LossesOf("cpu");
    }());
    return losses;
  }
};

TEST_P(TopologyTest, IsResumedThereAndOnTheProcessors) {
  const std::string topology = GetParam();
  const TrainConfig on_gpus = Config("gpus", topology, /*on_gpus=*/true);
  ASSERT_OK_AND_ASSIGN(const std::string notes, Run(on_gpus, Train, /*seed=*/3));
  EXPECT_THAT(notes, HasSubstr("GPU 0: simulated GPU, "));
  const Losses losses = LossesOf("gpus");
  ASSERT_EQ(losses.size(), kLastStep + 1);  // and the evaluation

  // The processors, from the beginning and from the GPUs' checkpoint.
  ExpectNear(LossesOnProcessors(), losses);
  ASSERT_OK_AND_ASSIGN(
      const std::string resumed,
      Run(After("gpus", kSavedStep, Config("cpu_resumed", "single", false)), Train));
  EXPECT_THAT(resumed, HasSubstr("saved where numbers are computed otherwise (instruction set "
                                 "simulated GPU, here "));
  Losses later = losses;
  for (int64_t step = 1; step <= kSavedStep; ++step) later.erase(step);
  ExpectNear(LossesOf("cpu_resumed"), later);

  // The same devices: the same bits.
  ASSERT_OK(Run(After("gpus", kSavedStep, Config("gpus_resumed", topology, true)), Train));
  EXPECT_EQ(LossesOf("gpus_resumed"), later);
  EXPECT_EQ(DigestsOf("gpus_resumed", kLastStep), DigestsOf("gpus", kLastStep));
}

TEST_P(TopologyTest, LoadsAndSavesTheSameStateOnProcessorsAndBack) {
  for (const bool bf16 : {false, true}) {
    const auto config = [&](const std::string& name, const std::string& topology, bool on_gpus) {
      TrainConfig made = Config(absl::StrCat(name, bf16), topology, on_gpus);
      made.mutable_training()->set_bf16(bf16);
      return made;
    };
    const std::string first = absl::StrCat("first", bf16), there = absl::StrCat("there", bf16),
                      back = absl::StrCat("back", bf16);
    ASSERT_OK(Run(config("first", "single", false), Train));
    const Digests expected = DigestsOf(first, kSavedStep);
    ASSERT_OK(Run(After(first, kSavedStep, config("there", GetParam(), true)), SaveAgain));
    EXPECT_EQ(DigestsOf(there, kSavedStep), expected);
    ASSERT_OK(Run(After(there, kSavedStep, config("back", "single", false)), SaveAgain));
    EXPECT_EQ(DigestsOf(back, kSavedStep), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, TopologyTest,
                         ::testing::Values("single", "dp2", "tp2", "pp2", "dp2_zero2_tp2_pp2"),
                         [](const auto& info) { return std::string(info.param); });

// A schedule is the order in which what is queued on the streams of all GPUs, messages, and the
// blocks and threads of kernels run. Losses, the evaluation and the weights of both saves have the
// same bits in five of them. Without the waits for events that order the streams, they do not.
TEST_F(SimulatedSessionTest, FiveSchedulesHaveTheSameBits) {
  const auto train = [&](uint64_t seed, bool waits) {
    const TrainConfig config =
        Config(absl::StrCat("schedule", seed, waits), "dp2_zero2_tp2_pp2", /*on_gpus=*/true);
    SimulatedDevices devices({.count = ConfigTopology(config).world_size(),
                              .seed = seed,
                              .drops_wait = [=](int64_t) { return !waits; }});
    return Run(config, devices, Train).status();
  };
  for (uint64_t seed = 0; seed < 5; ++seed) {
    ASSERT_OK(train(seed, /*waits=*/true)) << seed;
    const std::string name = absl::StrCat("schedule", seed, true);
    EXPECT_EQ(LossesOf(name), LossesOf("schedule01")) << seed;
    for (const int64_t step : {kSavedStep, kLastStep}) {
      EXPECT_EQ(DigestsOf(name, step), DigestsOf("schedule01", step)) << seed << ", step " << step;
    }
  }
  EXPECT_FALSE(train(1, /*waits=*/false).ok() && LossesOf("schedule10") == LossesOf("schedule01"));
}

TEST_F(SimulatedSessionTest, WeightsOfLlmcGoInAndOut) {
  TrainConfig config = Config("from", "single", false);
  const std::string written = root_ / "cpu.bin", again = root_ / "gpus.bin";
  ASSERT_OK(Run(config, [&](Session& session) {
              return ExportWeights(session, {.format = "llmc", .path = written});
            }).status());
  for (const bool bf16 : {false, true}) {
    TrainConfig there = Config(absl::StrCat("there", bf16), "tp2", true);
    there.mutable_training()->set_bf16(bf16);
    there.mutable_checkpoint()->set_llmc_filepath(written);
    std::vector<float> on_gpus, on_cpu;
    const auto weigh = [&](std::vector<float>& logits) {
      return [&](Session& session) -> absl::Status {
        const std::vector<int32_t> context = {1, 5, 2};
        TESSERA_ASSIGN_OR_RETURN(const std::vector<float> found,
                                 session.trainer->NextLogits(context));
        if (session.first_rank()) logits = found;
        return ExportWeights(session, {.format = "llmc", .path = again});
      };
    };
    ASSERT_OK(Run(there, weigh(on_gpus)));
    if (!bf16) EXPECT_TRUE(*ReadWholeFile(again) == *ReadWholeFile(written));
    const std::string gpus_file = *ReadWholeFile(again);
    TrainConfig here = Config(absl::StrCat("here", bf16), "single", false);
    here.mutable_training()->set_bf16(bf16);
    here.mutable_checkpoint()->set_llmc_filepath(written);
    ASSERT_OK(Run(here, weigh(on_cpu)));
    EXPECT_TRUE(*ReadWholeFile(again) == gpus_file);
    ASSERT_EQ(on_gpus.size(), on_cpu.size());
    for (size_t i = 0; i < on_cpu.size(); ++i)
      EXPECT_NEAR(on_gpus[i], on_cpu[i], bf16 ? 2e-2 : 1e-5);
  }
}

TEST_F(SimulatedSessionTest, MoreRanksThanGpusAreRefused) {
  SimulatedDevices devices({.count = 1});
  const absl::Status status = Run(Config("run", "dp2", true), devices, Train).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("device=cuda: 2 processes of this machine share 1 GPU, but each needs one "
                        "of its own"));
}

// GPUs of two types train together, and continue where processors have begun, and the reverse: one
// chain of the ledger, and one state.
TEST_F(SimulatedSessionTest, ExactNumericsAreThoseOfProcessorsOnGpusOfAnyType) {
  SimulatedDevices devices(
      {.count = 2, .seed = 3, .type = [](int index) { return absl::StrCat("type ", index); }});
  ASSERT_OK_AND_ASSIGN(std::string notes, Run(Config("fast", "dp2", true), devices, Train));
  EXPECT_THAT(notes, HasSubstr("not all ranks compute the same bits: rank 1 differs from rank 0: "
                               "instruction set type 0, there type 1"));
  ASSERT_OK(Run(Config("cpu", "single", false, /*exact=*/true), Train));
  const std::vector<std::string> ledger = LedgerOf("cpu");
  ASSERT_EQ(ledger.size(), kLastStep);
  for (const std::string topology : {"dp2_zero2", "tp2", "pp2"}) {
    ASSERT_OK_AND_ASSIGN(notes, Run(Config(topology, topology, true, true), devices, Train));
    EXPECT_THAT(notes, Not(HasSubstr("compute the same bits")));
    EXPECT_EQ(LedgerOf(topology), ledger) << topology;
    EXPECT_EQ(DigestsOf(topology, kLastStep), DigestsOf("cpu", kLastStep)) << topology;
  }
  for (const bool to_gpus : {false, true}) {
    const std::string name = absl::StrCat("resumed", to_gpus), from = to_gpus ? "cpu" : "tp2";
    TrainConfig config = Config(name, to_gpus ? "dp2_zero2" : "single", to_gpus, true);
    ASSERT_OK_AND_ASSIGN(notes, Run(After(from, kSavedStep, config), devices, Train));
    EXPECT_THAT(notes, Not(HasSubstr("are computed otherwise")));
    EXPECT_EQ(LedgerOf(name), std::vector<std::string>{ledger.back()});
    EXPECT_EQ(DigestsOf(name, kLastStep), DigestsOf("cpu", kLastStep));
  }
}

TEST_F(SimulatedSessionTest, AGpuThatDoesNotComputeByIeeeIsRefusedInExactNumerics) {
  const auto error = [&](simt::Arithmetic arithmetic, bool exact) {
    SimulatedDevices devices({.arithmetic = arithmetic});
    const auto status = Run(Config("run", "single", true, exact), devices, [](Session&) {
                          return absl::OkStatus();
                        }).status();
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error(simt::Arithmetic::kIeee, true), "");
  EXPECT_EQ(error(simt::Arithmetic::kFlushesSubnormals, false), "");
  EXPECT_THAT(
      error(simt::Arithmetic::kFlushesSubnormals, true),
      HasSubstr("GPU 0 (simulated GPU) flushes subnormal numbers: one of its quotients of"));
  EXPECT_THAT(error(simt::Arithmetic::kRoundsTowardZero, true),
              HasSubstr("GPU 0 (simulated GPU): one of its quotients of"));
  simt::SetSimulatedArithmetic(simt::Arithmetic::kIeee);
}

// A clock that is set two hours ahead does not end a run that may take one hour.
TEST_F(SimulatedSessionTest, ALimitOfTimeIsForTimeThatHasPassed) {
  TrainConfig config = Config("run", "single", /*on_gpus=*/false);
  config.mutable_checkpoint()->clear_save();
  config.mutable_training()->set_exit_duration_in_mins(60);
  const auto body = [](Session& session) {
    session.trainer->set_before_overwrite([](const TensorView&) {
      if (wall_clock_jump_s.exchange(7200) == 0) absl::SleepFor(kWallClockIsReadAgainAfter);
    });
    return Train(session);
  };
  EXPECT_OK(Run(config, body));
  wall_clock_jump_s = 0;
  EXPECT_EQ(LossesOf("run").size(), kLastStep + 1);  // and the evaluation
}

// On one rank alone, which the others do not wait for.
TEST_F(SimulatedSessionTest, AModelThatDoesNotFitTheGpuIsRefused) {
  SimulatedDevices devices({.count = 2, .memory_bytes = [](int index) -> int64_t {
                              return index == 1 ? int64_t{1} << 20 : int64_t{1} << 30;
                            }});
  TrainConfig config = Config("run", "dp2", true);
  config.mutable_model()->set_vocab_size(5000);
  const absl::Status status = Run(config, devices, Train).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(" of GPU memory in this process to train"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the GPU (simulated GPU) has 1.00 MiB"));
}

// This GPU has too little shared memory for heads of 128 in fp32.
TEST_F(SimulatedSessionTest, HeadsThatAttentionCannotHoldAreRefused) {
  SimulatedDevices devices({.count = 1, .shared_bytes_of_block = 80 << 10});
  TrainConfig config = Config("run", "single", true);
  config.mutable_model()->set_hidden_size(config.model().num_attention_heads() * 128);
  const absl::Status status = Run(config, devices, Train).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("attention with heads of 128 in fp32 needs 84608 bytes of shared memory"));

  const auto device = OpenSimulatedDevice(0, {.shared_bytes_of_block = 99 << 10});
  config.mutable_training()->set_bf16(true);
  EXPECT_EQ(CheckModelFitsGpu(config, /*trains=*/true, *device), absl::OkStatus());
  device->choices.attention_at_once = true;
  EXPECT_THAT(std::string(CheckModelFitsGpu(config, /*trains=*/true, *device).message()),
              HasSubstr("attention with heads of 128 in bf16 needs 115216 bytes of shared memory"));
  EXPECT_EQ(CheckModelFitsGpu(config, /*trains=*/false, *device), absl::OkStatus());
  config.mutable_model()->set_attention_dropout(0.1);
  EXPECT_EQ(CheckModelFitsGpu(config, /*trains=*/true, *device), absl::OkStatus());
}

// A run takes rank 0's table of products, on all ranks, and its checkpoints record it.
class ProductTableSessionTest : public SimulatedSessionTest {
 protected:
  TrainConfig WithTable(const std::string& name, const std::string& topology,
                        const std::string& table) const {
    TrainConfig config = Config(name, topology, /*on_gpus=*/true);
    config.mutable_training()->set_product_table(table);
    return config;
  }
  // Writes a table of the products of a micro-batch whose names contain `part`: the second proposal
  // of each.
  std::string WriteTable(const std::string& device, const std::string& part) {
    cuda::ProductProposals proposals;
    const auto collect = [&](Session& session) -> absl::Status {
      TrainingDevice& gpu = *session.device->gpu();
      cuda::ProductChoices choices = gpu.choices;
      choices.timer.add = [&](const std::string& product, int /*proposal*/, double /*seconds*/) {
        if (product.find(part) != std::string::npos) proposals[product] = 1;
      };
      TESSERA_ASSIGN_OR_RETURN(const auto backend, gpu.make_backend(choices));
      TESSERA_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(session.config, {.trains = true},
                                                                   *session.mesh, *backend));
      trainer->InitializeWeights(1);
      return trainer->Step(*session.train_data->loader, {}).status();
    };
    EXPECT_OK(Run(Config("measured", "single", true), collect));
    const std::string path = root_ / absl::StrCat("table", ++tables_);
    EXPECT_OK(cuda::AddProposals(path, device, proposals));
    return path;
  }
  static std::string TypeOf(int index) { return index == 0 ? "simulated GPU" : "another GPU"; }
  std::string DigestOf(const std::string& table) const {
    return cuda::DigestOf(
        OrFail(cuda::ParseProductTable(OrFail(ReadWholeFile(table)))).at(kDevice));
  }

  static constexpr char kDevice[] = "simulated GPU; fake cuBLASLt";
  int tables_ = 0;
};

TEST_F(ProductTableSessionTest, IsACauseOfBitsThatCheckpointsRecord) {
  const std::string table = WriteTable(kDevice, ""), other = WriteTable(kDevice, "]' x");
  ASSERT_NE(DigestOf(table), DigestOf(other));
  ASSERT_OK(Run(Config("without", "dp2", true), Train));
  ASSERT_OK_AND_ASSIGN(std::string notes, Run(WithTable("with", "dp2", table), Train, /*seed=*/2));
  EXPECT_THAT(notes, HasSubstr("fake cuBLASLt with product table " + DigestOf(table)));
  EXPECT_THAT(notes, Not(HasSubstr("compute the same bits")));
  EXPECT_NE(LossesOf("with"), LossesOf("without"));
  ExpectNear(LossesOf("with"), LossesOf("without"));
  Losses later = LossesOf("with");
  for (int64_t step = 1; step <= kSavedStep; ++step) later.erase(step);

  // The same table elsewhere.
  fs::copy_file(table, root_ / "copy");
  ASSERT_OK_AND_ASSIGN(
      notes, Run(After("with", kSavedStep, WithTable("resumed", "dp2", root_ / "copy")), Train));
  EXPECT_THAT(notes, Not(HasSubstr("computed otherwise")));
  EXPECT_EQ(LossesOf("resumed"), later);
  const auto note = [&](const std::string& here) {
    return absl::StrCat("saved where numbers are computed otherwise (matrix products by fake ",
                        "cuBLASLt with product table ", DigestOf(table), ", here fake cuBLASLt",
                        here, ")");
  };
  ASSERT_OK_AND_ASSIGN(notes,
                       Run(After("with", kSavedStep, WithTable("other", "dp2", other)), Train));
  EXPECT_THAT(notes, HasSubstr(note(" with product table " + DigestOf(other))));
  ASSERT_OK_AND_ASSIGN(notes, Run(After("with", kSavedStep, Config("none", "dp2", true)), Train));
  EXPECT_THAT(notes, HasSubstr(note("")));
}

TEST_F(ProductTableSessionTest, IsIgnoredIfItIsDamagedOrOfOtherDevices) {
  const std::string damaged = WriteTable(kDevice, "");
  ASSERT_OK(ReplaceFile(damaged, OrFail(ReadWholeFile(damaged)).substr(1)));
  ASSERT_OK(Run(Config("without", "dp2", true), Train));
  int run = 0;
  for (const auto& [table, reason] : std::map<std::string, std::string>{
           {damaged, "it is no table of products of version 1"},
           {WriteTable("simulated GPU; fake cuBLASLt 2", ""), "it has no products of "},
           {WriteTable("another GPU; fake cuBLASLt", ""), "it has no products of "}}) {
    const std::string name = absl::StrCat("run", ++run);
    ASSERT_OK_AND_ASSIGN(const std::string notes, Run(WithTable(name, "dp2", table), Train));
    const std::string sentence = absl::StrCat("product_table=", table, " is not used: ", reason);
    ASSERT_THAT(notes, HasSubstr(sentence));
    EXPECT_THAT(notes, Not(HasSubstr("with product table")));
    EXPECT_EQ(LossesOf(name), LossesOf("without"));
  }
}

TEST_F(ProductTableSessionTest, ThatRankZeroCannotReadEndsTheRunOnAllRanks) {
  const std::string table = root_ / "nowhere", large = root_ / "large";
  ASSERT_OK(ReplaceFile(large, ""));
  fs::resize_file(large, (16 << 20) + 1);
  for (const auto& [path, reason] : std::map<std::string, std::string>{
           {table, "cannot open " + table + ": No such"},
           {large, large + " has 16777217 bytes, expected at most 16777216"}}) {
    for (const std::string topology : {"single", "dp2"}) {
      const absl::Status status = Run(WithTable("run", topology, path), Train).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("product_table: " + reason));
    }
  }
}

TEST_F(ProductTableSessionTest, IsUsedByAllRanksOrByNone) {
  const std::string of_one = WriteTable(kDevice, ""), of_both = root_ / "both";
  fs::copy_file(of_one, of_both);
  ASSERT_OK(cuda::AddProposals(of_both, "another GPU; fake cuBLASLt", {{"a product", 1}}));
  ASSERT_OK(Run(Config("without", "dp2", true), Train));
  for (const auto& [table, reason] : std::map<std::string, std::string>{
           {of_one, "it has no products of another GPU; fake cuBLASLt, the GPU of rank 1"},
           {of_both, "it has other products of the GPU of rank 1 than of that of rank 0"}}) {
    const std::string name = fs::path(table).filename().string() + "_run";
    SimulatedDevices devices({.count = 2, .type = TypeOf});
    ASSERT_OK_AND_ASSIGN(const std::string notes,
                         Run(WithTable(name, "dp2", table), devices, Train));
    EXPECT_THAT(notes, HasSubstr(absl::StrCat("product_table=", table, " is not used: ", reason)));
    EXPECT_THAT(notes, Not(HasSubstr("with product table")));
    EXPECT_EQ(LossesOf(name), LossesOf("without"));
  }
}

// A kernel that fails on one rank ends its step, and with it the run of all ranks.
TEST_F(SimulatedSessionTest, AnErrorOfAKernelEndsTheRunOnAllRanks) {
  TrainConfig config = Config("run", "dp2", true);
  Mutex mutex;
  std::map<int, absl::Status> statuses;
  const auto body = [&](Session& session) {
    const int rank = session.mesh->rank();
    if (rank == 1) {
      session.trainer->set_before_overwrite([&session](const TensorView&) {
        session.device->gpu()->context->KeepError("a kernel", absl::InternalError("has failed"));
      });
    }
    const absl::Status status = Train(session);
    const MutexLock lock(&mutex);
    statuses[rank] = status;
    return status;
  };
  EXPECT_FALSE(Run(config, body).ok());
  ASSERT_EQ(statuses.size(), 2);
  EXPECT_EQ(statuses[1], absl::InternalError("a kernel: has failed"));
  EXPECT_FALSE(statuses[0].ok());
}

// A GPU of one rank runs out of memory, which another program has taken: in the middle of a step,
// in an evaluation, in sampling, or where a trainer is built. All ranks end with its message.
TEST_F(SimulatedSessionTest, AGpuThatRunsOutOfMemoryEndsTheRunOnAllRanks) {
  const std::vector<int32_t> context = {1, 5, 2};
  const auto step = [](Session& session) {
    return session.trainer->Step(*session.train_data->loader, {}).status();
  };
  const auto evaluate = [](Session& session) { return EvaluateSession(session).status(); };
  const auto sample = [&](Session& session) {
    return session.trainer->NextLogits(context).status();
  };
  const auto build = [](Session& session) {
    return Trainer::Create(session.config, {}, *session.mesh, session.device->backend()).status();
  };
  struct Case {
    const char* topology;
    const char* purpose;
    Body body;
    int64_t left_bytes = 0;  // for token ids and logits, or for the state of a trainer
  };
  for (const Case& c :
       {Case{"single", "workspace", step}, Case{"dp2", "pieces to reduce", step},
        Case{"pp2", "gradients", step}, Case{"dp2_zero2", "gradients", step},
        Case{"dp2", "activations", evaluate, 100}, Case{"pp2", "activations", evaluate, 100},
        Case{"tp2", "activations", sample, 300}, Case{"dp2", "activations", build, 222'000}}) {
    SCOPED_TRACE(absl::StrCat(c.topology, ": ", c.purpose));
    Mutex mutex;
    std::map<int, absl::Status> statuses;
    const auto body = [&](Session& session) -> absl::Status {
      const int rank = session.mesh->rank();
      std::optional<DeviceBuffer> taken;
      if (rank == session.mesh->topology().world_size() - 1) {
        TrainingDevice& gpu = *session.device->gpu();
        TESSERA_ASSIGN_OR_RETURN(const auto memory, gpu.context->runtime().Memory());
        TESSERA_ASSIGN_OR_RETURN(
            DeviceBuffer buffer,
            DeviceBuffer::Allocate(*gpu.compute, memory.free_bytes - c.left_bytes, "others"));
        taken.emplace(std::move(buffer));
      }
      // A rank that is still on its way would end without a status of its own.
      Communicator* const world = session.mesh->world();
      absl::Status status = world == nullptr ? absl::OkStatus() : world->Barrier();
      if (status.ok()) status = c.body(session);
      const MutexLock lock(&mutex);
      statuses[rank] = status;
      return status;
    };
    SimulatedDevices devices({.count = 2, .memory_bytes = [](int) { return int64_t{16} << 20; }});
    EXPECT_FALSE(Run(Config("run", c.topology, true), devices, body).ok());
    ASSERT_EQ(statuses.size(), c.topology == std::string("single") ? 1 : 2);
    for (const auto& [rank, status] : statuses) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << rank << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("out of device memory: ")) << rank;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat(" bytes of ", c.purpose, " do not fit beside ")))
          << rank;
    }
  }
}

// A copy that fails on one rank is the end of the save, or of the replica, on all of them, which
// does not wait for it, and the next one works.
TEST_F(SimulatedSessionTest, ACopyThatFailsOnOneRankEndsTheSaveOnAll) {
  for (const bool replicates : {false, true}) {
    const TrainConfig config =
        replicates ? Replicating("replicating", true) : Config("run", "dp2", true);
    Mutex mutex;
    std::map<int, std::vector<absl::Status>> outcomes;
    const auto body = [&](Session& session) -> absl::Status {
      const int rank = session.mesh->rank();
      for (const bool fails : {true, false}) {
        session.progress.step += 1;
        TESSERA_RETURN_IF_ERROR(
            replicates ? session.saver->Replicate(Described(session))
                       : session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
        if (fails && rank == 1) {
          session.device->gpu()->context->KeepError("a copy", absl::InternalError("has failed"));
        }
        for (const ckpt::SaveOutcome& outcome :
             replicates ? session.saver->FinishReplicas() : session.saver->Finish()) {
          const MutexLock lock(&mutex);
          outcomes[rank].push_back(outcome.report.status());
        }
      }
      return absl::OkStatus();
    };
    ASSERT_OK(Run(config, body));
    for (const int rank : {0, 1}) {
      ASSERT_EQ(outcomes[rank].size(), 2) << rank;
      EXPECT_THAT(std::string(outcomes[rank][0].message()), HasSubstr("a copy: has failed"))
          << rank;
      EXPECT_OK(outcomes[rank][1]) << rank;
    }
  }
}

// Replicas hold the state that their step has left on the GPUs, though the next one overwrites it
// at once: a run goes on from them with the same bits.
TEST_F(SimulatedSessionTest, ReplicasAreTakenOfTheStateOnGpus) {
  ASSERT_OK(Run(Config("calm", "dp2_zero2", true), Train));
  Losses expected = LossesOf("calm");
  for (int64_t step = 1; step <= kSavedStep; ++step) expected.erase(step);
  for (const bool async_save : {false, true}) {
    const std::string name = absl::StrCat("replicating", async_save);
    const TrainConfig config = Replicating(name, async_save);
    const auto body = [](Session& session) -> absl::Status {
      Progress& progress = session.progress;
      while (true) {
        TESSERA_RETURN_IF_ERROR(
            session.trainer
                ->Step(*session.train_data->loader, {progress.step, progress.consumed_samples})
                .status());
        if (progress.step == kSavedStep) break;  // a step that is lost
        // Nothing is skipped because of the one before.
        for (const ckpt::SaveOutcome& outcome : session.saver->FinishReplicas()) {
          TESSERA_RETURN_IF_ERROR(outcome.report.status());
        }
        progress.step += 1;
        progress.updates += 1;
        progress.consumed_samples += session.config.training().global_batch_size();
        TESSERA_RETURN_IF_ERROR(session.saver->Replicate(Described(session)));
      }
      const std::vector<ckpt::SaveOutcome> last = session.saver->FinishReplicas();
      EXPECT_EQ(last.size(), 1);
      return last.empty() ? absl::OkStatus() : last.back().report.status();
    };
    ASSERT_OK(Run(config, body));
    ASSERT_OK_AND_ASSIGN(const std::string notes, Run(config, Train, /*seed=*/5));
    EXPECT_THAT(notes, HasSubstr(": complete and intact, found in "));
    EXPECT_EQ(LossesOf(name), expected);
    EXPECT_EQ(DigestsOf(name, kLastStep), DigestsOf("calm", kLastStep));
  }
}

// Announced and allocated memory differ by at most 5 percent, with an evaluation and without.
TEST_F(SimulatedSessionTest, TheMemoryThatIsAnnouncedIsWhatIsTaken) {
  for (const bool evaluates : {true, false}) {
    TrainConfig config = Config(evaluates ? "evaluates" : "trains", "single", /*on_gpus=*/true);
    config.mutable_model()->set_hidden_size(64);
    config.mutable_model()->set_ffn_hidden_size(256);
    config.mutable_training()->set_micro_batch_size(4);
    if (!evaluates) config.mutable_training()->set_eval_interval(0);
    ASSERT_OK(Run(config, [&](Session& session) -> absl::Status {
      auto& gpu = static_cast<SimulatedDevice&>(*session.device->gpu());
      TESSERA_ASSIGN_OR_RETURN(const Trainer::Memory announced,
                               GpuMemory(session.config, *session.trainer, gpu));
      EXPECT_EQ(announced.evaluation > 0, evaluates);
      TESSERA_RETURN_IF_ERROR(session.trainer->Step(*session.train_data->loader, {}).status());
      if (evaluates) TESSERA_RETURN_IF_ERROR(EvaluateSession(session).status());
      const auto taken = static_cast<double>(gpu.runtime->peak_bytes());
      EXPECT_NEAR(static_cast<double>(SumOf(announced)) / taken, 1, 0.05) << Describe(announced);
      return absl::OkStatus();
    }));
  }
}

// What an H200 was measured to give for GPT-2 124M, with 64x1024 and no evaluation: 23.2 GB. The
// part of its driver, which a run measures, is assumed to be 0.5 GB.
TEST_F(SimulatedSessionTest, TheMemoryOfGpt2IsThatOfAMeasurement) {
  TrainConfig config = Config("gpt2", "single", /*on_gpus=*/true);
  ModelConfig size;
  size.set_size("gpt2-124m");
  *config.mutable_model() = OrFail(ResolveModelConfig(size));
  config.mutable_training()->set_micro_batch_size(64);
  config.mutable_training()->set_seq_length(1024);
  config.mutable_training()->set_bf16(true);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const std::unique_ptr<Model> model = OrFail(MakeModel(
      config.model(), {.compute_dtype = DType::kBF16, .with_gradients = false}, *backend));
  Trainer::Memory memory = EstimateState(config, /*trains=*/true);
  memory.activations = model->ActivationBytes(64, 1024, ActivationUse::kTrainingWithNorms);
  constexpr double kMeasured = 23.2e9, kDriver = 0.5e9;
  EXPECT_NEAR(static_cast<double>(SumOf(memory)) + kDriver, kMeasured, 0.05 * kMeasured);
}

// Where one GPU has no memory for them, both compute the outputs of norms again, because they
// exchange them: the same bits.
TEST_F(SimulatedSessionTest, OutputsOfNormsAreKeptWhereMemoryAllows) {
  struct Memory {
    int64_t activations = 0, used = 0;
  };
  const auto run = [&](const std::string& name, int64_t memory_of_one) {
    std::map<int, Memory> memory;
    Mutex mutex;
    SimulatedDevices devices({.count = 2, .memory_bytes = [=](int index) {
                                return index == 1 ? memory_of_one : int64_t{1} << 30;
                              }});
    const auto body = [&](Session& session) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const auto left, session.device->gpu()->context->runtime().Memory());
      {
        const MutexLock lock(&mutex);
        memory[session.mesh->rank()] = {session.trainer->memory().activations,
                                        left.total_bytes - left.free_bytes};
      }
      return Train(session);
    };
    EXPECT_OK(Run(Config(name, "tp2_sp", true), devices, body));
    return memory;
  };
  const auto kept = run("kept", int64_t{1} << 30);
  // An eighth of the memory is left beside all that the run has allocated, but not beside more.
  const auto again = run("again", kept.at(1).used * 8 / 7 - 1000);
  for (const int rank : {0, 1}) {
    const int64_t norms = 2 * 2 * 8 * 16 * int64_t{sizeof(float)};
    EXPECT_EQ(kept.at(rank).activations - again.at(rank).activations, norms);
  }
  EXPECT_EQ(LossesOf("kept"), LossesOf("again"));
  EXPECT_EQ(DigestsOf("kept", kLastStep), DigestsOf("again", kLastStep));
}

}  // namespace
}  // namespace tessera
