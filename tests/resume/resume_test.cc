// A resumed run continues as if it had not been interrupted: every later loss, every weight and
// every moment to the last bit.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file_calls.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/resume_run.h"
#include "tests/support/command.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

struct Kind {
  std::string name;
  std::vector<std::string> config;  // fragments in text format
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class EveryKindTest : public ResumeTest, public ::testing::WithParamInterface<Kind> {};

TEST_P(EveryKindTest, GoesOnAsIfNothingHadHappened) {
  const TrainConfig config = Config(GetParam().config, "full");
  ASSERT_OK(Train(config));
  const std::map<int64_t, std::string> losses = Losses("full");
  const std::map<int64_t, std::string> evaluations = Losses("full", "eval");
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(evaluations.size(), 4u);

  for (const int64_t step : {8, 12}) {
    const std::string run = absl::StrCat("resumed-", step);
    LeaveAt("full", step, run);
    TrainConfig resumed = Config(GetParam().config, run);
    resumed.mutable_checkpoint()->set_load(Checkpoints(run).string());
    ASSERT_OK_AND_ASSIGN(const std::string notes, Train(resumed));
    EXPECT_THAT(notes, HasSubstr(absl::StrCat("(step ", step, ")")));
    EXPECT_EQ(Losses(run), losses);
    EXPECT_EQ(Losses(run, "eval"), evaluations);
    for (int64_t saved = step + kInterval; saved <= kSteps; saved += kInterval) {
      ExpectSameTensors("full", run, saved);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryKindTest,
    ::testing::Values(
        Kind{"gpt2_fp32", {kGpt2}}, Kind{"gpt2_bf16", {kGpt2, "training { bf16: true }"}},
        Kind{"gpt2_bf16_recompute", {kGpt2, "training { bf16: true recompute_activations: true }"}},
        Kind{"llama3_fp32", {kLlama}}, Kind{"llama3_bf16", {kLlama, "training { bf16: true }"}},
        Kind{"llama3_tied_wsd",
             {"model { size: \"llama3-tiny\" untie_embeddings_and_output_weights: false }",
              "optimizer { lr_decay_style: WSD lr_wsd_decay_iters: 9 }"}}),
    [](const auto& info) { return info.param.name; });

// Eight steps of a model of four layers, on as many ranks as the fragments specify.
class TopologyTest : public ResumeTest {
 protected:
  TrainConfig TopologyConfig(const std::vector<std::string>& fragments,
                             const std::string& run) const {
    std::vector<std::string> all = {"model { num_layers: 4 }"};
    all.insert(all.end(), fragments.begin(), fragments.end());
    TrainConfig config = Config(all, run);
    config.mutable_training()->set_micro_batch_size(1);
    config.mutable_training()->set_train_iters(8);
    config.mutable_training()->set_threads(1);
    config.mutable_training()->set_eval_interval(4);
    return config;
  }
};

class EveryTopologyTest : public TopologyTest, public ::testing::WithParamInterface<Kind> {};

TEST_P(EveryTopologyTest, GoesOnAsIfNothingHadHappened) {
  const TrainConfig config = TopologyConfig(GetParam().config, "full");
  ASSERT_OK(Train(config));
  LeaveAt("full", 4, "resumed");
  TrainConfig resumed = TopologyConfig(GetParam().config, "resumed");
  resumed.mutable_checkpoint()->set_load(Checkpoints("resumed").string());
  ASSERT_OK_AND_ASSIGN(const std::string notes, Train(resumed));
  EXPECT_THAT(notes, HasSubstr("(step 4)"));
  EXPECT_THAT(notes, Not(HasSubstr("resharded")));
  EXPECT_EQ(Losses("resumed").size(), 8u);
  EXPECT_EQ(Losses("resumed"), Losses("full"));
  EXPECT_EQ(Losses("resumed", "eval"), Losses("full", "eval"));
  ExpectSameTensors("full", "resumed", 8);
}

constexpr char kTiedLlama[] =
    "model { size: \"llama3-tiny\" untie_embeddings_and_output_weights: false }";

INSTANTIATE_TEST_SUITE_P(
    Topologies, EveryTopologyTest,
    ::testing::Values(
        Kind{"gpt2_dp2_zero1", {kGpt2, "parallel { data_parallel_size: 2 zero_stage: 1 }"}},
        Kind{"gpt2_bf16_dp4_zero2",
             {kGpt2, "training { bf16: true } parallel { data_parallel_size: 4 zero_stage: 2 }"}},
        Kind{"llama3_tp2_sp",
             {kLlama, "parallel { tensor_model_parallel_size: 2 sequence_parallel: true }"}},
        // The tied table is on both stages.
        Kind{"llama3_tied_pp2", {kTiedLlama, "parallel { pipeline_model_parallel_size: 2 }"}},
        Kind{"gpt2_bf16_pp2_vpp2",
             {kGpt2,
              "training { bf16: true } parallel { pipeline_model_parallel_size: 2 "
              "num_virtual_stages_per_pipeline_rank: 2 }"}},
        Kind{"gpt2_exact_dp2_zero2_tp2_pp2",
             {kGpt2,
              "parallel { data_parallel_size: 2 zero_stage: 2 tensor_model_parallel_size: 2 "
              "pipeline_model_parallel_size: 2 numerics: EXACT exact_tp_shards: 4 }"}}),
    [](const auto& info) { return info.param.name; });

// Inspects the run that a metrics.jsonl belongs to whenever this file has been synced.
class LogSyncs final : public FileCallInterceptor {
 public:
  struct LogSync {
    std::string log;                  // contents that are durable from then on
    std::set<std::string> committed;  // checkpoints of the run at that moment
  };

  LogSyncs() { SetFileCallInterceptor(this); }
  ~LogSyncs() override { SetFileCallInterceptor(nullptr); }

  int Sync(int fd, absl::FunctionRef<int()> call) override {
    const int result = call();
    std::error_code error;
    const fs::path path = fs::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
    if (path.filename() != "metrics.jsonl") return result;
    LogSync sync{.log = ReadFile(path)};
    for (const auto& entry : fs::directory_iterator(path.parent_path() / "checkpoints", error)) {
      if (!fs::exists(entry.path() / "manifest.pb", error)) continue;
      sync.committed.insert(entry.path().filename());
    }
    syncs_.push_back(std::move(sync));  // always on rank 0's saving thread
    return result;
  }
  int Rename(absl::FunctionRef<int()> call) override { return call(); }

  // Whether the record of `step` was durable before `checkpoint` was committed.
  bool RecordCameFirst(int64_t step, const std::string& checkpoint) const {
    const std::string record = absl::StrCat("{\"kind\":\"step\",\"step\":", step, ",");
    return std::any_of(syncs_.begin(), syncs_.end(), [&](const LogSync& sync) {
      return sync.log.find(record) != sync.log.npos && !sync.committed.contains(checkpoint);
    });
  }

 private:
  std::vector<LogSync> syncs_;
};

// A power loss only removes records of steps in metrics.jsonl that no checkpoint contains.
TEST_F(ResumeTest, RecordsAreDurableBeforeTheCheckpointThatFollowsFromThem) {
  for (const bool async : {false, true}) {
    const std::string run = async ? "background" : "foreground";
    TrainConfig config = Config({kGpt2}, run);
    config.mutable_training()->set_train_iters(12);
    config.mutable_checkpoint()->set_async_save(async);
    const LogSyncs syncs;
    ASSERT_OK(Train(config));
    for (const int64_t step : {4, 8, 12}) {
      const fs::path checkpoint = StepDir(run, step);
      ASSERT_TRUE(fs::exists(checkpoint / "manifest.pb"));
      EXPECT_TRUE(syncs.RecordCameFirst(step, checkpoint.filename())) << checkpoint;
    }
  }
}

// Syncs of a file of exported weights last longer than ranks wait for each other.
class SlowExport final : public FileCallInterceptor {
 public:
  SlowExport() { SetFileCallInterceptor(this); }
  ~SlowExport() override { SetFileCallInterceptor(nullptr); }

  int Sync(int fd, absl::FunctionRef<int()> call) override {
    std::error_code error;
    const fs::path path = fs::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
    const bool exports = path.string().find(".unfinished/converted") != std::string::npos;
    if (exports && !was_slow_.exchange(true)) absl::SleepFor(absl::Seconds(8));
    return call();
  }
  int Rename(absl::FunctionRef<int()> call) override { return call(); }

  bool was_slow() const { return was_slow_; }

 private:
  std::atomic<bool> was_slow_ = false;
};

TEST_F(ResumeTest, ARankMayExportForLongerThanAStepMayTake) {
  TrainConfig config =
      Config({kGpt2, "parallel { data_parallel_size: 2 distributed_timeout_minutes: 0.1 }"}, "run");
  config.mutable_training()->set_train_iters(2);
  config.mutable_checkpoint()->set_save_last_step(false);  // no rank waits for a disk
  config.mutable_checkpoint()->set_export_hf_interval(2);
  const SlowExport exports;
  ASSERT_OK(Train(config));
  EXPECT_TRUE(exports.was_slow());
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "hf-00000002" / "config.json"));
}

// The first sync of an exported tensor fails, which only the rank that writes it sees.
class FailedExport final : public FileCallInterceptor {
 public:
  FailedExport() { SetFileCallInterceptor(this); }
  ~FailedExport() override { SetFileCallInterceptor(nullptr); }

  int Sync(int fd, absl::FunctionRef<int()> call) override {
    std::error_code error;
    const std::string path = fs::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
    const bool exports = path.find(".unfinished/step-") != std::string::npos &&
                         path.find(".safetensors") != std::string::npos;
    return exports && !has_failed_.exchange(true) ? EIO : call();
  }
  int Rename(absl::FunctionRef<int()> call) override { return call(); }

  bool has_failed() const { return has_failed_; }

 private:
  std::atomic<bool> has_failed_ = false;
};

TEST_F(ResumeTest, AnExportThatOneRankCannotWriteIsLeftOut) {
  TrainConfig config =
      Config({kGpt2, "parallel { data_parallel_size: 2 distributed_timeout_minutes: 0.5 }"}, "run");
  config.mutable_training()->set_train_iters(4);
  config.mutable_checkpoint()->set_export_hf_interval(2);
  const FailedExport exports;
  ASSERT_OK(Train(config));
  EXPECT_TRUE(exports.has_failed());
  EXPECT_EQ(Losses("run").size(), 4);
  EXPECT_FALSE(fs::exists(Checkpoints("run") / "hf-00000002"));
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "hf-00000004" / "config.json"));
}

TEST_F(ResumeTest, TheLimitOfTimeIncludesTheStart) {
  TrainConfig config = Config({kGpt2}, "run");
  config.mutable_training()->set_exit_duration_in_mins(60);
  const auto began_before = [](absl::Duration time) {
    return [time](Session& session) {
      session.began -= time;
      return testing::TrainSession(session);
    };
  };
  ASSERT_OK_AND_ASSIGN(const TrainConfig resolved, ResolveConfig(config));
  ASSERT_OK(testing::TrainOnProcessors(resolved, began_before(absl::Minutes(61))));
  EXPECT_EQ(Losses("run").size(), 1);
  EXPECT_TRUE(fs::exists(StepDir("run", 1)));
  // The last step has its evaluation all the same.
  TrainConfig short_run = Config({kGpt2, "training { train_iters: 1 eval_interval: 1 }"}, "last");
  short_run.mutable_training()->set_exit_duration_in_mins(60);
  ASSERT_OK_AND_ASSIGN(short_run, ResolveConfig(short_run));
  ASSERT_OK(testing::TrainOnProcessors(short_run, began_before(absl::Minutes(61))));
  EXPECT_EQ(Losses("last", "eval").size(), 1);
  ASSERT_OK(testing::TrainOnProcessors(resolved, began_before(absl::Minutes(30))));
  EXPECT_EQ(Losses("run").size(), kSteps);
}

}  // namespace
}  // namespace tessera
