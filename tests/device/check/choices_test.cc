// That choices are compared, and that one which is wrong is named.

#include "tests/device/check/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/files.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "gmock/gmock.h"
#include "models/testing/profiling_backend.h"
#include "tests/device/check/training_checks.h"

namespace tessera::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
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

// Counts attention's backward passes.
class CountedAttention final : public ProfilingBackend {
 public:
  CountedAttention(std::unique_ptr<Backend> counted, int64_t* count)
      : ProfilingBackend(*counted), counted_(std::move(counted)), count_(count) {}

 private:
  using ProfilingBackend::Run;
  void Run(const ops::AttentionBackward& op) override {
    ++*count_;
    ProfilingBackend::Run(op);
  }

  const std::unique_ptr<Backend> counted_;
  int64_t* const count_;
};

// A small model whose steps have one micro-batch.
TimedModel ShortModel() {
  TimedModel model = SmallModel();
  model.accumulation = 1;
  model.steps = 1;
  return model;
}

class ChoicesTest : public ::testing::Test {
 protected:
  CheckOutcome Compare(const std::vector<Choice>& choices) {
    return CompareChoices(*device_, choices, ShortModel(), folder_.path(),
                          CheckHere(*device_, {.operations = {.only = "Attention [2,5,3,3,7]"},
                                               .training = SmallTraining(),
                                               .folder = folder_.path()}));
  }
  CheckOutcome CompareWithWrongSums(double factor, double growth) {
    const auto right = device_->make_backend;
    device_->make_backend =
        [=](const cuda::ProductChoices& choices) -> absl::StatusOr<std::unique_ptr<Backend>> {
      absl::StatusOr<std::unique_ptr<Backend>> backend = right(choices);
      if (!choices.sums || !backend.ok()) return backend;
      return std::make_unique<WrongSums>(*std::move(backend), factor, growth);
    };
    return Compare({{"products sum", {.sums = true}}, {"another", {}}});
  }

  const TestFolder folder_;
  const std::unique_ptr<SimulatedDevice> device_ = OpenSimulatedDevice(0, {.seed = 3});
};

TEST_F(ChoicesTest, EachIsMeasured) {
  std::vector<Choice> choices = ChoicesOf(*device_);
  std::vector<std::string> names;
  for (const Choice& choice : choices) names.push_back(choice.name);
  ASSERT_THAT(names,
              ElementsAre("as is", "attention_gradients_by_warpgroups=true",
                          "attention_by_warpgroups=true", "sums=true", "attention_at_once=true",
                          "gelu_gradient=false", "gelu_gradient=false,sums=true"));
  for (const Choice& choice : choices) {
    ASSERT_OK_AND_ASSIGN(const Choice parsed, ParseChoice(*device_, choice.name));
    for (const auto& [name, member] : cuda::kWays) {
      EXPECT_EQ(parsed.products.*member, choice.products.*member) << choice.name;
    }
  }
  choices.erase(choices.begin() + 5);
  choices.erase(choices.begin() + 3);  // the last one has both
  // By backend. The first backends are those that are checked, one for each choice.
  std::list<int64_t> attention;
  device_->make_backend = [&attention, make = device_->make_backend](
                              const auto& choices) -> absl::StatusOr<std::unique_ptr<Backend>> {
    absl::StatusOr<std::unique_ptr<Backend>> backend = make(choices);
    if (!backend.ok()) return backend;
    attention.push_back(0);
    return std::make_unique<CountedAttention>(*std::move(backend), &attention.back());
  };
  const CheckOutcome outcome = Compare(choices);
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail, StartsWith("a tiny GPT-2, tokens/s: as is: "));
  EXPECT_THAT(outcome.detail, HasSubstr(", gelu_gradient=false,sums=true: "));
  EXPECT_EQ(outcome.figures.size(), choices.size());
  for (const Choice& choice : choices) {
    EXPECT_GT(outcome.figures.at("tokens_per_second, " + choice.name), 0);
  }
  EXPECT_GT(device_->cublaslt->sums_products(), 0);
  // Attention is checked once for each of its own ways, not for each way of products.
  attention.resize(choices.size());
  const int64_t all = attention.front(), trained = attention.back();
  EXPECT_GT(all, trained);
  EXPECT_THAT(attention, ElementsAre(all, all, all, all, trained));
}

TEST_F(ChoicesTest, AnUnknownWayIsRefused) {
  for (const std::string name : {"", "sums", "sums=true,sums=true", "as is,sums=true"}) {
    const absl::Status status = ParseChoice(*device_, name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("sums attention_at_once")) << name;
  }
  device_->multiplies_by_warpgroups = false;
  EXPECT_EQ(WaysOf(*device_).size(), 3);
  device_->shared_bytes_of_block = 99 << 10;
  EXPECT_EQ(WaysOf(*device_).size(), 2);
  EXPECT_EQ(ChoicesOf(*device_).size(), 4);
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseChoice(*device_, "attention_at_once=true").status()));
}

TEST_F(ChoicesTest, WrongGradientsAreNamed) {
  const CheckOutcome outcome = CompareWithWrongSums(1.5, 0);
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, StartsWith("products sum: differ from the CPU's by too much"));
  // The other choice is measured nevertheless.
  EXPECT_THAT(outcome.detail, HasSubstr("\na tiny GPT-2, tokens/s: another: "));
  EXPECT_GT(outcome.figures.at("tokens_per_second, another"), 0);
  EXPECT_EQ(outcome.figures.size(), 1);
}

TEST_F(ChoicesTest, WithoutTimeForTheirChecksTheyAreLeftOut) {
  const CheckOutcome outcome =
      CompareChoices(*device_, {{"as is", {}}}, ShortModel(), folder_.path(),
                     [](const Choice&) { return absl::DeadlineExceededError("there is no time"); });
  EXPECT_EQ(outcome.kind, CheckOutcome::kLeftOut);
  EXPECT_THAT(outcome.detail, StartsWith("as is: left out, there is no time\n"));
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
  static constexpr char kDeviceName[] = "simulated GPU; fake cuBLASLt";
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

  void OnMakingBackends(const std::function<void(const cuda::ProductChoices&)>& call) {
    device_->make_backend = [call, make = device_->make_backend](const auto& choices) {
      call(choices);
      return make(choices);
    };
  }

  const TestFolder folder_;
  double advantage_ = 0.5;  // of the fastest
  const std::unique_ptr<SimulatedDevice> device_ = OpenSimulatedDevice(
      0, {.seed = 3}, DeviceNumerics::kFast,
      {.proposals = 3, .seconds = [this](int proposal, int64_t c_bytes) {
         return proposal == (c_bytes < kSmall ? 1 : 2) ? 1e-3 * (1 - advantage_) : 1e-3;
       }});
};

TEST_F(ProposalsTest, AreMeasuredProductByProductAndWrittenToTheUsersTable) {
  const CheckOutcome outcome = MeasureProducts(*device_, ShortModel(), folder_.path());
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail, StartsWith("a tiny GPT-2: of "));
  EXPECT_THAT(outcome.detail, HasSubstr(", by proposal 1: "));
  EXPECT_THAT(outcome.detail, HasSubstr(", by proposal 2: "));
  const double all = outcome.figures.at("products_ms");
  EXPECT_GT(all, 10);
  EXPECT_NEAR(outcome.figures.at("saved_ms"), all / 2, 1e-6);
  EXPECT_THAT(outcome.detail,
              HasSubstr("for train --product-table=" + folder_.File("tessera/products")));
  const cuda::ProductTable table = Table();
  ASSERT_EQ(table.size(), 1);
  const cuda::ProductProposals& proposals = table.at(kDeviceName).proposals;
  // The up projection, [2 x 16,128] in bf16, and the gradient of its input, [2 x 16,32].
  int larger = 0;
  for (const auto& [name, proposal] : proposals) {
    ASSERT_TRUE(proposal == 1 || proposal == 2) << name;
    larger += proposal == 2 ? 1 : 0;
  }
  EXPECT_GT(larger, 0);
  EXPECT_LT(larger, std::ssize(proposals));
  EXPECT_GT(proposals.size(), 5);
  // With the table, products take the least time.
  device_->choices.measured = std::make_shared<const cuda::ProductProposals>(proposals);
  device_->backend = OrFail(device_->make_backend(device_->choices));
  TimedModel model = ShortModel();
  model.saves = false;
  const double before = device_->cublaslt->seconds();
  const int64_t products_before = device_->cublaslt->products();
  ASSERT_OK(MeasureTraining(model, device_.get(), folder_.path()).status());
  const auto products = static_cast<double>(device_->cublaslt->products() - products_before);
  EXPECT_NEAR(device_->cublaslt->seconds() - before, 0.5e-3 * products, 1e-9);
}

TEST_F(ProposalsTest, AreNotMeasuredWhereNoTableCanBeWritten) {
  const std::string path = OrFail(cuda::ProductTablePath());
  ASSERT_OK(cuda::AddProposals(path, "H200", {}));
  ASSERT_OK(ReplaceFile(path, "a diary"));
  const CheckOutcome outcome = MeasureProducts(*device_, ShortModel(), folder_.path());
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, StartsWith(path + ": it is no table of products"));
  EXPECT_EQ(MeasureWays(*device_, WaysOf(*device_), ShortModel(), folder_.path(), nullptr).detail,
            outcome.detail);
  EXPECT_EQ(device_->cublaslt->products(), 0);
}

TEST_F(ProposalsTest, AreShownIfTheTableCannotBeWrittenAtTheEnd) {
  const std::string path = OrFail(cuda::ProductTablePath());
  OnMakingBackends([&](const cuda::ProductChoices&) { ASSERT_OK(ReplaceFile(path, "a diary")); });
  const CheckOutcome outcome = MeasureProducts(*device_, ShortModel(), folder_.path());
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, HasSubstr(", by proposal 1: "));
  EXPECT_THAT(outcome.detail, HasSubstr("\nnot written: " + path + ": it is no table"));
}

TEST_F(ProposalsTest, OfNoUseAreNotWritten) {
  // No product has a proposal 3: what it takes instead is not measured, and it is the last.
  int last = 0;
  OnMakingBackends([&](const auto& made) { advantage_ = (last = made.proposal) < 3 ? 0.01 : 0.5; });
  ASSERT_EQ(MeasureProducts(*device_, ShortModel(), folder_.path()).kind, CheckOutcome::kPassed);
  EXPECT_EQ(last, 3);
  EXPECT_EQ(Table(), (cuda::ProductTable{{kDeviceName, {}}}));
}

TEST_F(ProposalsTest, ForWhichNoTimeIsLeftStayInTheTable) {
  std::optional<Deadline> deadline(std::in_place);
  ASSERT_EQ(MeasureProducts(*device_, ShortModel(), folder_.path()).kind, CheckOutcome::kPassed);
  const cuda::ProductTable before = Table();
  advantage_ = 0.01;
  OnMakingBackends([&](const auto& choices) {
    if (choices.proposal == 1) deadline.emplace(0);
  });
  for (const auto kind : {CheckOutcome::kPassed, CheckOutcome::kLeftOut}) {
    EXPECT_EQ(MeasureProducts(*device_, ShortModel(), folder_.path(), *deadline).kind, kind);
    EXPECT_EQ(Table(), before);
  }
}

// The time of a step follows from the ways in which the device computes. The first training is
// faster, as that of a cool GPU is.
class WaysTest : public ProposalsTest {
 protected:
  WaysTest() {
    device_->make_backend =
        [this, make = device_->make_backend](
            const cuda::ProductChoices& choices) -> absl::StatusOr<std::unique_ptr<Backend>> {
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, make(choices));
      if (choices.sums) {
        backend = std::make_unique<WrongSums>(std::move(backend), factor_, 0);
        factor_ += growth_;
      }
      made_[backend.get()] = choices;
      return backend;
    };
    model_.now = [this] {
      slowness_ *= 1 + slower_;
      return now_ += slowness_ * (made_.empty() ? 0.9 : SecondsOf(made_[device_->backend.get()]));
    };
    EXPECT_OK(cuda::SetWays(OrFail(cuda::ProductTablePath()), kDeviceName,
                            {before_.begin(), before_.end()}));
  }
  static double SecondsOf(const cuda::ProductChoices& choices) {
    return (choices.attention_gradients_by_warpgroups ? 0.9 : 1) *
           (choices.attention_by_warpgroups ? 0.996 : 1) * (choices.sums ? 0.95 : 1) *
           (choices.attention_at_once ? 0.5 : 1) * (choices.gelu_gradient ? 1 : 0.99);
  }
  // Measures all ways, or those of these names.
  CheckOutcome Measure(const ChoiceCheck& check, const Deadline& deadline = {},
                       const std::set<std::string>& names = {}, double reserved_seconds = 0) {
    std::vector<cuda::Way> ways = WaysOf(*device_);
    std::erase_if(
        ways, [&](const cuda::Way& way) { return !names.empty() && !names.contains(way.name); });
    return MeasureWays(*device_, ways, model_, folder_.path(), check, deadline, reserved_seconds);
  }
  cuda::Ways WaysInTable() const { return Table().at(kDeviceName).ways; }

  const cuda::Ways before_ = {{"attention_at_once", true}, {"attention_by_warpgroups", true}};
  TimedModel model_ = ShortModel();
  double now_ = 0;
  double slowness_ = 1, slower_ = 0;  // of a step, and what each call adds to it
  double factor_ = 1, growth_ = 0;    // of sums, and what each backend adds to it
  std::map<const Backend*, cuda::ProductChoices> made_;
};

TEST_F(WaysTest, TheFastestThatAreRightAreChosen) {
  std::vector<std::string> checked;
  const CheckOutcome outcome = Measure([&](const Choice& choice) -> absl::Status {
    checked.push_back(choice.name);
    EXPECT_EQ(choice.products.attention_gradients_by_warpgroups, true);
    if (choice.products.gelu_gradient) return absl::OkStatus();
    return absl::InternalError("the gradients are wrong");
  });
  const std::string first = "attention_gradients_by_warpgroups=true";
  EXPECT_THAT(checked, ElementsAre(first, "attention_by_warpgroups=true," + first,
                                   first + ",sums=true", first + ",gelu_gradient=false,sums=true"));
  // One changes nothing, one is wrong, and one gains less than half a percent.
  EXPECT_THAT(outcome.detail,
              HasSubstr("\nattention_at_once=true," + first +
                        ",sums=true: left out, attention's gradients are by warpgroups\n"));
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, HasSubstr(checked[3] + ": not chosen: the gradients are wrong"));
  EXPECT_THAT(outcome.detail, HasSubstr(checked[1] + ": 36 tokens/s, without "
                                                     "attention_by_warpgroups 36: not chosen\n"));
  const cuda::Ways chosen = {{"attention_gradients_by_warpgroups", true}, {"sums", true}};
  EXPECT_EQ(Table(), (cuda::ProductTable{{kDeviceName, {chosen, {}}}}));
  // Products are measured in the chosen ways.
  ASSERT_EQ(MeasureProducts(*device_, ShortModel(), folder_.path()).kind, CheckOutcome::kPassed);
  const cuda::MeasuredProducts measured = Table().at(kDeviceName);
  EXPECT_EQ(measured.ways, chosen);
  EXPECT_TRUE(std::ranges::any_of(measured.proposals, [](const auto& product) {
    return product.first.find("with the sums") != std::string::npos;
  }));
}

absl::Status Right(const Choice&) { return absl::OkStatus(); }

TEST_F(WaysTest, ThatDoNotFitIntoTheDeadlineAreLeftOutByName) {
  std::optional<Deadline> deadline(std::in_place);
  const ChoiceCheck takes_all = [&](const Choice&) { return (deadline.emplace(0), Right({})); };
  for (const auto& outcome : {Measure(Right, Deadline(0)), Measure(Right, Deadline(1e6), {}, 1e6),
                              Measure(takes_all, *deadline)}) {
    EXPECT_EQ(outcome.kind, CheckOutcome::kLeftOut);
    for (const cuda::Way& way : cuda::kWays) {
      EXPECT_THAT(outcome.detail, ContainsRegex("\n" + std::string(way.name) +
                                                "=(true|false): left out, does not fit into"));
    }
    EXPECT_EQ(WaysInTable(), before_);
  }
}

// What the table had before was not trained beside those that are chosen.
TEST_F(WaysTest, ThatAreLeftOutStayInTheTableOnlyIfNoneIsChosen) {
  const ChoiceCheck check = [](const Choice& choice) -> absl::Status {
    if (!choice.products.attention_at_once) return absl::OkStatus();
    return absl::DeadlineExceededError("there is no time");
  };
  const CheckOutcome outcome =
      Measure(check, {}, {"attention_at_once", "attention_by_warpgroups", "sums"});
  EXPECT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  EXPECT_THAT(outcome.detail, HasSubstr("sums=true: left out, there is no time\n"));
  EXPECT_EQ(WaysInTable(), (cuda::Ways{{"sums", true}}));
}

// A way whose checks have passed may fail at full size.
TEST_F(WaysTest, BehindAFailureOfTheDeviceAreLeftOutByName) {
  OnMakingBackends([&](const auto& choices) {
    if (choices.sums) device_->runtime->Fail(device_->compute->handle());
  });
  const CheckOutcome outcome = Measure(Right);
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, ContainsRegex("sums=true: not chosen: .*illegal memory access"));
  EXPECT_THAT(outcome.detail, HasSubstr(",gelu_gradient=false: left out, the device has failed\n"));
  EXPECT_EQ(WaysInTable(), (cuda::Ways{{"attention_gradients_by_warpgroups", true}}));
  EXPECT_THAT(CompareChoices(*device_, {{"as is", {}}}, model_, folder_.path(), Right).detail,
              StartsWith("as is: left out, the device has failed"));
}

TEST_F(WaysTest, WithOtherLossesTheNextTimeAreNotChosen) {
  growth_ = 1e-3;
  const CheckOutcome outcome = Measure(Right, {}, {"attention_at_once", "sums"});
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, HasSubstr("\nsums=true: not chosen: the losses or norms of a tiny"));
  // The next one is not to blame.
  EXPECT_EQ(WaysInTable(), (cuda::Ways{{"attention_at_once", true}})) << outcome.detail;
}

TEST_F(WaysTest, AreNotChosenBesideOthersWhoseLossesChange) {
  device_->choices.sums = true;
  device_->backend = std::make_unique<WrongSums>(std::move(device_->backend), 1, 1e-3);
  const CheckOutcome outcome = Measure(Right);
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_THAT(outcome.detail, HasSubstr("\nattention_gradients_by_warpgroups=true: without it: the "
                                        "losses or norms of a tiny GPT-2 are not those"));
  EXPECT_THAT(outcome.detail, Not(HasSubstr("chosen")));
  EXPECT_EQ(WaysInTable(), before_);
}

TEST_F(WaysTest, ThatOnlyTheClocksMakeFasterAreNotChosen) {
  // 3.5 percent in each training of seven steps, in the order that favours either side.
  for (const double slower : {0.0025, -0.0025}) {
    slower_ = slower;
    const CheckOutcome outcome = Measure(Right, {}, {"attention_by_warpgroups"});
    EXPECT_EQ(outcome.kind, CheckOutcome::kPassed);
    EXPECT_THAT(outcome.detail, HasSubstr("without attention_by_warpgroups"));
    EXPECT_EQ(WaysInTable(), (cuda::Ways{{"attention_at_once", true}})) << outcome.detail;
  }
}

absl::StatusOr<TimedModel> ModelOf(const TestFolder& folder, const std::string& training,
                                   const std::string& rest = "") {
  const std::string path = folder.File("run.textproto");
  EXPECT_OK(ReplaceFile(
      path,
      "model { size: \"llama3-tiny\" num_layers: 1 vocab_size: 50 } data { train_data_path: "
      "\"nowhere_*.bin\" } training { device: CUDA micro_batch_size: 2 global_batch_size: 8 "
      "seq_length: 16 train_iters: 9 " +
          training + " } " + rest));
  return ModelOfConfig(path);
}

TEST_F(ProposalsTest, AreThoseOfTheModelOfAConfig) {
  ASSERT_OK_AND_ASSIGN(const TimedModel model, ModelOf(folder_, "bf16: true"));
  EXPECT_TRUE(model.bf16);
  EXPECT_EQ(model.micro_batch, 2);
  const CheckOutcome outcome = MeasureProducts(*device_, model, folder_.path());
  ASSERT_EQ(outcome.kind, CheckOutcome::kPassed) << outcome.detail;
  const cuda::ProductProposals fastest = Table().at(kDeviceName).proposals;
  EXPECT_GT(fastest.size(), 5);
  for (const auto& [name, proposal] : fastest) EXPECT_THAT(name, Not(HasSubstr("GELU")));
  EXPECT_FALSE(model.recompute_activations);
  ASSERT_OK_AND_ASSIGN(const TimedModel recomputes,
                       ModelOf(folder_, "recompute_activations: true"));
  EXPECT_TRUE(recomputes.recompute_activations);
}

TEST(ModelOfConfigTest, WhoseProductsCannotBeMeasuredIsRefused) {
  const TestFolder folder;
  const auto error = [&](const std::string& training, const std::string& rest = "") {
    const absl::Status status = ModelOf(folder, training, rest).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("", "parallel { topology: \"tp2\" }"),
              HasSubstr("tensor_model_parallel_size=2"));
  EXPECT_THAT(error("", "parallel { numerics: EXACT }"),
              HasSubstr("numerics=exact: its products have one algorithm"));
  EXPECT_THAT(error("exact_products: true"),
              HasSubstr("exact_products: its products have one algorithm"));
}

}  // namespace
}  // namespace tessera::testing
