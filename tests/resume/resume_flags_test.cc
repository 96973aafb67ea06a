// What the flags of a load and of a save do to a resumed run.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/resume_run.h"
#include "tests/support/command.h"
#include "tests/support/logical_state.h"
#include "tests/support/session_run.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FlagsTest : public ResumeTest {
 protected:
  void SetUp() override {
    ResumeTest::SetUp();
    TrainConfig config = Config({kGpt2}, "base");
    config.mutable_training()->set_train_iters(8);
    ASSERT_OK(Train(config));
  }
  // Continues from the base run's checkpoints in a new folder.
  TrainConfig From(const std::string& run, const std::vector<std::string>& kind = {kGpt2}) const {
    TrainConfig config = Config(kind, run);
    config.mutable_training()->set_train_iters(12);
    config.mutable_checkpoint()->set_load(Checkpoints("base").string());
    return config;
  }
  testing::Digests DigestsOf(const std::string& run, int64_t step) const {
    return OrFail(testing::ReadDigests(Checkpoints(run), step));
  }
};

TEST_F(FlagsTest, CkptStepChoosesAndNamesWhatIsThere) {
  TrainConfig config = From("chosen");
  config.mutable_checkpoint()->set_ckpt_step(4);
  ASSERT_OK_AND_ASSIGN(const std::string notes, Train(config));
  EXPECT_THAT(notes, HasSubstr("(step 4)"));
  ExpectSameTensors("base", "chosen", 8);

  config = From("missing");
  config.mutable_checkpoint()->set_ckpt_step(7);
  const absl::Status missing = Train(config).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("steps 2, 4, 6, 8"));
}

TEST_F(FlagsTest, OptimizerStateIsOptionalBothWays) {
  ASSERT_OK(Train(From("kept-optimizer")).status());
  TrainConfig fresh = From("fresh-optimizer");
  fresh.mutable_checkpoint()->set_no_load_optim(true);
  ASSERT_OK(Train(fresh));
  const std::map<int64_t, std::string> with = Losses("kept-optimizer");
  const std::map<int64_t, std::string> without = Losses("fresh-optimizer");
  ASSERT_EQ(with.size(), 4u);
  ASSERT_EQ(without.size(), 4u);
  EXPECT_EQ(without.at(9), with.at(9)) << "the weights are the same";
  EXPECT_NE(without.at(12), with.at(12)) << "the moments are not";

  TrainConfig weights_only = Config({kGpt2}, "weights-only");
  weights_only.mutable_training()->set_train_iters(4);
  weights_only.mutable_checkpoint()->set_save_optimizer_state(false);  // or no_save_optim
  ASSERT_OK(Train(weights_only));
  EXPECT_FALSE(DataFile(StepDir("weights-only", 4), "model-").empty());
  EXPECT_TRUE(DataFile(StepDir("weights-only", 4), "optimizer-").empty());
  weights_only.mutable_training()->set_train_iters(6);
  ASSERT_OK_AND_ASSIGN(const std::string notes, Train(weights_only));
  EXPECT_THAT(notes, HasSubstr("no optimizer state was saved: the optimizer begins afresh"));
  EXPECT_TRUE(fs::exists(StepDir("weights-only", 6)));

  TrainConfig resumed = From("from-weights-only");
  resumed.mutable_checkpoint()->set_load(Checkpoints("weights-only").string());
  const absl::Status refused = Train(resumed).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--no-load-optim"));
  resumed.mutable_checkpoint()->set_no_load_optim(true);
  EXPECT_OK(Train(resumed));
}

TEST_F(FlagsTest, PrecisionMayChangeBothWays) {
  ASSERT_OK_AND_ASSIGN(const std::string to_bf16,
                       Train(From("to-bf16", {kGpt2, "training { bf16: true }"})));
  EXPECT_THAT(to_bf16, HasSubstr("master weights come from the saved weights"));

  TrainConfig back = Config({kGpt2}, "to-fp32");
  back.mutable_training()->set_train_iters(16);
  back.mutable_checkpoint()->set_load(Checkpoints("to-bf16").string());
  ASSERT_OK_AND_ASSIGN(const std::string to_fp32, Train(back));
  EXPECT_THAT(to_fp32, HasSubstr("fp32 weights come from the master weights"));
}

// Another seed for dropout does not change the order of the samples: an epoch in progress reads
// each sample once.
TEST_F(FlagsTest, FreshRandomNumbersKeepTheSampleOrder) {
  const std::vector<std::string> no_dropout = {"model { size: \"gpt2-tiny\" }"};
  TrainConfig same = From("same-seed", no_dropout);
  ASSERT_OK(Train(same));
  TrainConfig other = From("other-seed", no_dropout);
  other.mutable_training()->set_seed(99);
  other.mutable_checkpoint()->set_no_load_rng(true);
  ASSERT_OK(Train(other));
  EXPECT_EQ(Losses("other-seed"), Losses("same-seed"));
}

TEST_F(FlagsTest, NoCheckpointStartsAfreshOrEnds) {
  TrainConfig config = From("afresh");
  config.mutable_checkpoint()->set_load((root_ / "nowhere").string());
  config.mutable_training()->set_train_iters(2);
  EXPECT_TRUE(absl::IsNotFound(Train(config).status()));
  // Its own folder need not hold one.
  config.mutable_checkpoint()->set_load(config.checkpoint().save());
  ASSERT_OK_AND_ASSIGN(const std::string notes, Train(config));
  EXPECT_THAT(notes, HasSubstr("starting afresh"));
  EXPECT_THAT(*Train(config), HasSubstr("nothing left to train"));
  config.mutable_checkpoint()->clear_load();
  TrainConfig without = config;
  *without.mutable_checkpoint() = {};
  EXPECT_THAT(*Train(without), HasSubstr("step-00000002 is not continued from"));
  config.mutable_checkpoint()->set_save(Checkpoints("never").string());
  config.mutable_checkpoint()->set_exit_on_missing_checkpoint(true);
  EXPECT_TRUE(absl::IsNotFound(Train(config).status()));
}

TEST_F(FlagsTest, NeverMixesTwoRunsInOneFolder) {
  TrainConfig config = From("base");
  config.mutable_checkpoint()->set_auto_resume(false);
  config.mutable_checkpoint()->clear_load();
  const absl::Status refused = Train(config).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("8) than this run starts from (0)"));
}

// An earlier step on request: what was saved later is quarantined, so that it neither mixes with
// the new future nor ends the run.
TEST_F(FlagsTest, CkptStepOfTheSameFolderLeavesTheLaterOnesAside) {
  TrainConfig config = From("base");
  config.mutable_checkpoint()->set_ckpt_step(4);
  for (const char* step : {"2", "4", "6", "8"}) {
    fs::create_directory(Checkpoints("base") / absl::StrCat("hf-0000000", step));
  }
  ASSERT_OK_AND_ASSIGN(const std::string notes, Train(config));
  EXPECT_THAT(notes, HasSubstr("(step 4)"));
  EXPECT_THAT(notes, HasSubstr("quarantined as step-00000008.abandoned"));
  EXPECT_THAT(notes, HasSubstr("exported weights of later steps stay: hf-00000006, hf-00000008\n"));
  EXPECT_TRUE(fs::exists(Checkpoints("base") / "step-00000008.abandoned" / "manifest.pb"));
  EXPECT_TRUE(fs::exists(StepDir("base", 12)));
  EXPECT_EQ(Losses("base").size(), 12u);
}

// With a rate of 0 the weights stay as they were loaded.
constexpr char kNoChange[] = "optimizer { lr: 0 min_lr: 0 }";

TEST_F(FlagsTest, LoadTensorsTakesWhatMatchesAndLeavesTheRestAsItBegins) {
  TrainConfig fresh = Config({kGpt2, kNoChange}, "fresh");
  fresh.mutable_training()->set_train_iters(1);
  ASSERT_OK(Train(fresh));
  TrainConfig some = From("some", {kGpt2, kNoChange});
  some.mutable_training()->set_train_iters(9);
  some.mutable_checkpoint()->set_load_tensors("*.wte.*,transformer.h.?.attn.c_attn.weight");
  ASSERT_OK(Train(some));
  const auto saved = DigestsOf("base", 8), initial = DigestsOf("fresh", 1);
  for (const auto& [name, digest] : DigestsOf("some", 9)) {
    if (name.find(".exp_avg") != std::string::npos) continue;
    const bool matches =
        name.find(".wte.") != std::string::npos || name.find(".c_attn.weight") != std::string::npos;
    EXPECT_EQ(digest, (matches ? saved : initial).at(name)) << name;
  }
  TrainConfig nothing = From("nothing");
  nothing.mutable_checkpoint()->set_load_tensors("no.such.*");
  const absl::Status none = Train(nothing).status();
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("load_tensors=no.such.*"));
  // What has another shape is left out, too.
  TrainConfig larger = From("larger");
  larger.mutable_model()->set_vocab_size(larger.model().vocab_size() + 8);
  const absl::Status refused = Train(larger).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--load-tensors"));
  larger.mutable_checkpoint()->set_load_tensors("transformer.h.*");
  EXPECT_OK(Train(larger).status());
}

// What a session begins with.
struct Begun {
  testing::LogicalState state;
  Progress progress;
  int64_t updates = 0;
};

absl::StatusOr<Begun> Begin(const TrainConfig& unresolved) {
  TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, ResolveConfig(unresolved));
  Begun begun;
  testing::StateCollector collector;
  const absl::Status status =
      testing::TrainOnProcessors(config, [&](Session& session) -> absl::Status {
        begun.progress = session.progress;
        begun.updates = session.trainer->updates();
        return collector.Add(session.trainer->chunks());
      }).status();
  if (!status.ok()) return status;
  begun.state = collector.Take();
  return begun;
}

bool IsMoment(const std::string& name) {
  return name.ends_with(".exp_avg") || name.ends_with(".exp_avg_sq");
}

class ContentTest : public FlagsTest, public ::testing::WithParamInterface<bool> {
 protected:
  // A run that saves nothing, with another seed than the base run's.
  TrainConfig Loading(const std::string& content, int64_t seed) const {
    TrainConfig config = From("loading", {kGpt2, GetParam() ? "training { bf16: true }" : "",
                                          "parallel { data_parallel_size: 2 zero_stage: 1 }"});
    config.mutable_training()->set_micro_batch_size(1);
    config.mutable_training()->set_seed(seed);
    config.mutable_checkpoint()->set_save("");
    config.mutable_checkpoint()->set_save_interval(0);
    config.mutable_checkpoint()->set_load_content(content);
    if (content.empty()) config.mutable_checkpoint()->clear_load();
    if (content.empty()) config.mutable_checkpoint()->clear_load_content();
    return config;
  }
};

// Every set of parts: each is the checkpoint's where it is named, and begins anew where it is not.
TEST_P(ContentTest, AnyPartsLoadWithoutTheOthers) {
  constexpr int64_t kSeed = 77;
  const int64_t base_seed = Loading("", 1234).training().seed();
  ASSERT_OK_AND_ASSIGN(const auto all, Begin(Loading("all", kSeed)));
  ASSERT_EQ(all.progress.step, 8);
  ASSERT_OK_AND_ASSIGN(const auto anew, Begin(Loading("", kSeed)));
  ASSERT_OK_AND_ASSIGN(const auto like_base, Begin(Loading("", base_seed)));
  ASSERT_NE(FirstStateDifference(anew.state, like_base.state), "");
  const std::vector<std::string> parts = {"model", "optimizer", "scheduler", "sampler", "rng"};
  for (int set = 1; set < 32; ++set) {
    std::vector<std::string> words;
    for (int i = 0; i < 5; ++i) {
      if ((set >> i & 1) != 0) words.push_back(parts[i]);
    }
    const std::string content = absl::StrJoin(words, ",");
    SCOPED_TRACE(content);
    const bool model = set & 1, optimizer = set & 2, scheduler = set & 4, sampler = set & 8,
               rng = set & 16;
    ASSERT_OK_AND_ASSIGN(const auto begun, Begin(Loading(content, kSeed)));
    EXPECT_EQ(begun.progress.step, scheduler ? 8 : 0);
    EXPECT_EQ(begun.updates, optimizer ? 8 : 0);
    EXPECT_EQ(begun.progress.consumed_samples, sampler ? 32 : 0);
    EXPECT_EQ(begun.progress.seed, static_cast<uint64_t>(rng ? base_seed : kSeed));
    const testing::LogicalState& initial = rng ? like_base.state : anew.state;
    ASSERT_EQ(begun.state.size(), all.state.size());
    for (const auto& [name, tensor] : begun.state) {
      // Master weights without the optimizer's are the rounded weights.
      if (name.ends_with(".master") && model && !optimizer) continue;
      const bool is_loaded = IsMoment(name) ? optimizer : model;
      EXPECT_TRUE(tensor == (is_loaded ? all.state : initial).at(name)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, ContentTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Bf16" : "Fp32"; });

TEST_F(FlagsTest, VerifyLoadComparesDigests) {
  TrainConfig config =
      From("verified", {kGpt2, "parallel { data_parallel_size: 2 zero_stage: 2 }"});
  config.mutable_training()->set_micro_batch_size(1);
  config.mutable_training()->set_train_iters(9);
  config.mutable_checkpoint()->set_verify_load(true);
  ASSERT_OK_AND_ASSIGN(const std::string notes, Train(config));
  const size_t tensors = DigestsOf("base", 8).size();
  EXPECT_THAT(notes, HasSubstr(absl::StrCat("digests of ", tensors, " tensors verified")));
}

}  // namespace
}  // namespace tessera
