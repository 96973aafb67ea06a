// Runs that begin with another framework's checkpoint.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/command.h"
#include "tests/resume/parallel_command.h"
#include "tools/ckpt/commands.h"
#include "trainer/convert/model_rules.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

class ForeignCommandTest : public ParallelCommandTest {
 protected:
  // The model of the fixture `gpt2`.
  void SetUp() override {
    ParallelCommandTest::SetUp();
    Configure(R"pb(
                num_layers: 2
                hidden_size: 16
                num_attention_heads: 2
                max_position_embeddings: 13
                vocab_size: 61
              )pb",
              /*vocab_size=*/61);
  }

  // Runs of this GPT-2, over random tokens.
  void Configure(const std::string& model, int vocab_size) const {
    std::mt19937 random(3);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 5000; ++i) tokens.push_back(static_cast<int32_t>(random() % vocab_size));
    auto writer = TokenFileWriter::Create((root_ / "small.bin").string(), TokenFormat::kGpt2);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(tokens).ok());
    ASSERT_TRUE((*writer)->Close().ok());
    WriteSettings("model { architecture: GPT2 " + model + " }");
  }

  // Those of every run, after those of its model.
  void WriteSettings(const std::string& model) const {
    std::ofstream(root_ / "run.textproto")
        << model << R"pb(
          training { micro_batch_size: 2 global_batch_size: 8 seq_length: 12 threads: 1 }
          parallel { numerics: EXACT exact_tp_shards: 2 }
          optimizer { lr: 1e-3 lr_decay_iters: 100 }
        )pb"
        << "data { train_data_path: \"" << (root_ / "small.bin").string() << "\" }\n";
  }

  static std::string Fixture(const std::string& name) {
    return Runfile("tests/fixtures/pytorch/" + name);
  }

  Result Train(const std::string& run, const std::string& topology, int steps,
               std::vector<std::string> flags) const {
    flags.push_back("--topology=" + topology);
    return Run(Mpirun(topology == "single" ? 1 : 2, Saving(run, steps, std::move(flags))));
  }

  // A folder of llm.c at step 7, whose moments are zero.
  std::string MakeLlmcFolder() const {
    const fs::path folder = root_ / "llmc";
    fs::create_directories(folder);
    fs::copy_file(Fixture("gpt2.model.bin"), folder / "model_00000007.bin");
    std::vector<int32_t> header(256);
    header[0] = 20240527, header[1] = 1, header[2] = 1, header[10] = 7;
    std::string state(reinterpret_cast<const char*>(header.data()), 1024);
    state.append(2 * (fs::file_size(folder / "model_00000007.bin") - 1024), '\0');
    std::ofstream(folder / "state_00000007_00000.bin", std::ios::binary) << state;
    return folder.string();
  }
};

TEST_F(ForeignCommandTest, WeightsInHuggingFacesFormat) {
  const std::string load = "--load=" + Fixture("gpt2.hf");
  const Result refused = Train("refused", "single", 2, {load});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("gpt2.hf (hf) does not tell its step; --finetune takes the "
                                     "weights alone and starts at step 0"));
  const Result llmc = Train("llmc", "single", 2, {"--llmc-filepath=" + Fixture("gpt2.model.bin")});
  ASSERT_EQ(llmc.exit_code, 0) << llmc.err;
  const std::map<int64_t, std::string> expected = Losses("llmc");
  ASSERT_EQ(expected.size(), 2);
  for (const char* topology : {"single", "tp2", "pp2"}) {
    const Result run = Train(topology, topology, 2, {load, "--finetune"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("weights alone, starting at step 0"));
    EXPECT_EQ(Losses(topology), expected) << topology;
  }
}

// Only runs that take the optimizer's state need its file.
TEST_F(ForeignCommandTest, WeightsBesideADamagedFileOfTheOptimizer) {
  const fs::path folder = root_ / "gpt2.hf";
  fs::copy(Fixture("gpt2.hf"), folder, fs::copy_options::recursive);
  std::ofstream(folder / "optimizer.pt", std::ios::binary) << "damaged";
  const std::string load = "--load=" + folder.string();
  const Result refused =
      Train("refused", "single", 9, {load, "--ckpt-step=7", "--consumed-samples=16"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("gpt2.hf/optimizer.pt: "));
  const Result finetune = Train("finetune", "single", 1, {load, "--finetune"});
  ASSERT_EQ(finetune.exit_code, 0) << finetune.err;
  EXPECT_THAT(finetune.out + finetune.err,
              HasSubstr("gpt2.hf: Left out: " + folder.string() + "/optimizer.pt: "));
  const Result fresh = Train("fresh", "single", 8,
                             {load, "--ckpt-step=7", "--consumed-samples=16", "--no-load-optim"});
  EXPECT_EQ(fresh.exit_code, 0) << fresh.err;
}

TEST_F(ForeignCommandTest, ARunOfLlmcGoesOn) {
  const std::string load = "--load=" + MakeLlmcFolder();
  const Result refused = Train("refused", "single", 9, {load});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("does not tell its position in the data; "
                                     "--load-content=model,optimizer,scheduler reads the data "
                                     "from the beginning"));
  const std::string content = "--load-content=model,optimizer,scheduler";
  for (const char* topology : {"single", "tp2"}) {
    const Result run = Train(topology, topology, 9, {load, content});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("llmc (step 7)"));
    EXPECT_THAT(run.out, HasSubstr("step 8/9 | loss"));
  }
  EXPECT_EQ(Losses("tp2"), Losses("single"));
  // What it saves is a checkpoint like any other.
  const Result resumed = Train("single", "pp2", 11, {});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("step 10/11 | loss"));
}

// The universal checkpoint is DeepSpeed's own conversion of that of three ranks.
TEST_F(ForeignCommandTest, ARunOfDeepSpeedGoesOn) {
  Configure(R"pb(
              num_layers: 2
              hidden_size: 8
              num_attention_heads: 2
              max_position_embeddings: 12
              vocab_size: 29
            )pb",
            /*vocab_size=*/29);
  const std::string content = "--load-content=model,optimizer,scheduler";
  const auto load = [](const std::string& layout) {
    return "--load=" + Runfile("tests/interop/deepspeed/" + layout);
  };
  const Result universal = Train("universal", "single", 5, {load("universal"), content});
  ASSERT_EQ(universal.exit_code, 0) << universal.err;
  EXPECT_THAT(universal.out, HasSubstr("deepspeed/universal (step 3)"));
  const std::map<int64_t, std::string> expected = Losses("universal");
  ASSERT_EQ(expected.size(), 2);
  for (const char* topology : {"single", "tp2", "pp2"}) {
    const Result run = Train(topology, topology, 5, {load("zero2_bf16"), content});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(Losses(topology), expected) << topology;
  }
  const Result stage3 = Train("stage3", "single", 5, {load("zero3"), content});
  ASSERT_EQ(stage3.exit_code, 0) << stage3.err;
  const Result stage1 = Train("stage1", "tp2", 5, {load("zero1"), content});
  ASSERT_EQ(stage1.exit_code, 0) << stage1.err;
  EXPECT_EQ(Losses("stage1").size(), 2);
}

// As trainers name the folders of their steps. The older one has another model.
TEST_F(ForeignCommandTest, TheNewestCheckpointOfARun) {
  const fs::path folder = root_ / "theirs";
  fs::create_directories(folder / "checkpoint-11");  // never finished
  fs::copy(Fixture("gpt2.hf"), folder / "checkpoint-10");
  fs::copy(Fixture("llama3_tied.hf"), folder / "checkpoint-9");
  ASSERT_EQ(Train("direct", "single", 2, {"--load=" + Fixture("gpt2.hf"), "--finetune"}).exit_code,
            0);
  const std::string load = "--load=" + folder.string();
  for (const char* topology : {"single", "tp2"}) {
    const Result newest = Train(topology, topology, 2, {load, "--finetune"});
    ASSERT_EQ(newest.exit_code, 0) << newest.err;
    EXPECT_THAT(newest.out, HasSubstr("theirs is checkpoint-10."));
    EXPECT_THAT(newest.out, HasSubstr("a known format: checkpoint-11."));
    EXPECT_EQ(Losses(topology), Losses("direct")) << topology;
  }
  std::ostringstream out, err;
  ASSERT_EQ(ckpt::RunCkpt({"inspect", folder.string()}, {out, err, nullptr}), ckpt::kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("theirs/checkpoint-10\n"));
  EXPECT_THAT(out.str(), HasSubstr("note        The newest checkpoint in "));
  // A run that would resume does not start afresh instead.
  const Result resumed = Train("resumed", "single", 2, {load});
  EXPECT_EQ(resumed.exit_code, 1);
  EXPECT_THAT(resumed.err, HasSubstr("theirs/checkpoint-10 (hf) does not tell its step"));
  const Result older = Train("older", "single", 2, {load, "--finetune", "--ckpt-step=9"});
  EXPECT_NE(older.exit_code, 0);
  EXPECT_THAT(older.err, HasSubstr("architecture: saved LLAMA3, wanted GPT2"));
  const Result none = Train("none", "single", 2, {load, "--finetune", "--ckpt-step=8"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("theirs: no checkpoint of step 8; the newest one is "));
}

TEST_F(ForeignCommandTest, OtherModelsAreRefused) {
  const Result run =
      Train("run", "single", 2, {"--load=" + Fixture("llama3_tied.hf"), "--finetune"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("architecture: saved LLAMA3, wanted GPT2"));
}

TEST_F(ForeignCommandTest, LoadFormatSettlesTheFormat) {
  const std::string load = "--load=" + Fixture("gpt2.hf");
  ASSERT_EQ(Train("found", "single", 2, {load, "--finetune"}).exit_code, 0);
  for (const std::string flag : {"--load-format=hf", "--ckpt-type=hf"}) {
    const Result run = Train(flag, "single", 2, {load, "--finetune", flag});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(Losses(flag), Losses("found"));
  }
  const Result llmc = Train("llmc", "single", 2, {load, "--finetune", "--load-format=llmc"});
  EXPECT_EQ(llmc.exit_code, 1);
  EXPECT_THAT(llmc.err, HasSubstr("gpt2.hf: no checkpoint in the format llmc"));
  const Result ours = Train("ours", "single", 2, {load, "--finetune", "--load-format=tessera"});
  EXPECT_EQ(ours.exit_code, 1);
  EXPECT_THAT(ours.err, HasSubstr("load: no checkpoint in "));
  const Result other = Train("other", "single", 2, {load, "--finetune", "--load-format=other"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("load_format=other: expected one of tessera, "));
  for (const char* format : {"hf", "llmc", "torch", "dcp"}) {
    EXPECT_THAT(other.err, HasSubstr(std::string(" ") + format));
  }
}

TEST_F(ForeignCommandTest, TheModelIsThatOfTheFiles) {
  const std::string hf = "--load=" + Fixture("gpt2.hf");
  ASSERT_EQ(Train("described", "single", 2, {hf, "--finetune"}).exit_code, 0);
  WriteSettings("");
  for (const auto& [run, file] :
       {std::pair("hf", "gpt2.hf"), std::pair("llmc", "gpt2.model.bin")}) {
    const Result result = Train(run, "tp2", 2, {"--load=" + Fixture(file), "--finetune"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Losses(run), Losses("described"));
  }
  // A run that has begun, or another one's checkpoint, tells its model, too.
  const Result resumed = Train("hf", "single", 4, {});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("step 4/4 | loss"));
  const Result mine =
      Train("mine", "single", 2, {"--load=" + Checkpoints("described").string(), "--finetune"});
  ASSERT_EQ(mine.exit_code, 0) << mine.err;

  const Result refused = Train("refused", "single", 2, {hf, "--finetune", "--num-layers=3"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("num_layers=3, but the model in " + Fixture("gpt2.hf") +
                                     " has num_layers=2"));
  const Result llama =
      Train("llama", "single", 2, {"--load=" + Fixture("llama3_tied.hf"), "--finetune"});
  ASSERT_EQ(llama.exit_code, 0) << llama.err;
}

TEST_F(ForeignCommandTest, AConvertedRunGoesOn) {
  ASSERT_EQ(Train("whole", "single", 4, {}).exit_code, 0);
  ASSERT_EQ(Train("begun", "tp2", 2, {}).exit_code, 0);
  std::map<int64_t, std::string> expected = Losses("whole");
  expected.erase(expected.begin(), expected.upper_bound(2));
  for (const std::string format : {"torch", "dcp"}) {
    const std::string converted = (root_ / (format + ".converted")).string();
    std::ostringstream out, err;
    ASSERT_EQ(ckpt::RunCkpt({"convert", Checkpoints("begun").string(), converted, "--to=" + format},
                            {out, err, nullptr}, &RegisteredModelRules()),
              ckpt::kExitOk)
        << err.str();
    const Result run = Train(format, "tp2", 4, {"--load=" + converted});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("continuing after 16 samples of this run's own order"));
    EXPECT_EQ(Losses(format), expected);
  }
}

TEST_F(ForeignCommandTest, ConsumedSamplesStatesThePositionInTheData) {
  const std::string folder = MakeLlmcFolder();
  WriteSettings("");
  const std::string load = "--load=" + folder, flag = "--consumed-samples=16";
  for (const char* topology : {"single", "tp2"}) {
    const Result run = Train(topology, topology, 9, {load, flag});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("continuing after 16 samples of this run's own order"));
  }
  const std::map<int64_t, std::string> expected = Losses("single");
  ASSERT_EQ(expected.size(), 2);
  EXPECT_EQ(Losses("tp2"), expected);
  ASSERT_EQ(
      Train("begin", "single", 9, {load, "--load-content=model,optimizer,scheduler"}).exit_code, 0);
  EXPECT_NE(Losses("begin"), expected) << "other samples";

  // What it saves knows the rest.
  const auto saved = ckpt::OpenStorage(Checkpoints("single").string());
  ASSERT_TRUE(saved.ok()) << saved.status();
  const auto manifest = ckpt::ReadManifest(**saved, "step-00000009");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->trainer().step(), 9);
  EXPECT_EQ(manifest->trainer().data().consumed_samples(), 16 + 2 * 8);
  EXPECT_NE(manifest->trainer().data().fingerprint(), 0);
  const Result resumed = Train("single", "single", 11, {load, flag});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("step 10/11 | loss"));
  const Result refused =
      Train("refused", "single", 13, {"--load=" + Checkpoints("tp2").string(), flag});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("tells its position in the data, 32 samples, which differs "
                                     "from consumed_samples=16"));

  // A copy in this program's format knows as little, until the position stands in its manifest.
  const std::string copy = (root_ / "copy").string();
  std::ostringstream out, err;
  ASSERT_EQ(ckpt::RunCkpt({"convert", folder, copy, "--to=tessera"}, {out, err, nullptr},
                          &RegisteredModelRules()),
            0)
      << err.str();
  const Result unknown = Train("unknown", "single", 9, {"--load=" + copy});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("step-00000007 does not tell its position in the data"));
  EXPECT_THAT(unknown.err, HasSubstr("--consumed-samples=N continues after N samples"));
  ASSERT_EQ(Train("copied", "single", 9, {"--load=" + copy, flag}).exit_code, 0);
  EXPECT_EQ(Losses("copied"), expected);
  const std::string file = copy + "/step-00000007/manifest.pb";
  auto known = ckpt::DecodeManifest(ReadFile(file));
  ASSERT_TRUE(known.ok()) << known.status();
  *known->mutable_trainer()->mutable_data() = manifest->trainer().data();
  known->mutable_trainer()->mutable_data()->set_consumed_samples(16);
  const auto bytes = ckpt::EncodeManifest(*known);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  std::ofstream(file, std::ios::binary) << *bytes;
  ASSERT_EQ(Train("known", "single", 9, {"--load=" + copy}).exit_code, 0);
  EXPECT_EQ(Losses("known"), expected);
}

TEST_F(ForeignCommandTest, CkptStepStatesTheStep) {
  const Result run = Train("run", "single", 9,
                           {"--load=" + Fixture("gpt2.hf"), "--ckpt-step=7",
                            "--consumed-samples=16", "--no-load-optim"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("step 8/9 | loss"));
  const Result refused =
      Train("refused", "single", 9, {"--load=" + MakeLlmcFolder(), "--ckpt-step=6"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("is a single checkpoint, of step 7"));
}

TEST_F(ForeignCommandTest, StateDictsOfTorchInTheNamesOfTransformers) {
  ASSERT_EQ(Train("hf", "single", 2, {"--load=" + Fixture("gpt2.hf"), "--finetune"}).exit_code, 0);
  // A file alone, with the model of the flags.
  const std::string wrapped = Runfile("tests/interop/state_dict/gpt2_wrapped.pt");
  const Result file = Train("file", "tp2", 2, {"--load=" + wrapped, "--finetune"});
  ASSERT_EQ(file.exit_code, 0) << file.err;
  EXPECT_EQ(Losses("file"), Losses("hf"));
  const Result other =
      Train("other", "single", 2, {"--load=" + wrapped, "--finetune", "--num-layers=3"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("gpt2_wrapped.pt (torch): Names are those of the files: the "
                                   "model's model.module.transformer.h.2."));
  // A folder with config.json.
  WriteSettings("");
  const Result folder = Train("folder", "single", 2,
                              {"--load=" + Runfile("tests/interop/state_dict/gpt2"), "--finetune"});
  ASSERT_EQ(folder.exit_code, 0) << folder.err;
  EXPECT_EQ(Losses("folder"), Losses("hf"));
}

// The model of the fixtures `titan` and `infinitrain/llama3`.
constexpr char kLlama[] = R"pb(
  model {
    architecture: LLAMA3
    num_layers: 2
    hidden_size: 16
    num_attention_heads: 4
    num_query_groups: 2
    ffn_hidden_size: 56
    max_position_embeddings: 32
    vocab_size: 61
    rotary_base: 50
    rope_scaling_factor: 8
    rope_scaling_original_max_position_embeddings: 8
    untie_embeddings_and_output_weights: true
  }
)pb";

// Weights, moments and step of DCP in Meta's names, under any topology.
TEST_F(ForeignCommandTest, ARunOfTorchtitanGoesOn) {
  WriteSettings(kLlama);
  const std::string load = "--load=" + Runfile("tests/interop/state_dict/titan");
  for (const char* topology : {"single", "tp2", "pp2"}) {
    const Result run = Train(topology, topology, 5, {load, "--consumed-samples=24"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("titan (step 3)"));
    EXPECT_EQ(Losses(topology).size(), 2);
    EXPECT_EQ(Losses(topology), Losses("single")) << topology;
  }
}

// The same state, with its position in the data, in InfiniTrain's files.
TEST_F(ForeignCommandTest, ARunOfInfiniTrainGoesOn) {
  WriteSettings(kLlama);
  const std::string titan = "--load=" + Runfile("tests/interop/state_dict/titan");
  ASSERT_EQ(Train("titan", "single", 5, {titan, "--consumed-samples=24"}).exit_code, 0);
  EXPECT_EQ(Losses("titan").size(), 2);
  const std::string folder = "tests/interop/infinitrain/";
  const std::string load = "--load=" + Runfile(folder + "llama3/checkpoint_step_000003");
  for (const char* topology : {"tp2", "pp2"}) {
    const Result run = Train(topology, topology, 5, {load});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("checkpoint_step_000003 (step 3)"));
    EXPECT_EQ(Losses(topology), Losses("titan")) << topology;
  }
  // Moments that nothing gives to their parameters.
  const std::string numbered =
      "--load=" + Runfile(folder + "llama3_numbered/checkpoint_step_000003");
  const Result refused = Train("refused", "single", 5, {numbered, "--consumed-samples=24"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("--no-load-optim"));
  const Result fresh =
      Train("fresh", "single", 5, {numbered, "--consumed-samples=24", "--no-load-optim"});
  EXPECT_EQ(fresh.exit_code, 0) << fresh.err;
}

// The model is that of the files.
TEST_F(ForeignCommandTest, HybridParallelRunsOfPaddleNlpGoOn) {
  Configure("", /*vocab_size=*/32);
  WriteSettings("");
  const std::string folder = "tests/interop/paddle/testdata/";
  const auto train = [&](const std::string& layout, const char* topology) {
    return Train(layout + topology, topology, 5,
                 {"--load=" + Runfile(folder + layout), "--consumed-samples=24"});
  };
  for (const char* topology : {"tp2", "pp2"}) {
    const Result run = train("mp2_pp2_sharding2_v2_meta", topology);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("mp2_pp2_sharding2_v2_meta (step 3)"));
  }
  ASSERT_EQ(train("dp", "single").exit_code, 0);
  const std::map<int64_t, std::string> expected = Losses("dpsingle");
  EXPECT_EQ(expected.size(), 2);
  EXPECT_EQ(Losses("mp2_pp2_sharding2_v2_metatp2"), expected);
  EXPECT_EQ(Losses("mp2_pp2_sharding2_v2_metapp2"), expected);
}

TEST_F(ForeignCommandTest, ARunOfInternEvoGoesOn) {
  Configure("", /*vocab_size=*/20);
  WriteSettings("");
  const std::string folder = "tests/interop/internevo/", flag = "--load-format=internevo";
  const auto train = [&](const std::string& layout, const char* topology) {
    return Train(layout + topology, topology, 5,
                 {"--load=" + Runfile(folder + layout), flag, "--consumed-samples=24"});
  };
  for (const char* topology : {"tp2", "pp2"}) {
    const Result run = train("tp2_pp2_zo2", topology);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("tp2_pp2_zo2 (step 3)"));
  }
  ASSERT_EQ(train("tp1", "single").exit_code, 0);
  const std::map<int64_t, std::string> expected = Losses("tp1single");
  EXPECT_EQ(expected.size(), 2);
  EXPECT_EQ(Losses("tp2_pp2_zo2tp2"), expected);
  EXPECT_EQ(Losses("tp2_pp2_zo2pp2"), expected);
}

}  // namespace
}  // namespace tessera
