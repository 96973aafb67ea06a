// That figures are measured and described; not what they are.

#include "tests/device/check/figures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "absl/status/status.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_device.h"

namespace tessera::testing {
namespace {

void ExpectPlausible(const TimedModel& model, const absl::StatusOr<TrainingFigures>& figures) {
  ASSERT_OK(figures);
  EXPECT_GT(figures->seconds_per_step, 0);
  const double tokens =
      static_cast<double>(model.micro_batch * model.accumulation * model.seq_length);
  EXPECT_DOUBLE_EQ(figures->tokens_per_second, tokens / figures->seconds_per_step);
  // Six operations for each weight, of which there are more than those of the block's matrices.
  EXPECT_GT(figures->flops_per_second / figures->tokens_per_second,
            6.0 * static_cast<double>(12 * model.layers * model.hidden * model.hidden));
  EXPECT_GT(figures->blocked_seconds, 0);
  // Weights in bf16, and three numbers of fp32 for each.
  EXPECT_GT(figures->saved_bytes, 14 * 12 * model.layers * model.hidden * model.hidden);
}

TEST(FiguresTest, TrainingOnTheCpuIsMeasured) {
  const TestFolder folder;
  for (int i = 0; i < 2; ++i) {  // several models may save in one folder
    ExpectPlausible(SmallModel(), MeasureTraining(SmallModel(), nullptr, folder.path()));
  }
}

TEST(FiguresTest, TrainingOnADeviceIsMeasured) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0);
  ExpectPlausible(SmallModel(), MeasureTraining(SmallModel(), device.get(), TestFolder().path()));
}

TEST(FiguresTest, RecomputedActivationsTakeMoreProducts) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0);
  TimedModel model = SmallModel();
  model.layers = 2;  // all but the last are recomputed
  model.saves = false;
  const auto products = [&] {
    const int64_t before = device->cublaslt->products();
    EXPECT_OK(MeasureTraining(model, device.get(), TestFolder().path()).status());
    return device->cublaslt->products() - before;
  };
  const int64_t without = products();
  model.recompute_activations = true;
  EXPECT_GT(products(), without);
}

TEST(FiguresTest, PytorchIsOptional) {
  const TestFolder own;
  const std::filesystem::path folder = own.path(), python = folder / "python3";
  const auto write = [&](const std::string& script) {
    std::ofstream(python) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  };
  EXPECT_EQ(MeasurePytorch(SmallModel(), "", "x.py", "cuda", folder).status(),
            absl::UnavailableError("PyTorch: no python3"));
  write("echo trace >&2; echo python3 has no torch >&2; exit 1");
  EXPECT_EQ(MeasurePytorch(SmallModel(), python, "x.py", "cuda", folder).status(),
            absl::UnavailableError("PyTorch: python3 has no torch"));
  write("sleep 600");
  EXPECT_EQ(MeasurePytorch(SmallModel(), python, "x.py", "cuda", folder, Deadline(0.1)).status(),
            absl::DeadlineExceededError("does not fit into --deadline=0"));
  write(R"([ "$1 $2 $5" = "x.py --device=cuda --heads=2" ] && echo 1234.5)");
  ASSERT_OK_AND_ASSIGN(const double rate,
                       MeasurePytorch(SmallModel(), python, "x.py", "cuda", folder));
  EXPECT_EQ(rate, 1234.5);
}

TEST(FiguresTest, FiguresAreDescribed) {
  const TrainingFigures figures = {.seconds_per_step = 0.5,
                                   .tokens_per_second = 200,
                                   .flops_per_second = 45,
                                   .blocked_seconds = 0.02,
                                   .lost_seconds = 0.25,
                                   .saved_bytes = 1740000000};
  const CheckOutcome outcome = OutcomeOf(SmallModel(), figures, /*product_rate=*/100);
  EXPECT_EQ(outcome.detail,
            "a tiny GPT-2, bf16: 200 tokens/s, 0.45 of the rate of products\n"
            "llm.c has published 100 tokens/s a GPU on H100s: 2.00 times that\n"
            "a save of 1.74 GB: 0.020 s blocked, 0.250 s lost");
  EXPECT_EQ(outcome.figures.at("share_of_products"), 0.45);
  EXPECT_EQ(outcome.figures.at("lost_seconds"), 0.25);
  TimedModel alone = SmallModel();
  alone.saves = false;
  alone.llmc_tokens_per_second = 0;
  EXPECT_EQ(OutcomeOf(alone, figures, 100).detail,
            "a tiny GPT-2, bf16: 200 tokens/s, 0.45 of the rate of products");
}

}  // namespace
}  // namespace tessera::testing
