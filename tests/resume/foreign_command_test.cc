// Runs that begin with another framework's checkpoint.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/testing.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/audit_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kContent[] = "--load-content=model,optimizer,scheduler";

class ForeignCommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    UseModel(kGpt2);
  }

  // Short runs of this model, in EXACT numerics, on ids that every model here has.
  void UseModel(const std::string& model, int vocabulary = 20) const {
    WriteRandomTokens(root_ / "small.bin", vocabulary, 5000);
    WriteSettings(model.empty() ? "" : "model {" + model + "}", /*seq_length=*/12,
                  "parallel { numerics: EXACT exact_tp_shards: 2 }", "small.bin");
  }

  static std::string Fixture(const std::string& name) {
    return Runfile("tests/interop/pytorch/" + name);
  }

  // On as many processes as the topology needs.
  Result TrainOn(const std::string& topology, const std::string& run, int steps,
                 const Words& flags) const {
    const int ranks = topology == "single" ? 1 : topology == "dp2_zero2_tp2_pp2" ? 8 : 2;
    return Run(Mpirun(ranks, Saving(run, steps, Joined(flags, {"--topology=" + topology}))));
  }
  // The losses of a run that ends well and whose output says something.
  std::map<int64_t, std::string> LossesOn(const std::string& topology, const std::string& run,
                                          int steps, const Words& flags,
                                          const std::string& said = "") const {
    const Result result = TrainOn(topology, run, steps, flags);
    EXPECT_EQ(result.exit_code, 0) << run << ": " << result.err;
    EXPECT_THAT(result.out, HasSubstr(said));
    return Losses(run);
  }
  void ExpectRefused(const Words& flags, int exit_code, const std::string& said) const {
    const Result result = MustTrain("refused", 9, flags, exit_code);
    EXPECT_THAT(result.err, HasSubstr(said));
  }
  void Convert(const std::string& from, const std::string& to, const std::string& format) const {
    std::ostringstream out, err;
    ASSERT_EQ(ckpt::RunCkpt({"convert", from, to, "--to=" + format}, {out, err, nullptr}),
              ckpt::kExitOk)
        << err.str();
  }

  // The newest checkpoint of a run still has what the framework calls each parameter.
  void ExpectForeignNames(const std::string& run) const {
    ASSERT_OK_AND_ASSIGN(const auto folder,
                         ckpt::CheckpointFolder::Open(Checkpoints(run).string()));
    ASSERT_OK_AND_ASSIGN(const auto saved, folder.Latest());
    EXPECT_GT(saved.manifest().optimizer().parameters_size(), 0);
    for (const ckpt::OptimizerParameter& parameter : saved.manifest().optimizer().parameters()) {
      EXPECT_FALSE(parameter.foreign_names().empty()) << parameter.parameter();
    }
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
    WriteFile(folder / "state_00000007_00000.bin", state);
    return folder.string();
  }

  // The model of the fixture `gpt2`.
  static constexpr char kGpt2[] =
      "architecture: GPT2 num_layers: 2 hidden_size: 16 num_attention_heads: 2 "
      "max_position_embeddings: 13 vocab_size: 61";
};

// One state in two layouts of one framework, or of two. A run goes on from either with the same
// losses: on one process from the one that is in one piece, on several from the other.
struct Format {
  std::string name;
  std::string model;  // empty: the files know it
  std::string whole;  // data dependencies
  std::string parts;
  int step;
  Words flags = {};        // of both
  Words whole_flags = {};  // where only this layout lacks something
};

std::ostream& operator<<(std::ostream& out, const Format& format) { return out << format.name; }

const std::string kInterop = "tests/interop/";
const std::string kMegatronSizes =
    "num_layers: 2 hidden_size: 8 num_attention_heads: 4 max_position_embeddings: 13 "
    "vocab_size: 61 ";
const std::string kMegatronLlama =
    kMegatronSizes +
    "architecture: LLAMA3 ffn_hidden_size: 24 num_query_groups: 2 rotary_base: 10000 "
    "use_rope_scaling: false untie_embeddings_and_output_weights: true";
const std::string kTitan =
    "architecture: LLAMA3 num_layers: 2 hidden_size: 16 num_attention_heads: 4 "
    "num_query_groups: 2 ffn_hidden_size: 56 max_position_embeddings: 32 vocab_size: 61 "
    "rotary_base: 50 rope_scaling_factor: 8 rope_scaling_original_max_position_embeddings: 8 "
    "untie_embeddings_and_output_weights: true";

std::vector<Format> Formats() {
  const Words consumed = {"--consumed-samples=24"}, content = {kContent};
  return {// Weights, moments and step of DCP in Meta's names, and InfiniTrain's files, which also
          // have the position in the data.
          {"TorchtitanAndInfiniTrain",
           kTitan,
           kInterop + "state_dict/titan",
           kInterop + "infinitrain/llama3/checkpoint_step_000003",
           3,
           {},
           consumed},
          {"MegatronLlama3", kMegatronLlama, kInterop + "megatron/llama3_untied_single",
           kInterop + "megatron/llama3_untied_dp2_tp2_pp2", 7, content}};
}

class FormatTest : public ForeignCommandTest, public ::testing::WithParamInterface<Format> {};

TEST_P(FormatTest, ARunGoesOn) {
  const Format& format = GetParam();
  UseModel(format.model);
  const int last = format.step + 2;
  const std::string said = "(step " + std::to_string(format.step) + ")";
  const auto expected = LossesOn(
      "single", "whole", last,
      Joined(Joined(format.flags, format.whole_flags), {"--load=" + Runfile(format.whole)}), said);
  ASSERT_EQ(expected.size(), 2u);
  const bool megatron = format.name.starts_with("Megatron");
  for (const std::string topology : {"tp2", megatron ? "dp2_zero2_tp2_pp2" : "pp2"}) {
    EXPECT_EQ(LossesOn(topology, topology, last,
                       Joined(format.flags, {"--load=" + Runfile(format.parts)}), said),
              expected)
        << topology;
    ExpectForeignNames(topology);
  }
  // They outlast the run's own checkpoints, too.
  LossesOn("single", "whole", last + 1, {});
  ExpectForeignNames("whole");
}

INSTANTIATE_TEST_SUITE_P(Formats, FormatTest, ::testing::ValuesIn(Formats()),
                         [](const auto& info) { return info.param.name; });

TEST_F(ForeignCommandTest, WeightsInHuggingFacesFormat) {
  const std::string load = "--load=" + Fixture("gpt2.hf");
  ExpectRefused({load}, 1,
                "gpt2.hf (hf) does not tell its step; --finetune takes the weights alone and "
                "starts at step 0");
  const auto expected =
      LossesOn("single", "llmc", 2, {"--llmc-filepath=" + Fixture("gpt2.model.bin")});
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_EQ(LossesOn("tp2", "tp2", 2, {load, "--finetune"}, "weights alone, starting at step 0"),
            expected);
  // State dicts of torch in the same names: a file alone, and a folder with config.json.
  const std::string wrapped = Runfile("tests/interop/state_dict/gpt2_wrapped.pt");
  EXPECT_EQ(LossesOn("single", "file", 2, {"--load=" + wrapped, "--finetune"}), expected);
  ExpectRefused({"--load=" + wrapped, "--finetune", "--num-layers=3"}, 1,
                "gpt2_wrapped.pt (torch) does not have this model's tensors. Names are those "
                "of the files: the model's "
                "model.module.transformer.h.2.");
  UseModel("");
  EXPECT_EQ(LossesOn("single", "folder", 2,
                     {"--load=" + Runfile("tests/interop/state_dict/gpt2"), "--finetune"}),
            expected);
}

// Only runs that take the optimizer's state need its file.
TEST_F(ForeignCommandTest, WeightsBesideADamagedFileOfTheOptimizer) {
  const fs::path folder = root_ / "gpt2.hf";
  fs::copy(Fixture("gpt2.hf"), folder, fs::copy_options::recursive);
  WriteFile(folder / "optimizer.pt", "damaged");
  const Words at_step_7 = {"--load=" + folder.string(), "--ckpt-step=7", "--consumed-samples=16"};
  ExpectRefused(at_step_7, 1, "gpt2.hf/optimizer.pt: ");
  const Result finetune = MustTrain("finetune", 1, {at_step_7[0], "--finetune"});
  EXPECT_THAT(finetune.out + finetune.err,
              HasSubstr("gpt2.hf: Left out: " + folder.string() + "/optimizer.pt: "));
  const Result fresh = MustTrain("fresh", 8, Joined(at_step_7, {"--no-load-optim"}));
  EXPECT_THAT(fresh.out, HasSubstr("step 8/8 | loss"));
}

// Files of InfiniTrain's own program, and its losses at the next two steps.
class RealInfiniTrainTest : public ForeignCommandTest {
 protected:
  // Returns the loss of a step on its samples, which are the 128 tokens after those of the steps
  // before, and the message of the run.
  double LossAt(int step, const Words& load, const std::string& said) const {
    std::string tokens = ReadFile(Runfile(kInterop + "infinitrain/tiny.bin"));
    tokens.replace(8, 4, std::string("\x81\0\0\0", 4));  // their number: 4 samples and a target
    tokens = tokens.substr(0, 1024) + tokens.substr(1024 + 2 * 128 * (step - 1), 2 * 129);
    WriteFile(root_ / "step.bin", tokens);
    WriteSettings(
        "model { architecture: GPT2 num_layers: 2 hidden_size: 48 num_attention_heads: 12 "
        "max_position_embeddings: 32 vocab_size: 512 }",
        /*seq_length=*/32, "", "step.bin");
    const std::string run = "step" + std::to_string(step);
    const Result result = MustTrain(
        run, step,
        Joined(load, {kContent, "--global-batch-size=4", "--weight-decay=0", "--clip-grad=0",
                      "--lr-decay-style=constant", "--save-interval=1"}));
    EXPECT_THAT(result.out, HasSubstr(said));
    for (const nlohmann::json& record : Records(run)) {
      if (record["kind"] == "step" && record["step"] == step) return record["loss"];
    }
    return 0;
  }
};

TEST_F(RealInfiniTrainTest, AdamGoesOnWithItsMoments) {
  EXPECT_NEAR(LossAt(7, {"--load=" + Runfile(kInterop + "infinitrain/gpt2_adam")},
                     "the shapes of the tensors decide"),
              6.221486, 3e-6);
  EXPECT_NEAR(LossAt(8, {Load("step7")}, "(step 7)"), 6.221395, 3e-6);
}

TEST_F(RealInfiniTrainTest, ASgdHasNothingToGoOnWith) {
  EXPECT_NEAR(LossAt(7, {"--load=" + Runfile(kInterop + "infinitrain/gpt2_sgd")},
                     "no optimizer state was saved: the optimizer begins afresh"),
              6.238300, 3e-6);
}

// Moments that nothing assigns to their parameters are an error where they are wanted.
TEST_F(ForeignCommandTest, MomentsWithoutNamesAreRefused) {
  UseModel(kTitan);
  const fs::path folder = root_ / "numbered";
  fs::copy(Runfile(kInterop + "infinitrain/llama3/checkpoint_step_000003"), folder);
  fs::permissions(folder, fs::perms::owner_all);
  fs::remove(folder / "optimizer.ckpt");
  fs::copy(Runfile(kInterop + "infinitrain/gpt2_adam/optimizer.ckpt"), folder);
  fs::remove(folder / "trainer_state.json");
  const Words flags = {"--consumed-samples=24", "--load=" + folder.string()};
  ExpectRefused(flags, 1, "--no-load-optim");
  MustTrain("fresh", 8, Joined(flags, {"--no-load-optim"}));
}

// Trainers name the folders of their steps like this. The older one has another model.
TEST_F(ForeignCommandTest, TheNewestCheckpointOfARun) {
  const fs::path folder = root_ / "theirs";
  fs::create_directories(folder / "checkpoint-11");  // never finished
  fs::copy(Fixture("gpt2.hf"), folder / "checkpoint-10");
  fs::copy(Fixture("llama3_tied.hf"), folder / "checkpoint-9");
  MustTrain("direct", 2, {"--load=" + Fixture("gpt2.hf"), "--finetune"});
  const std::string load = "--load=" + folder.string();
  const Result newest = TrainOn("tp2", "newest", 2, {load, "--finetune"});
  ASSERT_EQ(newest.exit_code, 0) << newest.err;
  EXPECT_THAT(newest.out, HasSubstr("theirs is checkpoint-10."));
  EXPECT_THAT(newest.out, HasSubstr("a known format: checkpoint-11."));
  EXPECT_EQ(Losses("newest"), Losses("direct"));
  std::ostringstream out, err;
  ASSERT_EQ(ckpt::RunCkpt({"inspect", folder.string()}, {out, err, nullptr}), ckpt::kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("theirs/checkpoint-10\n"));
  // A run that would resume does not start afresh instead.
  ExpectRefused({load}, 1, "theirs/checkpoint-10 (hf) does not tell its step");
  ExpectRefused({load, "--finetune", "--ckpt-step=9"}, 1,
                "architecture: saved LLAMA3, wanted GPT2");
  ExpectRefused({load, "--finetune", "--ckpt-step=8"}, 1,
                "theirs: no checkpoint of step 8; the newest one is ");
}

// All of an InternEvo checkpoint, under InternEvo's own names, and without a flag.
TEST_F(ForeignCommandTest, InternEvosSettingsLoadItsSamplerAndScheduler) {
  UseModel("");
  const auto settings = [&](const std::string& folder) {
    const fs::path path = root_ / "internevo.textproto";
    std::ofstream(path) << ReadFile(root_ / "run.textproto") << "checkpoint { load_ckpt_info { "
                        << "path: \"" << folder
                        << "\" content: \"all\" ckpt_type: \"internlm\" } checkpoint_every: 1 "
                        << "save_ckpt_folder: \"" << Checkpoints("all").string() << "\" }\n";
    return "--config=" + path.string();
  };
  const std::string folder = Runfile(kInterop + "internevo/zo2");
  const Result all = MustRun({Runfile("trainer/app/train"), settings(folder), "--train-iters=5",
                              "--run-dir=" + RunDir("all").string()});
  EXPECT_THAT(all.out, HasSubstr("24 consumed samples of 24 tokens are 48 of 12"));
  EXPECT_THAT(all.out, HasSubstr("continuing after 48 samples of this run's own order"));
  EXPECT_THAT(all.out, HasSubstr("step 4/5 "));
  EXPECT_EQ(Records("all").back()["consumed_samples"], 48 + 2 * 8);
  EXPECT_EQ(Steps("all").size(), 2u);
  // Without the sampler's file, a flag states the same.
  const fs::path copy = root_ / "copy";
  fs::copy(folder, copy, fs::copy_options::recursive);
  fs::permissions(copy, fs::perms::owner_all);
  fs::remove(copy / "sampler.pt");
  MustTrain("stated", 5, {"--load=" + copy.string(), "--consumed-samples=48"});
  EXPECT_EQ(Losses("stated"), Losses("all"));
  ExpectRefused({"--load=" + copy.string()}, 1, "does not tell its position in the data");
}

TEST_F(ForeignCommandTest, LlamaIsInternEvosNameOfTheFilesOfMetasRanks) {
  UseModel("");
  const std::string load = "--load=" + Runfile(kInterop + "state_dict/llama_ranks");
  MustTrain("found", 2, {load, "--finetune"});
  MustTrain("named", 2, {load, "--load-content=model", "--ckpt-type=llama"});
  EXPECT_EQ(Losses("named"), Losses("found"));
  ExpectRefused({load, "--load-content=model", "--load-format=internlm", "--size=llama3-tiny"}, 1,
                "no checkpoint in the format internlm");
}

// InternEvo's name of its own format.
TEST_F(ForeignCommandTest, InternlmIsTheFormatOfWhatIsThere) {
  UseModel("");
  const std::string load = "--load=" + Runfile(kInterop + "state_dict/llama_ranks");
  MustTrain("found", 2, {load, "--finetune"});
  MustTrain("named", 2, {load, "--load-content=model", "--ckpt-type=internlm"});
  EXPECT_EQ(Losses("named"), Losses("found"));
  MustTrain("continued", 4, {"--load=" + Checkpoints("found").string(), "--ckpt-type=internlm"});
  MustTrain("undisturbed", 4, {load, "--finetune"});
  EXPECT_EQ(Losses("continued").at(4), Losses("undisturbed").at(4));
}

// A PaddleNLP checkpoint of the optimizer alone, which does not name its parameters.
TEST_F(ForeignCommandTest, ParameterToStructuredNameCompletesPaddlesFiles) {
  UseModel("");
  const std::string whole = Runfile(kInterop + "paddle/testdata/sharding2_v2_meta");
  const fs::path copy = root_ / "copy";
  fs::copy(whole, copy, fs::copy_options::recursive);
  fs::permissions(copy, fs::perms::owner_all);
  const nlohmann::json meta = nlohmann::json::parse(ReadFile(copy / "model_meta.json"));
  nlohmann::json names;
  for (const auto& [structured, name] :
       meta["sharding_metas"]["tp00_pp00"]["structure_name_mapping"].items()) {
    names[name.get<std::string>()] = structured;
  }
  WriteFile(root_ / "names.json", names.dump());
  for (const char* file :
       {"model_meta.json", "model_state.shard00.pdparams", "model_state.shard01.pdparams"}) {
    ASSERT_TRUE(fs::remove(copy / file)) << file;
  }
  const std::string consumed = "--consumed-samples=24", load = "--load=" + copy.string();
  ExpectRefused({load, consumed}, 2, "--parameter-to-structured-name, would settle it");
  const std::string flag = "--parameter-to-structured-name=" + (root_ / "names.json").string();
  const auto expected = LossesOn("single", "whole", 5, {"--load=" + whole, consumed});
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_EQ(LossesOn("tp2", "named", 5, {load, consumed, flag}, "(step 3)"), expected);
  // A replay that begins with the run's own checkpoint needs no names.
  const Result audit = MustRun(AuditCommand(RunDir("named"), {"--bisect", "--topology=single"}));
  EXPECT_THAT(audit.out, HasSubstr("all 2 steps from the beginning to step 5 follow"));
}

TEST_F(ForeignCommandTest, LoadFormatSettlesTheFormat) {
  const std::string load = "--load=" + Fixture("gpt2.hf");
  MustTrain("found", 2, {load, "--finetune"});
  for (const std::string flag : {"--load-format=hf", "--ckpt-type=hf", "--ckpt-type=hf_llama"}) {
    MustTrain(flag, 2, {load, "--finetune", flag});
    EXPECT_EQ(Losses(flag), Losses("found"));
  }
  ExpectRefused({load, "--finetune", "--load-format=llmc"}, 1,
                "gpt2.hf holds no checkpoint in the format llmc: it holds config.json");
  ExpectRefused({load, "--finetune", "--load-format=tessera"}, 1,
                "gpt2.hf holds no checkpoint in the format tessera");
  ExpectRefused({load, "--finetune", "--load-format=other"}, 2,
                "load_format=other: expected one of tessera, ");
}

TEST_F(ForeignCommandTest, TheModelIsThatOfTheFiles) {
  const std::string hf = "--load=" + Fixture("gpt2.hf");
  MustTrain("described", 2, {hf, "--finetune"});
  UseModel("");
  for (const std::string file : {"gpt2.hf", "gpt2.model.bin"}) {
    EXPECT_EQ(LossesOn("tp2", file, 2, {"--load=" + Fixture(file), "--finetune"}),
              Losses("described"));
  }
  const std::string gguf = (root_ / "gpt2.gguf").string();
  Convert(Fixture("gpt2.hf"), gguf, "gguf");
  EXPECT_EQ(LossesOn("tp2", "gguf", 2, {"--load=" + gguf, "--load-format=gguf", "--finetune"}),
            Losses("described"));
  // A run that has begun, or another one's checkpoint, has its model, too.
  EXPECT_THAT(MustTrain("gpt2.hf", 4).out, HasSubstr("step 4/4 | loss"));
  MustTrain("mine", 2, {Load("described"), "--finetune"});
  MustTrain("llama", 2, {"--load=" + Fixture("llama3_tied.hf"), "--finetune"});
  ExpectRefused({hf, "--finetune", "--num-layers=3"}, 2,
                "num_layers=3, but the model in " + Fixture("gpt2.hf") + " has num_layers=2");
}

TEST_F(ForeignCommandTest, AConvertedRunGoesOn) {
  MustTrain("whole", 4);
  ASSERT_EQ(TrainOn("tp2", "begun", 2, {}).exit_code, 0);
  std::map<int64_t, std::string> expected = Losses("whole");
  expected.erase(expected.begin(), expected.upper_bound(2));
  for (const std::string format : {"torch", "dcp"}) {
    const std::string converted = (root_ / (format + ".converted")).string();
    Convert(Checkpoints("begun").string(), converted, format);
    EXPECT_EQ(LossesOn("tp2", format, 4, {"--load=" + converted}), expected);
  }
}

TEST_F(ForeignCommandTest, ConsumedSamplesStatesThePositionInTheData) {
  const std::string folder = MakeLlmcFolder();
  UseModel("");
  const std::string load = "--load=" + folder, flag = "--consumed-samples=16";
  ExpectRefused({load}, 1,
                "does not tell its position in the data; --load-content=model,optimizer,scheduler "
                "reads the data from the beginning");
  ExpectRefused({load, "--ckpt-step=6"}, 1, "is a single checkpoint, of step 7");
  const auto expected = LossesOn("single", "single", 9, {load, flag},
                                 "continuing after 16 samples of this run's own order");
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_EQ(LossesOn("tp2", "tp2", 9, {load, flag}), expected);
  EXPECT_NE(LossesOn("single", "begin", 9, {load, kContent}, "llmc (step 7)"), expected)
      << "other samples";

  // What it saves knows the rest, and is a checkpoint like any other.
  ASSERT_OK_AND_ASSIGN(const auto saved, OpenStorage(Checkpoints("single").string()));
  ASSERT_OK_AND_ASSIGN(const auto manifest, ckpt::ReadManifest(*saved, "step-00000009"));
  EXPECT_EQ(manifest.trainer().step(), 9);
  EXPECT_EQ(manifest.trainer().data().consumed_samples(), 16 + 2 * 8);
  EXPECT_NE(manifest.trainer().data().fingerprint(), 0);
  LossesOn("pp2", "single", 11, {load, flag}, "step 10/11 | loss");
  ExpectRefused({Load("tp2"), flag}, 1,
                "tells its position in the data, 32 samples, which differs from "
                "consumed_samples=16");

  // A copy in this program's format knows as little, until the position is in its manifest.
  const std::string copy = (root_ / "copy").string();
  Convert(folder, copy, "tessera");
  ExpectRefused({"--load=" + copy}, 1, "--consumed-samples=N continues after N samples");
  EXPECT_EQ(LossesOn("single", "copied", 9, {"--load=" + copy, flag}), expected);
  const std::string file = copy + "/step-00000007/manifest.pb";
  ASSERT_OK_AND_ASSIGN(auto known, ckpt::DecodeManifest(ReadFile(file)));
  *known.mutable_trainer()->mutable_data() = manifest.trainer().data();
  known.mutable_trainer()->mutable_data()->set_consumed_samples(16);
  ASSERT_OK_AND_ASSIGN(const auto bytes, ckpt::EncodeManifest(known));
  WriteFile(file, bytes);
  EXPECT_EQ(LossesOn("single", "known", 9, {"--load=" + copy}), expected);
}

}  // namespace
}  // namespace tessera
