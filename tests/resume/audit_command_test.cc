// Steps of a run that are executed again, and the traces of what was changed afterwards.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kExact = {"--numerics=exact", "--exact-tp-shards=2"};

class AuditCommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    MustTrain("run", 6, kExact);
  }
  Result Audit(const Words& words) const {
    return Run(Joined({Runfile("trainer/tools/audit"), Runfile("trainer/configs/launch.py"),
                       Runfile("trainer/app/train"), Runfile("trainer/data/prepare_data"),
                       RunDir("run").string()},
                      words));
  }
  void ExpectNotProven(const Words& words, const std::string& sentence) const {
    const Result result = Audit(words);
    EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("not proven: " + sentence));
  }
  // Replaces the first occurrence in a file of the run.
  void Edit(const std::string& file, const std::string& before, const std::string& after) const {
    std::string text = ReadFile(RunDir("run") / file);
    const size_t place = text.find(before);
    ASSERT_NE(place, std::string::npos) << before;
    std::ofstream(RunDir("run") / file, std::ios::binary)
        << text.replace(place, before.size(), after);
  }
  // Saves a checkpoint once more with one bit of a weight flipped: its checksums and digests fit.
  void FlipWeight(int64_t step) const {
    const auto folder = ckpt::CheckpointFolder::Open(Checkpoints("run").string());
    ASSERT_TRUE(folder.ok()) << folder.status();
    ckpt::Manifest manifest;
    ckpt::StateDict state;
    std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
    std::byte* weight = nullptr;
    {
      const auto checkpoint = folder->At(step);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      manifest = checkpoint->manifest();
      for (const ckpt::LogicalTensor& saved : manifest.tensors()) {
        ckpt::ShardedTensor tensor{.name = saved.name(),
                                   .role = ckpt::FromProto(saved.role()),
                                   .dtype = ckpt::FromProto(saved.dtype()),
                                   .global_shape = ckpt::GlobalShape(saved),
                                   .alias_of = saved.alias_of()};
        ASSERT_EQ(tensor.dtype, DType::kF32);
        if (tensor.alias_of.empty()) {
          memory.push_back(std::make_unique<std::vector<std::byte>>(
              sizeof(float) * static_cast<size_t>(ElementCount(tensor.global_shape))));
          std::byte* const data = memory.back()->data();
          if (tensor.role == ckpt::TensorRole::kWeight) weight = data;
          tensor.shards = {ckpt::Shard::Untyped(data, tensor.dtype, WholeBox(tensor.global_shape))};
        }
        state.tensors.push_back(std::move(tensor));
      }
      const auto loaded = checkpoint->Load(state);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
    }
    ASSERT_NE(weight, nullptr);
    weight[2] ^= std::byte{0x40};
    manifest.clear_tensors();
    manifest.clear_files();
    fs::remove_all(StepDir("run", step));
    const auto saved = folder->Save(step, state, {.metadata = ckpt::ToMetadata(manifest)});
    ASSERT_TRUE(saved.ok()) << saved.status();
  }
};

TEST_F(AuditCommandTest, AnyTopologyProvesAnUndisturbedRun) {
  Result result = Audit({"--steps=4-6", "--data-parallel-size=2", "--zero-stage=1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("the lines of 6 steps are whole, in one chain from step 1 on"));
  EXPECT_THAT(result.out,
              HasSubstr("proven: steps 4 to 6, executed again from the checkpoint of step 3, have "
                        "the bits of the ledger, and so have 3 saved states; the head of the "
                        "chain is " +
                        Records("run").back()["ledger"].get<std::string>()));
  result = Audit({"--random=1", "--seed=3", "--tensor-model-parallel-size=2"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("proven: steps "));
  result = Audit({"--steps=1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("proven: steps 1 to 1, executed again from the beginning"));
}

TEST_F(AuditCommandTest, TheLedgerDoesNotDependOnSavesAndInterruptions) {
  MustTrain("other", 4, Joined(kExact, {"--save-interval=3", "--async-save"}));
  const Result resumed =
      Run(Launcher(Saving("other", 6, Joined(kExact, {"--pipeline-model-parallel-size=2"}))));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr("ledger")));
  const std::vector<nlohmann::json> one = Records("run"), other = Records("other");
  ASSERT_EQ(one.size(), 6);
  ASSERT_EQ(other.size(), 6);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i]["ledger"], other[i]["ledger"]) << i;
  // A part of a checkpoint is not what the chain is of.
  const Result part = MustTrain(
      "part", 7, Joined(kExact, {Load("run"), "--load-content=model,scheduler,sampler,rng"}));
  EXPECT_THAT(part.out, HasSubstr("the ledger begins a new chain after step 6: "));
}

TEST_F(AuditCommandTest, AnEditedLineIsFound) {
  Edit("metrics.jsonl", "\"step\":5,\"loss\":", "\"step\":5,\"loss\":0");
  ExpectNotProven({"--steps=5-6"}, (RunDir("run") / "metrics.jsonl").string() + ": line 5");
}

TEST_F(AuditCommandTest, AnEditedNumberIsFound) {
  Edit("metrics.jsonl", "\"skipped\":false,\"consumed_samples\":40",
       "\"skipped\":false,\"consumed_samples\":41");
  ExpectNotProven({"--steps=1"},
                  "step 5: its line in metrics.jsonl is not the one that its digest");
}

TEST_F(AuditCommandTest, AFlippedBitOfASavedWeightIsFound) {
  FlipWeight(4);
  ExpectNotProven({"--steps=5-6"}, "step 4: its checkpoint does not hold the state that");
  // Without the record of the checkpoint the steps tell.
  fs::remove(RunDir("run") / "saves.jsonl");
  ExpectNotProven({"--steps=5-6"}, "step 5: ");
  const Result before = Audit({"--steps=3-4"});
  EXPECT_EQ(before.exit_code, 0) << before.out << before.err;
}

TEST_F(AuditCommandTest, OtherDataAreFound) {
  WriteRandomTokens(root_ / "tokens.bin", /*vocabulary=*/99, /*count=*/20000);
  ExpectNotProven({"--steps=1-2"}, "step 1: ");
  FlipBit(root_ / "tokens.bin", 2000);
  ExpectNotProven({"--steps=3-4"}, "step 3: the replay ended before it: ");
}

TEST_F(AuditCommandTest, WhatCannotBeComparedIsRefused) {
  EXPECT_EQ(Audit({}).exit_code, 2);
  EXPECT_EQ(Audit({"--steps=6-7"}).exit_code, 2);
  EXPECT_EQ(Audit({"--steps=2-3", "--no-such-flag=1"}).exit_code, 2);
  ExpectNotProven({"--steps=3-4", "--lr=2e-3"}, "step 3: settings is ");
  fs::remove_all(RunDir("run"));
  MustTrain("run", 2);
  const Result fast = Audit({"--steps=1-2"});
  EXPECT_EQ(fast.exit_code, 2) << fast.out;
  EXPECT_THAT(fast.err, HasSubstr("FAST numerics"));
}

}  // namespace
}  // namespace tessera
