// The trainer's own session and loop on simulated GPUs, as `train --device=cuda` runs them. There
// are steps, evaluations, asynchronous saves, resumes on the processors and back, weights of llm.c
// in and out, and what it refuses. Host code cannot touch device memory here, and streams run late.

#include "tests/device/simulated_session.h"

#include <gmock/gmock.h>

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/wall_clock_jump.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manager_options.h"
#include "compute/device/testing/simulated_device.h"
#include "layout/topology.h"
#include "trainer/state/run_saver.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

using testing::Described;
using testing::Digests;
using testing::ExpectNear;
using ::testing::HasSubstr;
using testing::kLastStep;
using testing::kSavedStep;
using testing::Losses;
using ::testing::Not;
using testing::SimulatedSessionTest;

absl::Status Train(Session& session) { return testing::TrainSession(session); }

// Writes what was loaded as a checkpoint of its own.
absl::Status SaveAgain(Session& session) {
  TESSERA_RETURN_IF_ERROR(session.saver->Save(Described(session), ckpt::SaveKind::kPermanent));
  for (const ckpt::SaveOutcome& outcome : session.saver->Finish()) {
    TESSERA_RETURN_IF_ERROR(outcome.report.status());
  }
  return absl::OkStatus();
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

// With bf16, there are weights of both dtypes; IsResumedThereAndOnTheProcessors has fp32.
TEST_P(TopologyTest, LoadsAndSavesTheSameStateOnProcessorsAndBack) {
  for (const bool bf16 : {false, true}) {
    if (!bf16 && GetParam() != std::string("single")) continue;
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

// The memory of one rank's host is too small for the copy of the first export. The others do not
// wait for it, and the run goes on. Since no process has died, the next start tries again.
TEST_F(SimulatedSessionTest, AnExportThatOneRankCannotCopyIsLeftOut) {
  std::atomic<int64_t> too_large = -1;
  SimulatedDevices devices({.count = 2, .lacks_pinned = [&](int index, int64_t bytes) {
                              int64_t once = bytes;
                              return index == 1 && too_large.compare_exchange_strong(once, -1);
                            }});
  TrainConfig config = Config("run", "dp2", true);
  config.mutable_parallel()->set_distributed_timeout_minutes(0.5);
  config.mutable_checkpoint()->set_export_llmc(root_ / "w.bin");
  config.mutable_checkpoint()->set_export_llmc_interval(1);
  const std::filesystem::path mark = root_ / "w-00000001.bin.retried";
  std::ofstream(mark) << "";
  ASSERT_OK(Run(config, devices, [&](Session& session) {
    if (!session.first_rank())
      too_large = session.state().front().parameters->values().view().bytes();
    return Train(session);
  }));
  EXPECT_EQ(LossesOf("run").size(), kLastStep + 1);  // and the evaluation
  EXPECT_FALSE(std::filesystem::exists(root_ / "w-00000001.bin"));
  EXPECT_FALSE(std::filesystem::exists(mark));
  EXPECT_TRUE(std::filesystem::exists(root_ / "w-00000002.bin"));
  EXPECT_TRUE(std::filesystem::exists(Checkpoints("run") / "step-00000003"));
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

}  // namespace
}  // namespace tessera
