// Runs that go from x86-64 to an emulated 64-bit ARM and back in EXACT numerics: one ledger, which
// either machine audits.

#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/audit_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kTrain[] = "tests/portable/arm64_train", kCkpt[] = "tests/portable/arm64_ckpt";
constexpr int kSteps = 20;

struct Kind {
  std::string name, model, bf16;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class Arm64Test : public AuditTest, public ::testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Runfile(std::string(kTrain) + ".aarch64"))) {
      GTEST_SKIP() << MustRun({Runfile(kTrain)}).out;
    }
    AuditTest::SetUp();
    WriteSettings("model { " + GetParam().model +
                      " num_layers: 2 hidden_size: 16 num_attention_heads: 4 vocab_size: 100 }",
                  /*seq_length=*/10);
  }

  Words Flags(const std::string& run, int steps, const Words& more) const {
    return Saving(run, steps,
                  Joined(Joined(kExact, {GetParam().bf16, "--save-interval=4",
                                         "--non-persistent-save-interval=0"}),
                         more));
  }
  void TrainHere(const std::string& run, int steps, const Words& more = {}) const {
    MustRun(Alone(Flags(run, steps, more)));
  }
  void TrainOnArm(const std::string& run, int steps, const Words& more = {}) const {
    MustRun(Joined({Runfile(kTrain), Config()}, Flags(run, steps, more)));
  }
  Result AuditOnArm(const std::string& run, const Words& words, int exit_code = 0) const {
    return MustRun(AuditCommand(RunDir(run), words, kTrain), exit_code);
  }

  // Returns the heads of the chain by step.
  std::map<int64_t, std::string> Ledger(const std::string& run) const {
    std::map<int64_t, std::string> heads;
    for (const nlohmann::json& record : Records(run)) {
      if (record["kind"] == "step") heads[record["step"]] = record["ledger"];
    }
    return heads;
  }
};

TEST_P(Arm64Test, ARunGoesThereAndBackWithOneLedger) {
  TrainHere("run", kSteps);
  const std::map<int64_t, std::string> ledger = Ledger("run");
  ASSERT_EQ(ledger.size(), kSteps);
  TrainOnArm("arm", kSteps);
  EXPECT_EQ(Ledger("arm"), ledger);

  TrainOnArm("there", 16, {Load("run"), "--ckpt-step=8"});
  TrainHere("back", kSteps, {Load("there"), "--ckpt-step=12", "--data-parallel-size=1"});
  EXPECT_EQ(Ledger("there"), (std::map(ledger.find(9), ledger.find(17))));
  EXPECT_EQ(Ledger("back"), (std::map(ledger.find(13), ledger.end())));
  MustRun({Runfile("tools/ckpt/ckpt"), "verify", "--digests", Checkpoints("there")});
  MustRun({Runfile(kCkpt), "verify", "--digests", Checkpoints("run")});
  for (const int step : {12, 16}) {
    MustRun({Runfile(kCkpt), "diff", StepDir("run", step), StepDir("there", step)});
  }

  const std::string head = "; the head of the chain is " + ledger.at(kSteps);
  EXPECT_THAT(AuditOnArm("run", {"--steps=14-20"}).out, HasSubstr(head));
  EXPECT_THAT(MustRun(AuditCommand(RunDir("arm"), {"--steps=1-20"})).out, HasSubstr(head));
}

// FlipWeight() changes checkpoints in fp32 alone.
class Arm64AuditTest : public Arm64Test {};

// No record is left of the change: the lines are in one chain, but those after step 4 do not follow
// from the beginning.
TEST_P(Arm64AuditTest, FindsAWeightThatChanged) {
  TrainHere("run", 4);
  FlipWeight(4);
  TrainHere("run", 8);
  std::filesystem::remove_all(StepDir("run", 4));
  std::filesystem::remove(RunDir("run") / "saves.jsonl");
  EXPECT_THAT(AuditOnArm("run", {"--steps=1-8"}, 1).out, HasSubstr("not proven: step 5: loss"));
}

const Kind kGpt2 = {"gpt2_fp32", "size: \"gpt2-tiny\" hidden_dropout: 0.1", "--bf16=false"};
const Kind kLlama3 = {"llama3_bf16", "size: \"llama3-tiny\" num_query_groups: 2", "--bf16"};
constexpr auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Kinds, Arm64Test, ::testing::Values(kGpt2, kLlama3), kName);
INSTANTIATE_TEST_SUITE_P(Kinds, Arm64AuditTest, ::testing::Values(kGpt2), kName);

}  // namespace
}  // namespace tessera
