// A resumed run continues as if it had not been interrupted: every later loss, every weight and
// every moment to the last bit.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file_calls.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/command.h"
#include "trainer/app/session.h"
#include "trainer/app/train_loop.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/threads/thread_world.h"
#include "trainer/config/config.h"
#include "trainer/data/token_file.h"
#include "trainer/device/compute_devices.h"
#include "trainer/device/cuda_device.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"
#include "trainer/parallel/topology.h"
#include "trainer/random/philox.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSteps = 100;
constexpr int64_t kVocabulary = 211;  // not a multiple of the padding
constexpr int64_t kTokens = 4200;     // 131 samples of 32: 400 samples are three epochs and a bit

struct Kind {
  std::string name;
  std::vector<std::string> config;  // fragments in text format
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

// Warmup ends at 50 and decay at 100: the checkpoints of 40 and 60 lie inside each.
constexpr char kCommon[] = R"pb(
  training {
    micro_batch_size: 2
    global_batch_size: 4
    seq_length: 32
    train_iters: 100
    eval_interval: 25
    eval_iters: 2
    threads: 2
  }
  optimizer {
    lr: 3e-3
    min_lr: 1e-4
    lr_decay_style: COSINE
    lr_warmup_iters: 50
    lr_decay_iters: 100
    weight_decay: 0.1
    clip_grad: 0.5
  }
  checkpoint { save_interval: 20 }
)pb";

constexpr char kGpt2[] = "model { size: \"gpt2-tiny\" hidden_dropout: 0.1 attention_dropout: 0.1 }";
constexpr char kLlama[] = "model { size: \"llama3-tiny\" }";

// A learnable language: three times out of four, the next token is a function of the last one.
std::vector<int32_t> MakeTokens() {
  const RandomStream stream{.seed = 7, .use = RandomUse::kDataOrder, .stream = 1};
  std::vector<int32_t> tokens{1};
  for (int64_t i = 1; i < kTokens; ++i) {
    const uint32_t word = RandomWord(stream, static_cast<uint64_t>(i));
    tokens.push_back(word % 4 != 0 ? (tokens.back() * 31 + 17) % kVocabulary
                                   : static_cast<int32_t>((word >> 8) % kVocabulary));
  }
  return tokens;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The records of a run: step -> line without its timings.
std::map<int64_t, std::string> Losses(const fs::path& run_dir, const std::string& kind) {
  std::map<int64_t, std::string> losses;
  std::ifstream file(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record["kind"].get<std::string>() != kind) continue;
    const std::string values = kind == "eval" ? record["eval_loss_bits"].get<std::string>()
                                              : absl::StrCat(record["loss_bits"].get<std::string>(),
                                                             " ", record["grad_norm"].get<double>(),
                                                             " ", record["lr"].get<double>());
    const bool is_new = losses.emplace(record["step"].get<int64_t>(), values).second;
    EXPECT_TRUE(is_new) << "step recorded twice: " << line;
  }
  return losses;
}

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = absl::StrCat(test->test_suite_name(), ".", test->name());
    for (char& c : name) c = c == '/' ? '_' : c;
    root_ = fs::path(::testing::TempDir()) / name;
    fs::remove_all(root_);
    fs::create_directories(root_);
    auto writer = TokenFileWriter::Create((root_ / "tokens.bin").string(), TokenFormat::kGpt2);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(MakeTokens()).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  TrainConfig Config(std::vector<std::string> fragments, const std::string& run) const {
    TrainConfig result;
    fragments.insert(fragments.begin(), kCommon);
    for (const std::string& text : fragments) {
      const absl::StatusOr<TrainConfig> part = ParseConfig(text, "resume_test");
      EXPECT_TRUE(part.ok()) << part.status();
      if (part.ok()) result.MergeFrom(*part);
    }
    result.mutable_model()->set_vocab_size(kVocabulary);
    result.mutable_data()->set_train_data_path((root_ / "tokens.bin").string());
    result.mutable_data()->set_valid_data_path((root_ / "tokens.bin").string());
    result.mutable_output()->set_run_dir(RunDir(run).string());
    result.mutable_checkpoint()->set_save(Checkpoints(run).string());
    return result;
  }

  fs::path RunDir(const std::string& run) const { return root_ / run; }
  fs::path Checkpoints(const std::string& run) const { return root_ / run / "checkpoints"; }
  fs::path StepDir(const std::string& run, int64_t step) const {
    return Checkpoints(run) / absl::StrFormat("step-%08d", step);
  }

  // Trains as the command does, on as many threads as the topology has ranks. Returns rank 0's
  // notes about the origin of the state.
  absl::StatusOr<std::string> Train(const TrainConfig& unresolved) {
    const absl::StatusOr<TrainConfig> config = ResolveConfig(unresolved);
    if (!config.ok()) return config.status();
    std::string notes;
    const int ranks = ConfigTopology(*config).world_size();
    const absl::Status status =
        ranks == 1 ? TrainRank(*config, nullptr, &notes)
                   : ThreadWorld(ranks).Run([&](Communicator& world) {
                       std::string own;
                       return TrainRank(*config, &world, world.rank() == 0 ? &notes : &own);
                     });
    if (!status.ok()) return status;
    return notes;
  }

  static absl::Status TrainRank(const TrainConfig& config, Communicator* world,
                                std::string* notes) {
    const std::unique_ptr<ComputeDevices> devices = MakeCudaDevices();
    const absl::StatusOr<std::unique_ptr<Session>> session = BuildSession(
        config, world, *devices, [&](const std::string& note) { *notes += note + "\n"; });
    if (!session.ok()) return session.status();
    if (!(*session)->trains) {
      *notes += "nothing left to train";
      return absl::OkStatus();
    }
    if ((*session)->first_rank()) {
      fs::create_directories(config.output().run_dir());
      auto opened = MetricsWriter::Open(
          config.output().run_dir() + "/metrics.jsonl",
          (*session)->resumed ? std::optional((*session)->progress.step) : std::nullopt);
      if (!opened.ok()) return opened.status();
      (*session)->metrics = *std::move(opened);
    }
    std::FILE* null = std::fopen("/dev/null", "w");
    ProgressLine line({.total_steps = kSteps, .out = null, .detect_terminal = false});
    TrainLoop loop(**session, line);
    const absl::Status status = loop.Run();
    std::fclose(null);
    if (!status.ok() || (*session)->metrics == nullptr) return status;
    return (*session)->metrics->Close();
  }

  // Creates a folder that holds copies of the run's checkpoints up to `step` only, as a machine
  // that died then would leave it.
  void LeaveAt(const std::string& from, int64_t step, const std::string& to) const {
    fs::create_directories(Checkpoints(to));
    for (int64_t saved = 20; saved <= step; saved += 20) {
      fs::copy(StepDir(from, saved), StepDir(to, saved), fs::copy_options::recursive);
    }
    fs::copy_file(RunDir(from) / "metrics.jsonl", RunDir(to) / "metrics.jsonl");
  }

  // Expects that both checkpoints of `step` hold the same bytes in every data file.
  void ExpectSameTensors(const std::string& one, const std::string& other, int64_t step) const {
    int files = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(StepDir(one, step))) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      EXPECT_TRUE(ReadFile(entry.path()) ==
                  ReadFile(Counterpart(entry.path(), StepDir(other, step))))
          << entry.path().filename() << " of step " << step << " differs";
    }
    EXPECT_GE(files, 2);
  }

  fs::path root_;
};

class EveryKindTest : public ResumeTest, public ::testing::WithParamInterface<Kind> {};

TEST_P(EveryKindTest, GoesOnAsIfNothingHadHappened) {
  const TrainConfig config = Config(GetParam().config, "full");
  const absl::Status trained = Train(config).status();
  ASSERT_TRUE(trained.ok()) << trained;
  const std::map<int64_t, std::string> losses = Losses(RunDir("full"), "step");
  const std::map<int64_t, std::string> evaluations = Losses(RunDir("full"), "eval");
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(evaluations.size(), 4u);

  for (const int64_t step : {40, 60}) {
    const std::string run = absl::StrCat("resumed-", step);
    LeaveAt("full", step, run);
    TrainConfig resumed = Config(GetParam().config, run);
    resumed.mutable_checkpoint()->set_load(Checkpoints(run).string());
    const absl::StatusOr<std::string> notes = Train(resumed);
    ASSERT_TRUE(notes.ok()) << notes.status();
    EXPECT_THAT(*notes, HasSubstr(absl::StrCat("(step ", step, ")")));
    EXPECT_EQ(Losses(RunDir(run), "step"), losses);
    EXPECT_EQ(Losses(RunDir(run), "eval"), evaluations);
    for (int64_t saved = step + 20; saved <= kSteps; saved += 20) {
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
              "optimizer { lr_decay_style: WSD lr_wsd_decay_iters: 45 }"}}),
    [](const auto& info) { return info.param.name; });

// Forty steps of a model of four layers, on as many ranks as the fragments specify.
class TopologyTest : public ResumeTest {
 protected:
  TrainConfig TopologyConfig(const std::vector<std::string>& fragments,
                             const std::string& run) const {
    std::vector<std::string> all = {"model { num_layers: 4 }"};
    all.insert(all.end(), fragments.begin(), fragments.end());
    TrainConfig config = Config(all, run);
    config.mutable_training()->set_micro_batch_size(1);
    config.mutable_training()->set_train_iters(40);
    config.mutable_training()->set_threads(1);
    config.mutable_training()->set_eval_interval(20);
    return config;
  }
};

class EveryTopologyTest : public TopologyTest, public ::testing::WithParamInterface<Kind> {};

TEST_P(EveryTopologyTest, GoesOnAsIfNothingHadHappened) {
  const TrainConfig config = TopologyConfig(GetParam().config, "full");
  const absl::Status trained = Train(config).status();
  ASSERT_TRUE(trained.ok()) << trained;
  LeaveAt("full", 20, "resumed");
  TrainConfig resumed = TopologyConfig(GetParam().config, "resumed");
  resumed.mutable_checkpoint()->set_load(Checkpoints("resumed").string());
  const absl::StatusOr<std::string> notes = Train(resumed);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, HasSubstr("(step 20)"));
  EXPECT_THAT(*notes, Not(HasSubstr("resharded")));
  EXPECT_EQ(Losses(RunDir("resumed"), "step").size(), 40u);
  EXPECT_EQ(Losses(RunDir("resumed"), "step"), Losses(RunDir("full"), "step"));
  EXPECT_EQ(Losses(RunDir("resumed"), "eval"), Losses(RunDir("full"), "eval"));
  ExpectSameTensors("full", "resumed", 40);
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

// Asynchronous saves hold the same as those in the foreground, at every step, and resuming from
// either is the same.
TEST_F(TopologyTest, AsynchronousSavesAreTheSame) {
  const std::map<std::string, std::vector<std::string>> kinds = {
      {"gpt2", {kGpt2}},
      {"llama3_bf16", {kLlama, "training { bf16: true }"}},
      {"gpt2_bf16_dp2_zero2_pp2",
       {kGpt2,
        "training { bf16: true } parallel { data_parallel_size: 2 zero_stage: 2 "
        "pipeline_model_parallel_size: 2 }"}},
      {"llama3_zero1_little_memory",
       {kLlama, "parallel { data_parallel_size: 2 zero_stage: 1 }",
        "checkpoint { async_save_memory: 1000 }"}}};
  for (const auto& [name, fragments] : kinds) {
    SCOPED_TRACE(name);
    const auto config = [&, fragments = fragments](const std::string& run, bool async) {
      TrainConfig result = TopologyConfig(fragments, run);
      result.mutable_checkpoint()->set_save_interval(5);
      result.mutable_checkpoint()->set_async_save(async);
      if (!async) result.mutable_checkpoint()->clear_async_save_memory();
      return result;
    };
    const std::string foreground = "foreground-" + name, background = "background-" + name;
    absl::Status trained = Train(config(foreground, false)).status();
    ASSERT_TRUE(trained.ok()) << trained;
    trained = Train(config(background, true)).status();
    ASSERT_TRUE(trained.ok()) << trained;
    EXPECT_EQ(Losses(RunDir(background), "step"), Losses(RunDir(foreground), "step"));
    for (int64_t step = 5; step <= 40; step += 5) ExpectSameTensors(foreground, background, step);

    const std::string resumed = "resumed-" + name;
    LeaveAt(background, 20, resumed);
    TrainConfig again = config(resumed, true);
    again.mutable_checkpoint()->set_load(Checkpoints(resumed).string());
    trained = Train(again).status();
    ASSERT_TRUE(trained.ok()) << trained;
    EXPECT_EQ(Losses(RunDir(resumed), "step"), Losses(RunDir(foreground), "step"));
    ExpectSameTensors(foreground, resumed, 40);
  }
}

// A checkpoint's description of the step, except for the location of its bytes and the topology
// that saved it: digests depend on contents only, however they are sharded.
std::string Contents(const fs::path& checkpoints, int64_t step) {
  const auto storage = ckpt::OpenPosixStorage(checkpoints.string());
  EXPECT_TRUE(storage.ok()) << storage.status();
  if (!storage.ok()) return "";
  absl::StatusOr<ckpt::Manifest> manifest =
      ckpt::ReadManifest(**storage, ckpt::CheckpointDirectory("", step));
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  if (!manifest.ok()) return "";
  std::map<std::string, std::string> tensors;
  for (ckpt::LogicalTensor& tensor : *manifest->mutable_tensors()) {
    tensor.clear_shards();
    tensors[tensor.name()] = tensor.ShortDebugString();
  }
  std::string text = manifest->trainer().data().ShortDebugString() + "\n" +
                     manifest->optimizer().DebugString() + manifest->model().text();
  for (const auto& [name, tensor] : tensors) text += tensor + "\n";
  return text;
}

// In EXACT numerics a checkpoint's contents do not depend on the topology either, and a run may
// continue on another one with the same bits.
TEST_F(TopologyTest, ExactCheckpointsAreTheSameEverywhere) {
  const std::string exact = "parallel { numerics: EXACT exact_tp_shards: 2 }";
  const std::map<std::string, std::string> topologies = {
      {"single", "parallel {}"},
      {"dp4_zero2", "parallel { data_parallel_size: 4 zero_stage: 2 }"},
      {"tp2", "parallel { tensor_model_parallel_size: 2 }"},
      {"dp2_zero1_pp2_vpp2",
       "parallel { data_parallel_size: 2 zero_stage: 1 pipeline_model_parallel_size: 2 "
       "num_virtual_stages_per_pipeline_rank: 2 }"},
      {"dp2_zero2_tp2_pp2",
       "parallel { data_parallel_size: 2 zero_stage: 2 tensor_model_parallel_size: 2 "
       "pipeline_model_parallel_size: 2 }"}};
  for (const std::string precision : {"training { bf16: false }", "training { bf16: true }"}) {
    SCOPED_TRACE(precision);
    const std::string suffix = precision.find("true") == std::string::npos ? "" : "-bf16";
    for (const auto& [name, fragment] : topologies) {
      const TrainConfig config = TopologyConfig({kGpt2, exact, precision, fragment}, name + suffix);
      const absl::Status trained = Train(config).status();
      ASSERT_TRUE(trained.ok()) << name << ": " << trained;
    }
    const std::string expected = Contents(Checkpoints("single" + suffix), 40);
    for (const auto& [name, fragment] : topologies) {
      EXPECT_EQ(Contents(Checkpoints(name + suffix), 40), expected) << name;
      EXPECT_EQ(Losses(RunDir(name + suffix), "step"), Losses(RunDir("single" + suffix), "step"));
    }
    const std::string moved = "moved" + suffix;
    LeaveAt("dp4_zero2" + suffix, 20, moved);
    TrainConfig config =
        TopologyConfig({kGpt2, exact, precision, topologies.at("dp2_zero2_tp2_pp2")}, moved);
    config.mutable_checkpoint()->set_load(Checkpoints(moved).string());
    const absl::StatusOr<std::string> notes = Train(config);
    ASSERT_TRUE(notes.ok()) << notes.status();
    EXPECT_THAT(*notes, HasSubstr("resharded from dp4_zero2 to dp2_zero2_tp2_pp2"));
    EXPECT_EQ(Contents(Checkpoints(moved), 40), expected);
    EXPECT_EQ(Losses(RunDir(moved), "step"), Losses(RunDir("single" + suffix), "step"));
  }
}

class FlagsTest : public ResumeTest {
 protected:
  void SetUp() override {
    ResumeTest::SetUp();
    TrainConfig config = Config({kGpt2}, "base");
    config.mutable_training()->set_train_iters(40);
    const absl::Status trained = Train(config).status();
    ASSERT_TRUE(trained.ok()) << trained;
  }
  // Continues from the base run's checkpoints in a new folder.
  TrainConfig From(const std::string& run, const std::vector<std::string>& kind = {kGpt2}) const {
    TrainConfig config = Config(kind, run);
    config.mutable_training()->set_train_iters(60);
    config.mutable_checkpoint()->set_load(Checkpoints("base").string());
    return config;
  }
};

TEST_F(FlagsTest, CkptStepChoosesAndNamesWhatIsThere) {
  TrainConfig config = From("chosen");
  config.mutable_checkpoint()->set_ckpt_step(20);
  const absl::StatusOr<std::string> notes = Train(config);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, HasSubstr("(step 20)"));
  ExpectSameTensors("base", "chosen", 40);

  config = From("missing");
  config.mutable_checkpoint()->set_ckpt_step(35);
  const absl::Status missing = Train(config).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("steps 10, 20, 30, 40"));
}

TEST_F(FlagsTest, FinetuneTakesWeightsAloneAndStartsAtStepZero) {
  TrainConfig config = From("finetuned");
  config.mutable_checkpoint()->set_finetune(true);
  config.mutable_training()->set_train_iters(20);
  ASSERT_TRUE(Train(config).ok());
  const std::map<int64_t, std::string> losses = Losses(RunDir("finetuned"), "step");
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_EQ(losses.begin()->first, 1);
  EXPECT_NE(losses.begin()->second, Losses(RunDir("base"), "step").begin()->second);
}

TEST_F(FlagsTest, OptimizerStateIsOptionalBothWays) {
  const absl::Status kept = Train(From("kept-optimizer")).status();
  ASSERT_TRUE(kept.ok()) << kept;
  TrainConfig fresh = From("fresh-optimizer");
  fresh.mutable_checkpoint()->set_no_load_optim(true);
  const absl::Status started = Train(fresh).status();
  ASSERT_TRUE(started.ok()) << started;
  const std::map<int64_t, std::string> with = Losses(RunDir("kept-optimizer"), "step");
  const std::map<int64_t, std::string> without = Losses(RunDir("fresh-optimizer"), "step");
  ASSERT_EQ(with.size(), 20u);
  ASSERT_EQ(without.size(), 20u);
  EXPECT_EQ(without.at(41), with.at(41)) << "the weights are the same";
  EXPECT_NE(without.at(60), with.at(60)) << "the moments are not";

  TrainConfig weights_only = Config({kGpt2}, "weights-only");
  weights_only.mutable_training()->set_train_iters(20);
  weights_only.mutable_checkpoint()->set_no_save_optim(true);
  ASSERT_TRUE(Train(weights_only).ok());
  EXPECT_FALSE(DataFile(StepDir("weights-only", 20), "model-").empty());
  EXPECT_TRUE(DataFile(StepDir("weights-only", 20), "optimizer-").empty());

  TrainConfig resumed = From("from-weights-only");
  resumed.mutable_checkpoint()->set_load(Checkpoints("weights-only").string());
  const absl::Status refused = Train(resumed).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--no-load-optim"));
  resumed.mutable_checkpoint()->set_no_load_optim(true);
  EXPECT_TRUE(Train(resumed).ok());
}

TEST_F(FlagsTest, PrecisionMayChangeBothWays) {
  const absl::StatusOr<std::string> to_bf16 =
      Train(From("to-bf16", {kGpt2, "training { bf16: true }"}));
  ASSERT_TRUE(to_bf16.ok()) << to_bf16.status();
  EXPECT_THAT(*to_bf16, HasSubstr("master weights come from the saved weights"));

  TrainConfig back = Config({kGpt2}, "to-fp32");
  back.mutable_training()->set_train_iters(80);
  back.mutable_checkpoint()->set_load(Checkpoints("to-bf16").string());
  const absl::StatusOr<std::string> to_fp32 = Train(back);
  ASSERT_TRUE(to_fp32.ok()) << to_fp32.status();
  EXPECT_THAT(*to_fp32, HasSubstr("fp32 weights come from the master weights"));
}

// Another seed for dropout does not change the order of the samples: an epoch in progress reads
// each sample once.
TEST_F(FlagsTest, FreshRandomNumbersKeepTheSampleOrder) {
  const std::vector<std::string> no_dropout = {"model { size: \"gpt2-tiny\" }"};
  TrainConfig same = From("same-seed", no_dropout);
  ASSERT_TRUE(Train(same).ok()) << Train(same).status();
  TrainConfig other = From("other-seed", no_dropout);
  other.mutable_training()->set_seed(99);
  other.mutable_checkpoint()->set_no_load_rng(true);
  ASSERT_TRUE(Train(other).ok());
  EXPECT_EQ(Losses(RunDir("other-seed"), "step"), Losses(RunDir("same-seed"), "step"));
}

TEST_F(FlagsTest, KeepsTheNewestCheckpoints) {
  TrainConfig config = Config({kGpt2}, "kept");
  config.mutable_checkpoint()->set_save_interval(10);
  config.mutable_checkpoint()->set_max_checkpoint_keep(2);
  config.mutable_training()->set_train_iters(50);
  ASSERT_TRUE(Train(config).ok());
  EXPECT_FALSE(fs::exists(StepDir("kept", 30)));
  EXPECT_TRUE(fs::exists(StepDir("kept", 40)));
  EXPECT_TRUE(fs::exists(StepDir("kept", 50)));
}

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
    config.mutable_training()->set_train_iters(60);
    config.mutable_checkpoint()->set_async_save(async);
    const LogSyncs syncs;
    ASSERT_TRUE(Train(config).ok());
    for (const int64_t step : {20, 40, 60}) {
      const fs::path checkpoint = StepDir(run, step);
      ASSERT_TRUE(fs::exists(checkpoint / "manifest.pb"));
      EXPECT_TRUE(syncs.RecordCameFirst(step, checkpoint.filename())) << checkpoint;
    }
  }
}

TEST_F(FlagsTest, NoCheckpointStartsAfreshOrEnds) {
  TrainConfig config = From("afresh");
  config.mutable_checkpoint()->set_load((root_ / "nowhere").string());
  config.mutable_training()->set_train_iters(2);
  const absl::StatusOr<std::string> notes = Train(config);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, HasSubstr("starting afresh"));
  // It continues from its own checkpoint, not from `load`.
  EXPECT_THAT(*Train(config), HasSubstr("nothing left to train"));
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
  EXPECT_THAT(std::string(refused.message()), HasSubstr("40) than this run starts from (0)"));
}

// An earlier step on request: what was saved later is set aside, so that it neither mixes with the
// new future nor ends the run.
TEST_F(FlagsTest, CkptStepOfTheSameFolderLeavesTheLaterOnesAside) {
  TrainConfig config = From("base");
  config.mutable_checkpoint()->set_ckpt_step(20);
  const absl::StatusOr<std::string> notes = Train(config);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, HasSubstr("(step 20)"));
  EXPECT_THAT(*notes, HasSubstr("set aside as step-00000040.abandoned"));
  EXPECT_TRUE(fs::exists(Checkpoints("base") / "step-00000040.abandoned" / "manifest.pb"));
  EXPECT_TRUE(fs::exists(StepDir("base", 60)));
  EXPECT_EQ(Losses(RunDir("base"), "step").size(), 60u);
}

TEST_F(FlagsTest, AnotherModelIsRefusedNamingEveryDifference) {
  const absl::Status refused =
      Train(From("other-model",
                 {"model { size: \"gpt2-tiny\" num_attention_heads: 1 norm_epsilon: 1e-6 }"}))
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("num_attention_heads"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("norm_epsilon"));
}

// Digests of a checkpoint's tensors by name, which identify their contents.
std::map<std::string, std::string> Digests(const fs::path& checkpoints, int64_t step) {
  std::map<std::string, std::string> digests;
  const auto storage = ckpt::OpenPosixStorage(checkpoints.string());
  EXPECT_TRUE(storage.ok()) << storage.status();
  const absl::StatusOr<ckpt::Manifest> manifest =
      ckpt::ReadManifest(**storage, ckpt::CheckpointDirectory("", step));
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  for (const ckpt::LogicalTensor& tensor : manifest->tensors()) {
    digests[tensor.name()] = tensor.digest().ShortDebugString();
  }
  return digests;
}

// With a rate of 0 the weights stay as they were loaded.
constexpr char kNoChange[] = "optimizer { lr: 0 min_lr: 0 }";

TEST_F(FlagsTest, LoadTensorsTakesWhatMatchesAndLeavesTheRestAsItBegins) {
  TrainConfig fresh = Config({kGpt2, kNoChange}, "fresh");
  fresh.mutable_training()->set_train_iters(1);
  ASSERT_TRUE(Train(fresh).ok());
  TrainConfig some = From("some", {kGpt2, kNoChange});
  some.mutable_training()->set_train_iters(41);
  some.mutable_checkpoint()->set_load_tensors("*.wte.*,transformer.h.?.attn.c_attn.weight");
  const absl::Status loaded = Train(some).status();
  ASSERT_TRUE(loaded.ok()) << loaded;
  const auto saved = Digests(Checkpoints("base"), 40), initial = Digests(Checkpoints("fresh"), 1);
  for (const auto& [name, digest] : Digests(Checkpoints("some"), 41)) {
    if (name.find(".exp_avg") != std::string::npos || name == "lm_head.weight") continue;
    const bool matches =
        name.find(".wte.") != std::string::npos || name.find(".c_attn.weight") != std::string::npos;
    EXPECT_EQ(digest, (matches ? saved : initial).at(name)) << name;
  }
  TrainConfig nothing = From("nothing");
  nothing.mutable_checkpoint()->set_load_tensors("no.such.*");
  const absl::Status none = Train(nothing).status();
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("load_tensors=no.such.*"));
}

TEST_F(FlagsTest, MissingAndUnexpectedTensorsAreErrorsUnlessAllowed) {
  const auto run = [&](const std::string& name, const std::string& layers, bool missing,
                       bool unexpected) {
    TrainConfig config =
        From(name, {kGpt2, kNoChange, absl::StrCat("model { num_layers: ", layers, " }")});
    config.mutable_training()->set_train_iters(41);
    config.mutable_checkpoint()->set_allow_missing(missing);
    config.mutable_checkpoint()->set_allow_unexpected(unexpected);
    return Train(config);
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(run("a", "3", false, false).status()));
  const absl::Status missing = run("b", "3", false, true).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("transformer.h.2.attn.c_attn.weight"));
  const absl::Status unexpected = run("c", "1", true, false).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unexpected)) << unexpected;
  EXPECT_THAT(std::string(unexpected.message()), HasSubstr("transformer.h.1.attn.c_attn.weight"));

  absl::StatusOr<std::string> notes = run("deeper", "3", true, false);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, HasSubstr("not saved, keeps its initial value: transformer.h.2."));
  notes = run("shallower", "1", false, true);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(*notes, HasSubstr("skipped, the model does not have it: transformer.h.1."));
  const auto saved = Digests(Checkpoints("base"), 40);
  for (const std::string name : {"deeper", "shallower"}) {
    const auto loaded = Digests(Checkpoints(name), 41);
    for (const std::string tensor : {"transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"}) {
      EXPECT_EQ(loaded.at(tensor), saved.at(tensor)) << name << " " << tensor;
    }
  }
}

TEST_F(FlagsTest, VerifyLoadComparesDigests) {
  TrainConfig config =
      From("verified", {kGpt2, "parallel { data_parallel_size: 2 zero_stage: 2 }"});
  config.mutable_training()->set_micro_batch_size(1);
  config.mutable_training()->set_train_iters(41);
  config.mutable_checkpoint()->set_verify_load(true);
  const absl::StatusOr<std::string> notes = Train(config);
  ASSERT_TRUE(notes.ok()) << notes.status();
  const size_t tensors =
      Digests(Checkpoints("base"), 40).size() - 1;  // a tied name is not a tensor
  EXPECT_THAT(*notes, HasSubstr(absl::StrCat("digests of ", tensors, " tensors verified")));
}

TEST_F(FlagsTest, OtherDataIsRefused) {
  auto writer = TokenFileWriter::Create((root_ / "other.bin").string(), TokenFormat::kGpt2);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(std::vector<int32_t>(kTokens, 5)).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  TrainConfig config = From("other-data");
  config.mutable_data()->set_train_data_path((root_ / "other.bin").string());
  const absl::Status refused = Train(config).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("fingerprint"));
}

TEST_F(FlagsTest, SameSeedSameBits) {
  TrainConfig again = Config({kGpt2}, "again");
  again.mutable_training()->set_train_iters(40);
  again.mutable_training()->set_threads(3);
  ASSERT_TRUE(Train(again).ok());
  EXPECT_EQ(Losses(RunDir("again"), "step"), Losses(RunDir("base"), "step"));
  ExpectSameTensors("base", "again", 40);
}

}  // namespace
}  // namespace tessera
