// Sessions on simulated GPUs that use a table of products.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/device/testing/simulated_devices.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"
#include "tests/device/simulated_session.h"
#include "tests/support/session_run.h"
#include "trainer/app/session.h"
#include "trainer/config/config.pb.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ExpectNear;
using ::testing::HasSubstr;
using testing::kSavedStep;
using testing::Losses;
using ::testing::Not;
using testing::SimulatedSessionTest;

absl::Status Train(Session& session) { return testing::TrainSession(session); }

// Expects a session that computes as one without a table, which it does if nothing was chosen.
absl::Status UsesNoTable(Session& session) {
  const cuda::ProductChoices &choices = session.device->gpu()->choices, without;
  EXPECT_EQ(choices.measured, nullptr);
  for (const cuda::Way& way : cuda::kWays) {
    EXPECT_EQ(choices.*way.member, without.*way.member) << way.name;
  }
  return absl::OkStatus();
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

// The ways of a table are a cause of bits, with or without products.
TEST_F(ProductTableSessionTest, WaysAreUsedAndRecorded) {
  const std::string table = root_ / "ways";
  ASSERT_OK(cuda::SetWays(table, kDevice, {{"attention_at_once", true}, {"gelu_gradient", false}}));
  TrainConfig without = Config("without", "dp2", true), with = WithTable("with", "dp2", table);
  for (TrainConfig* config : {&without, &with}) config->mutable_training()->set_bf16(true);
  ASSERT_OK(Run(without, Train));
  const auto train = [](Session& session) -> absl::Status {
    const cuda::ProductChoices& choices = session.device->gpu()->choices;
    EXPECT_TRUE(choices.attention_at_once);
    EXPECT_FALSE(choices.gelu_gradient);
    EXPECT_FALSE(choices.sums);
    return Train(session);
  };
  ASSERT_OK_AND_ASSIGN(std::string notes, Run(with, train));
  EXPECT_THAT(notes, HasSubstr("fake cuBLASLt with product table " + DigestOf(table)));
  EXPECT_NE(LossesOf("with"), LossesOf("without"));
  without.mutable_output()->set_run_dir(root_ / "none");
  without.mutable_checkpoint()->set_save(Checkpoints("none"));
  ASSERT_OK_AND_ASSIGN(notes, Run(After("with", kSavedStep, without), Train));
  EXPECT_THAT(notes, HasSubstr(absl::StrCat("matrix products by fake cuBLASLt with product table ",
                                            DigestOf(table), ", here fake cuBLASLt)")));
}

TEST_F(ProductTableSessionTest, WaysThatAGpuDoesNotHaveAreNotUsed) {
  for (const auto& [way, reason] : std::map<std::string, std::string>{
           {"attention_by_warpgroups", "attention by warpgroups needs a GPU of compute capability"},
           {"attention_at_once", "attention_at_once needs 115216 bytes of shared memory"}}) {
    const std::string table = root_ / way;
    ASSERT_OK(cuda::SetWays(table, kDevice, {{way, true}}));
    SimulatedDevices devices(
        {.count = 2, .shared_bytes_of_block = 99 << 10, .multiplies_by_warpgroups = false});
    ASSERT_OK_AND_ASSIGN(const std::string notes,
                         Run(WithTable(way + "_run", "dp2", table), devices, UsesNoTable));
    EXPECT_THAT(notes, HasSubstr(absl::StrCat("product_table=", table,
                                              " is not used: the GPU of rank 0 cannot: ", reason)));
  }
}

TEST_F(ProductTableSessionTest, IsIgnoredIfItIsDamagedOrOfOtherDevices) {
  const std::string damaged = WriteTable(kDevice, "");
  ASSERT_OK(ReplaceFile(damaged, OrFail(ReadWholeFile(damaged)).substr(1)));
  int run = 0;
  for (const auto& [table, reason] : std::map<std::string, std::string>{
           {damaged, "it is no table of products of version 1"},
           {WriteTable("simulated GPU; fake cuBLASLt 2", ""), "it has nothing for "},
           {WriteTable("another GPU; fake cuBLASLt", ""), "it has nothing for "}}) {
    const std::string name = absl::StrCat("run", ++run);
    ASSERT_OK_AND_ASSIGN(const std::string notes, Run(WithTable(name, "dp2", table), UsesNoTable));
    const std::string sentence = absl::StrCat("product_table=", table, " is not used: ", reason);
    ASSERT_THAT(notes, HasSubstr(sentence));
    EXPECT_THAT(notes, Not(HasSubstr("with product table")));
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
  const std::string of_one = WriteTable(kDevice, ""), of_both = root_ / "both",
                    of_ways = root_ / "ways";
  fs::copy_file(of_one, of_both);
  ASSERT_OK(cuda::AddProposals(of_both, "another GPU; fake cuBLASLt", {{"a product", 1}}));
  for (const std::string& device :
       {std::string(kDevice), std::string("another GPU; fake cuBLASLt")}) {
    ASSERT_OK(cuda::AddProposals(of_ways, device, {{"a product", 1}}));
  }
  ASSERT_OK(cuda::SetWays(of_ways, kDevice, {{"sums", true}}));
  for (const auto& [table, reason] : std::map<std::string, std::string>{
           {of_one, "it has nothing for another GPU; fake cuBLASLt, the GPU of rank 1"},
           {of_both, "it has other products for the GPU of rank 1 than for the GPU of rank 0"},
           {of_ways, "it has other products for the GPU of rank 1 than for the GPU of rank 0"}}) {
    const std::string name = fs::path(table).filename().string() + "_run";
    SimulatedDevices devices({.count = 2, .type = TypeOf});
    ASSERT_OK_AND_ASSIGN(const std::string notes,
                         Run(WithTable(name, "dp2", table), devices, UsesNoTable));
    EXPECT_THAT(notes, HasSubstr(absl::StrCat("product_table=", table, " is not used: ", reason)));
    EXPECT_THAT(notes, Not(HasSubstr("with product table")));
  }
}

}  // namespace
}  // namespace tessera
