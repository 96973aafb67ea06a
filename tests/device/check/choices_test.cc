// That choices are compared, and that one which is wrong is named.

#include "tests/device/check/choices.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files.h"
#include "base/replace_file.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "gmock/gmock.h"
#include "models/testing/profiling_backend.h"
#include "tests/device/check/check.h"
#include "tests/device/check/figures.h"
#include "tests/device/check/training_checks.h"

namespace tessera::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
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
  EXPECT_GT(outcome.figures.at("tokens_per_second, attention's gradients at once"), 0);
  EXPECT_EQ(outcome.figures.size(), 5);
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

// Products of small results are fastest by proposal 1 of three, the others by the last.
class ProposalsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSmall = 4096;
  ProposalsTest() {
    device_->type = "simulated GPU";
    device_->products = "fake cuBLASLt";
    device_->choices.timer.now = [this] { return device_->cublaslt->seconds(); };
    ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  ~ProposalsTest() override { ::unsetenv("XDG_CACHE_HOME"); }

  cuda::ProductTable Table() const {
    return OrFail(cuda::ParseProductTable(OrFail(ReadWholeFile(OrFail(cuda::ProductTablePath())))));
  }

  const TestFolder folder_;
  double advantage_ = 0.5;  // of the fastest
  const std::unique_ptr<SimulatedDevice> device_ = OpenSimulatedDevice(
      0, {.seed = 3}, DeviceNumerics::kFast,
      {.proposals = 3, .seconds = [this](int proposal, int64_t c_bytes) {
         return proposal == (c_bytes < kSmall ? 1 : 2) ? 1e-3 * (1 - advantage_) : 1e-3;
       }});
};

TEST_F(ProposalsTest, AreMeasuredProductByProduct) {
  cuda::ProductProposals fastest;
  const CheckOutcome outcome = CompareProposals(*device_, SmallModel(), folder_.path(), &fastest);
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail, StartsWith("a tiny GPT-2: of "));
  EXPECT_THAT(outcome.detail, HasSubstr(", by proposal 1: "));
  EXPECT_THAT(outcome.detail, HasSubstr(", by proposal 2: "));
  const double all = outcome.figures.at("products_ms");
  EXPECT_GT(all, 10);
  EXPECT_NEAR(outcome.figures.at("saved_ms"), all / 2, 1e-6);
  // The up projection, [2 x 16,128] in bf16, and the gradient of its input, [2 x 16,32].
  int larger = 0;
  for (const auto& [name, proposal] : fastest) {
    ASSERT_THAT(proposal, AnyOf(1, 2)) << name;
    larger += proposal == 2 ? 1 : 0;
  }
  EXPECT_GT(larger, 0);
  EXPECT_LT(larger, std::ssize(fastest));
}

TEST_F(ProposalsTest, AreWrittenToTheUsersTable) {
  const CheckOutcome outcome = MeasureProducts(*device_, SmallModel(), folder_.path());
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail,
              HasSubstr("for train --product-table=" + folder_.File("tessera/products")));
  const cuda::ProductTable table = Table();
  ASSERT_EQ(table.size(), 1);
  EXPECT_EQ(table.begin()->first, "simulated GPU; fake cuBLASLt");
  EXPECT_GT(table.begin()->second.size(), 5);
  // With the table, products take the least time.
  device_->choices.measured = std::make_shared<const cuda::ProductProposals>(table.begin()->second);
  device_->backend = OrFail(device_->make_backend(device_->choices));
  TimedModel model = SmallModel();
  model.saves = false;
  const double before = device_->cublaslt->seconds();
  const int64_t products_before = device_->cublaslt->products();
  ASSERT_OK(MeasureTraining(model, device_.get(), folder_.path()).status());
  const auto products = static_cast<double>(device_->cublaslt->products() - products_before);
  EXPECT_NEAR(device_->cublaslt->seconds() - before, 0.5e-3 * products, 1e-9);
}

TEST_F(ProposalsTest, OfNoUseAreNotWritten) {
  advantage_ = 0.01;
  ASSERT_EQ(MeasureProducts(*device_, SmallModel(), folder_.path()).kind, CheckOutcome::kPassed);
  EXPECT_EQ(Table(), (cuda::ProductTable{{"simulated GPU; fake cuBLASLt", {}}}));
}

TEST_F(ProposalsTest, AreThoseOfTheModelOfAConfig) {
  const std::string path = folder_.File("run.textproto");
  const std::string config =
      "model { size: \"llama3-tiny\" num_layers: 1 vocab_size: 50 } training { device: CUDA "
      "micro_batch_size: 2 global_batch_size: 8 seq_length: 16 train_iters: 9 bf16: true } "
      "data { train_data_path: \"nowhere_*.bin\" } ";
  ASSERT_OK(ReplaceFile(path, config));
  ASSERT_OK_AND_ASSIGN(const TimedModel model, ModelOfConfig(path));
  EXPECT_TRUE(model.bf16);
  EXPECT_EQ(model.micro_batch, 2);
  cuda::ProductProposals fastest;
  const CheckOutcome outcome = CompareProposals(*device_, model, folder_.path(), &fastest);
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_GT(fastest.size(), 5);
  for (const auto& [name, proposal] : fastest) EXPECT_THAT(name, Not(HasSubstr("GELU")));
  ASSERT_OK(ReplaceFile(path, config + "parallel { topology: \"tp2\" }"));
  EXPECT_THAT(ModelOfConfig(path).status().message(), HasSubstr("tensor_model_parallel_size=2"));
}

}  // namespace
}  // namespace tessera::testing
