// That choices are compared, and that one which is wrong is named.

#include "tests/device/check/choices.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/products.h"
#include "gmock/gmock.h"
#include "models/testing/profiling_backend.h"
#include "tests/device/check/check.h"
#include "tests/device/check/figures.h"
#include "tests/device/check/training_checks.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Multiplies sums by `factor`, and by a little more at each call.
class WrongSums final : public ProfilingBackend {
 public:
  WrongSums(std::unique_ptr<Backend> right, double factor, double growth)
      : ProfilingBackend(*right), right_(std::move(right)), factor_(factor), growth_(growth) {}

 private:
  using ProfilingBackend::Run;
  void Run(const ops::MatMulSums& op) override {
    ProfilingBackend::Run(op);
    Scale({op.sums, factor_});
    factor_ += growth_;
  }

  const std::unique_ptr<Backend> right_;
  double factor_;
  const double growth_;
};

class ChoicesTest : public ::testing::Test {
 protected:
  CheckOutcome Compare(const std::vector<Choice>& choices) {
    return CompareChoices(*device_, choices, SmallModel(),
                          {.training = SmallTraining(), .folder = folder_.path()});
  }
  CheckOutcome CompareWithWrongSums(double factor, double growth) {
    const auto right = device_->make_backend;
    device_->make_backend =
        [=](const cuda::ProductChoices& choices) -> absl::StatusOr<std::unique_ptr<Backend>> {
      absl::StatusOr<std::unique_ptr<Backend>> backend = right(choices);
      if (!choices.sums || !backend.ok()) return backend;
      return std::make_unique<WrongSums>(*std::move(backend), factor, growth);
    };
    return Compare({{"products sum", {.sums = true}}});
  }

  const TestFolder folder_;
  const std::unique_ptr<SimulatedDevice> device_ = OpenSimulatedDevice(0, {.seed = 3});
};

TEST_F(ChoicesTest, EachIsMeasured) {
  const CheckOutcome outcome = Compare(ChoicesOf(*device_));
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail, StartsWith("a tiny GPT-2, tokens/s: as is: "));
  EXPECT_THAT(outcome.detail, HasSubstr(", products sum: "));
  EXPECT_THAT(outcome.detail, HasSubstr(", GELU's gradient in a pass that sums: "));
  EXPECT_EQ(outcome.figures.size(), 4);
  EXPECT_GT(outcome.figures.at("tokens_per_second, as is"), 0);
  EXPECT_GT(outcome.figures.at("tokens_per_second, products sum"), 0);
  EXPECT_GT(device_->cublaslt->sums_products(), 0);
}

TEST_F(ChoicesTest, WrongGradientsAreNamed) {
  const CheckOutcome outcome = CompareWithWrongSums(1.5, 0);
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, StartsWith("products sum: differ from the CPU's by too much"));
}

// As small as a rounding.
TEST_F(ChoicesTest, ResultsThatChangeFromRunToRunAreNamed) {
  const CheckOutcome outcome = CompareWithWrongSums(1, 1e-6);
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, StartsWith("products sum: GPT-2 in "));
  EXPECT_THAT(outcome.detail, HasSubstr("two runs from the same start differ"));
}

TEST_F(ChoicesTest, ProposalsAreMeasured) {
  const CheckOutcome outcome = CompareProposals(*device_, SmallModel(), folder_.path());
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail, StartsWith("a tiny GPT-2: of "));
  EXPECT_GT(outcome.figures.at("products_ms"), 0);
  EXPECT_GE(outcome.figures.at("saved_ms"), 0);
  EXPECT_LT(outcome.figures.at("saved_ms"), outcome.figures.at("products_ms"));
}

}  // namespace
}  // namespace tessera::testing
