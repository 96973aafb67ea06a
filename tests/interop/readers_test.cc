// What readers of other frameworks' checkpoints make of files that lack something, have it in
// another way, or say more than tensors. layouts_test continues runs from them.

#include "tests/interop/readers.h"

#include <cstdint>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "checkpoint/include/checkpoint.h"
#include "gmock/gmock.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Fixture;
using ::testing::HasSubstr;
using testing::LogicalState;
using ::testing::Not;
using testing::ReadersTest;

// Names of other models: everything but what needs the model.
TEST_F(ReadersTest, DeepSpeedsNamesWithoutAConfig) {
  for (const char* layout : {"zero1", "universal"}) {
    const std::string original = Fixture(std::string("deepspeed/") + layout);
    Open(original);
    const auto named = TensorNames();
    const std::string copy = CopyOf(original);
    fs::remove(copy + "/config.json");
    Open(copy);
    EXPECT_TRUE(manifest_.model().architecture().empty());
    EXPECT_EQ(TensorNames().size(), named.size());
    EXPECT_EQ(Run({"diff", original, copy}), ckpt::kExitOk) << out_ << err_;
  }
}

TEST_F(ReadersTest, DamagedMomentsOfUniversalCheckpointsAreLeftOutUnlessTheyAreNeeded) {
  const std::string copy = CopyOf(Fixture("deepspeed/universal")),
                    name = "zero/transformer.ln_f.weight/exp_avg.pt",
                    file = copy + "/global_step3/" + name;
  Open(copy);
  std::vector<std::string> names = TensorNames();
  fs::resize_file(file, fs::file_size(file) / 2);
  const absl::Status refused = ckpt::convert::OpenForeign(copy, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(name));
  Open(copy, {.needs_trainer_files = false});
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr(name)));
  const size_t without = std::erase_if(names, [](const std::string& tensor) {
    return tensor.find("ln_f.weight.exp_avg") != tensor.npos;
  });
  EXPECT_EQ(without, 2);
  EXPECT_EQ(TensorNames(), names);
  const std::string step = copy + "/global_step3/zero/transformer.ln_f.weight/step.pt";
  fs::resize_file(step, fs::file_size(step) / 2);
  Open(copy, {.needs_trainer_files = false});
  EXPECT_EQ(TensorNames(), names);
}

// Adam counts its own updates: it skips steps, and a run may begin it anew.
TEST_F(ReadersTest, UpdatesOfAdamThatDifferFromTheStep) {
  const std::string three("\0\0\x40\x40", 4), two("\0\0\0\x40", 4);  // in F32
  const std::string seven("\0\0\xE0\x40", 4), nine("\0\0\x10\x41", 4);
  const std::string python_seven("G@\x1C\0\0", 5), python_nine("G@\x22\0\0", 5);
  const struct {
    const char *checkpoint, *folder, *file;
    std::string from, to;
    const char *updates, *earlier;
  } kCases[] = {
      {"deepspeed/zero1", "/global_step3", "zero_pp", three, two, "2", ""},
      {"deepspeed/zero3_bf16", "/global_step3", "bf16_zero", three, two, "2", ""},
      {"deepspeed/bf16_optimizer", "/global_step3", "bf16_zero", three, two, "2", ""},
      {"megatron/gpt2_tp2_pp2", "", "common.pt", seven, nine, "9", "2"},
      {"megatron/gathered_llama3_bf16_dp2_tp2_pp2", "", "__", python_seven, python_nine, "9", "2"},
      {"megatron/buckets_llama3_bf16_dp2_pp2_vpp2", "", "__", python_seven, python_nine, "9", "2"},
  };
  for (const auto& own : kCases) {
    SCOPED_TRACE(own.checkpoint);
    const std::string copy = CopyOf(Fixture(own.checkpoint));
    Open(copy);
    const int64_t step = manifest_.trainer().step();
    EXPECT_FALSE(manifest_.trainer().extra().contains("optimizer_updates"));
    Edit(copy + own.folder, own.file, {{own.from, own.to}});
    Open(copy);
    EXPECT_EQ(manifest_.trainer().step(), step);
    auto extra = manifest_.trainer().extra();
    EXPECT_EQ(extra["optimizer_updates"], own.updates);
    EXPECT_EQ(extra["earlier_updates"], own.earlier);
  }
  // One rank's file of several.
  const std::string copy = CopyOf(Fixture("megatron/legacy_llama3_tied_pp2_vpp2"));
  Edit(copy + "/iter_0000007/mp_rank_00_001", "model_optim", {{seven, nine}});
  Open(copy);
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("updates, which differ between parameters")));
}

// At most as many of the optimizer's updates as the run has steps are the run's.
TEST_F(ReadersTest, AStatedStepLeavesTheOptimizerItsUpdates) {
  const std::string copy = CopyOf(Fixture("megatron/gpt2_tp2_pp2"));
  Edit(copy, "common.pt", {{std::string("\0\0\xE0\x40", 4), std::string("\0\0\x10\x41", 4)}});
  const std::pair<int, const char*> kEarlier[] = {{5, "4"}, {7, "2"}, {9, ""}, {20, ""}};
  for (const auto& [step, earlier] : kEarlier) {
    SCOPED_TRACE(step);
    const std::string to = copy + absl::StrCat(".", step);
    ASSERT_EQ(Run({"convert", copy, to, "--to=tessera", absl::StrCat("--ckpt-step=", step)}),
              ckpt::kExitOk)
        << err_;
    ASSERT_OK_AND_ASSIGN(const auto folder, ckpt::CheckpointFolder::Open(to));
    ASSERT_OK_AND_ASSIGN(const auto converted, folder.At(step));
    auto extra = converted.manifest().trainer().extra();
    EXPECT_EQ(extra["optimizer_updates"], "9");
    EXPECT_EQ(extra["earlier_updates"], earlier);
  }
}

// Names of the same length: a moment without the other one is not AdamW's.
TEST_F(ReadersTest, StatesOfOtherOptimizersAreNamedAndLeftOut) {
  const std::string copy = CopyOf(Fixture("deepspeed/zero1"));
  Edit(copy + "/global_step3", "zero_pp", {{"exp_avg_sq", "momentum_b"}});
  Open(copy);
  EXPECT_FALSE(manifest_.has_optimizer());
  EXPECT_THAT(TensorNames(), Not(Contains(HasSubstr("exp_avg"))));
  EXPECT_THAT(
      storage_->notes(),
      AllOf(Contains(HasSubstr("of AdamW without their counterparts: transformer.wte.weight")),
            Contains(HasSubstr("that are not AdamW's: momentum_b."))));
  // Not taken for an optimizer without state, which a run would replace by a fresh one.
  const std::string masters = CopyOf(Fixture("deepspeed/zero3_bf16"));
  Edit(masters + "/global_step3", "bf16_zero", {{"exp_avg_sq", "momentum_b"}});
  Open(masters);
  EXPECT_FALSE(manifest_.has_optimizer());
  // SGD without momentum has no state: the file of no moment is missing.
  const std::string plain = CopyOf(Fixture("deepspeed/universal_zero1"));
  for (const auto& entry : fs::directory_iterator(plain + "/global_step3/zero")) {
    if (!entry.is_directory()) continue;
    for (const char* file : {"exp_avg.pt", "exp_avg_sq.pt", "step.pt"}) {
      fs::remove(entry.path() / file);
    }
  }
  Open(plain);
  EXPECT_TRUE(manifest_.has_optimizer());
  EXPECT_EQ(manifest_.optimizer().algorithm(), "");
  EXPECT_EQ(manifest_.optimizer().parameters_size(), 0);
  const std::string universal = CopyOf(Fixture("deepspeed/universal"));
  const std::string folder = universal + "/global_step3/zero/transformer.ln_f.bias";
  fs::copy_file(folder + "/exp_avg.pt", folder + "/max_exp_avg_sq.pt");
  Edit(folder, "step", {{std::string("\0\0\x40\x40", 4), std::string("\0\0\0\x40", 4)}});
  Open(universal);
  EXPECT_THAT(storage_->notes(), AllOf(Contains(HasSubstr("AdamW's: max_exp_avg_sq.pt.")),
                                       Contains(HasSubstr("which differ between parameters"))));
}

// One parameter of the model was frozen.
TEST_F(ReadersTest, DeepSpeedsFrozenParametersHaveNoMoments) {
  Open(Fixture("deepspeed/zero3_bf16"));
  ASSERT_OK_AND_ASSIGN(
      auto expected, testing::ReadFp32State(Fixture("deepspeed/zero3_bf16/expected.safetensors")));
  EXPECT_FALSE(expected.contains("model.norm.weight.exp_avg"));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*storage_, ""));
  for (const ckpt::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.dtype != DType::kF32 || !tensor.alias_of.empty()) continue;
    const std::string name = absl::StrReplaceAll(tensor.name, {{".master", ""}});
    ASSERT_OK_AND_ASSIGN(const auto found, checkpoint.LoadTensor<float>(tensor.name));
    ASSERT_TRUE(expected.contains(name)) << name;
    const auto& bytes = expected.at(name).bytes;
    ASSERT_EQ(found.size() * sizeof(float), bytes.size()) << name;
    EXPECT_EQ(std::memcmp(found.data(), bytes.data(), bytes.size()), 0) << name;
    expected.erase(name);
  }
  EXPECT_EQ(expected.size(), 0);
}

// Transformer Engine keeps them, and modules of Megatron-Core's own have them for its sake.
TEST_F(ReadersTest, MegatronsStatesOfModulesAreNamedAndLeftOut) {
  Open(Fixture("megatron/llama3_bf16_pp2_vpp2"));
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("linear_proj._extra_state")));
}

// The order of a buffer's parameters is the one that its contents show, whatever the arguments say.
TEST_F(ReadersTest, TheOrderOfMegatronsBucketsIsFoundInTheFiles) {
  for (const char* name :
       {"buckets_llama3_untied_dp2_tp2_pp2", "gathered_llama3_bf16_dp2_tp2_pp2"}) {
    const std::string original = Fixture(std::string("megatron/") + name), copy = CopyOf(original);
    std::string common = ReadFile(copy + "/common.pt");
    common.replace(common.find("local", common.find("transformer_impl")), 5, "other");
    std::ofstream(copy + "/common.pt", std::ios::binary)
        << ckpt::convert::WithoutChecksums(std::move(common));
    EXPECT_EQ(Run({"diff", original, copy}), ckpt::kExitOk) << out_ << err_;
  }
}

// Through a sharded checkpoint into Megatron's own files, in several of them, and in bf16.
TEST_F(ReadersTest, MegatronsCheckpointsAreWrittenAsTheyWereRead) {
  for (const char* name : {"gpt2_tp2_pp2", "llama3_bf16_pp2_vpp2", "legacy_llama3_tied_pp2_vpp2"}) {
    SCOPED_TRACE(name);
    const std::string original = Fixture(std::string("megatron/") + name), ours = In("ours"),
                      theirs = In("theirs"), weights = In("weights");
    for (const std::string& folder : {ours, theirs, weights}) fs::remove_all(folder);
    ASSERT_EQ(Run({"convert", original, ours, "--to=tessera", "--topology=tp2_pp2"}), 0) << err_;
    ASSERT_EQ(Run({"convert", ours, theirs, "--to=megatron", "--max-file-size=20000"}), 0) << err_;
    EXPECT_TRUE(fs::exists(theirs + "/__0_3.distcp"));
    EXPECT_EQ(Run({"diff", original, theirs}), ckpt::kExitOk) << out_ << err_;
    ASSERT_EQ(Run({"convert", theirs, weights, "--to=megatron", "--weights-only", "--dtype=bf16"}),
              0)
        << err_;
    Open(weights);
    for (const ckpt::LogicalTensor& tensor : manifest_.tensors()) {
      EXPECT_EQ(ckpt::FromProto(tensor.dtype()), DType::kBF16) << tensor.name();
    }
    EXPECT_FALSE(manifest_.has_optimizer());
  }
}

TEST_F(ReadersTest, InfiniTrainsNamesWithoutAModel) {
  Open(Fixture("infinitrain/llama3/checkpoint_step_000003"));
  EXPECT_FALSE(manifest_.has_model());
  EXPECT_EQ(manifest_.trainer().step(), 3);
  EXPECT_THAT(TensorNames(), Contains("transformer.h.1.mlp.c_fc2.weight"));
  EXPECT_THAT(TensorNames(), Contains("state.transformer.wte.weight.exp_avg"));
}

// Files that the program wrote. trainer_state.json lacks a comma, and has the sizes of another
// model.
class RealInfiniTrainTest : public ReadersTest {
 protected:
  // Returns a copy with the config of its model.
  std::string Copy(const std::string& name) const {
    const std::string copy = CopyOf(Fixture("infinitrain/" + name));
    std::ofstream(copy + "/config.json") << R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 48,
        "n_head": 12, "vocab_size": 512, "n_positions": 32})";
    return copy;
  }
};

TEST_F(RealInfiniTrainTest, NumbersOfMomentsFollowTheOrderOfTheModelsFile) {
  const std::string copy = Copy("gpt2_adam");
  Open(copy);
  EXPECT_THAT(storage_->notes(),
              ElementsAre(AllOf(HasSubstr("trainer_state.json: n_embd is 768, but the model's is "
                                          "48, n_layer is 12, but the model's is 2"),
                                HasSubstr("the shapes of the tensors decide"))));
  EXPECT_EQ(manifest_.trainer().step(), 6);
  EXPECT_EQ(manifest_.optimizer().parameters_size(), 28);
  EXPECT_THAT(TensorNames(), Contains("transformer.h.0.ln_1.weight.exp_avg_sq"));
  // Two tensors at each other's places: the tables are not known ones.
  const std::string one = "h.0.ln_2.bias", other = "h.1.ln_2.bias";
  Edit(copy, "model.ckpt", {{one, other}, {other, one}});
  Open(copy);
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("Left out: moments by number (adam.m.3)")));
  EXPECT_THAT(TensorNames(), Not(Contains(HasSubstr("exp_avg"))));
  EXPECT_EQ(manifest_.tensors_size(), 29);
}

TEST_F(RealInfiniTrainTest, WrongSizes) {
  const std::string copy = Copy("gpt2_adam");
  // Sizes that the shapes do not contradict are true.
  Edit(copy, "trainer_state",
       {{"\"n_layer\": 12", "\"n_layer\": 2"},
        {"\"n_embd\": 768", "\"n_embd\": 48"},
        {"\"n_head\": 12", "\"n_head\": 6"}});
  EXPECT_THAT(ckpt::convert::OpenForeign(copy, {}).status().message(),
              HasSubstr("trainer_state.json: n_head is 6, but the model's is 12"));
  Edit(copy, "config.json", {{"\"n_embd\": 48", "\"n_embd\": 24"}});
  EXPECT_THAT(ckpt::convert::OpenForeign(copy, {}).status().message(),
              HasSubstr("expected [512,24], found [512,48]"));
}

TEST_F(RealInfiniTrainTest, ASgdHasAnOptimizerWithoutState) {
  Open(Copy("gpt2_sgd"));
  EXPECT_EQ(manifest_.trainer().step(), 6);
  EXPECT_TRUE(manifest_.has_optimizer());
  EXPECT_THAT(TensorNames(), Not(Contains(HasSubstr("exp_avg"))));
}

TEST_F(ReadersTest, InfiniTrainsStepIsUnknownWhereFilesContradictEachOther) {
  const std::string copy = CopyOf(Fixture("infinitrain/llama3/checkpoint_step_000003"));
  Edit(copy, "trainer_state", {{"\"global_step\": 3", "\"global_step\": 4"}});
  Open(copy);
  EXPECT_FALSE(manifest_.has_trainer());
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("global_step is 4, but Adam has counted 3")));
  // One of the two is enough.
  fs::remove(copy + "/trainer_state.json");
  Open(copy);
  EXPECT_EQ(manifest_.trainer().step(), 3);
  fs::remove(copy + "/optimizer.ckpt");
  Open(copy);
  EXPECT_FALSE(manifest_.has_trainer());
  // One of the ranks that have the whole model is enough, too.
  const std::string ranks = CopyOf(Fixture("infinitrain/gpt2_dp2/checkpoint_step_000002"));
  fs::remove_all(ranks + "/rank_000001");
  Open(ranks);
}

TEST_F(ReadersTest, InternEvoKeepsItsNamesAndSaysWhatItDoesNotKnow) {
  Open(Fixture("internevo/tp1"));
  EXPECT_THAT(
      storage_->notes(),
      ElementsAre(HasSubstr("The run has consumed 288 tokens, which are 12 samples of 24")));
  EXPECT_EQ(manifest_.producer().program(), "InternEvo");
  EXPECT_EQ(ForeignName("model.layers.1.mlp.down_proj.weight", "internevo"),
            "layers.1.feed_forward.w2.weight");
}

TEST_F(ReadersTest, WithoutTheOptimizersFilesThereAreWeights) {
  for (const std::string name : {"internevo/pp2", "paddle/testdata/mp2"}) {
    const std::string copy = CopyOf(Fixture(name));
    Remove(copy, "optimizer");
    Remove(copy, "context.pt");
    Open(copy);
    EXPECT_FALSE(manifest_.has_optimizer());
    EXPECT_EQ(manifest_.tensors_size(), 39);
  }
  EXPECT_THAT(storage_->notes(), Contains(HasSubstr("no optimizer state")));
}

// Two data-parallel ranks have begun the second epoch of 16 samples.
TEST_F(ReadersTest, InternEvosSamplerAndSchedulerTellThePosition) {
  Open(Fixture("internevo/zo2"));
  EXPECT_EQ(manifest_.trainer().step(), 3);
  EXPECT_EQ(manifest_.trainer().data().consumed_samples(), 24);
  EXPECT_EQ(manifest_.trainer().data().sequence_length(), 24);
  // The sampler's file leaves nothing but the position open.
  const std::string copy = CopyOf(Fixture("internevo/zo2"));
  Remove(copy, "sampler.pt");
  Open(copy);
  EXPECT_EQ(manifest_.trainer().step(), 3);
  EXPECT_FALSE(manifest_.trainer().has_data());
  // The scheduler's alone has the step.
  Remove(copy, "context.pt");
  Open(copy);
  EXPECT_EQ(manifest_.trainer().step(), 3);
  Remove(copy, "schedulder.pt");
  Open(copy);
  EXPECT_FALSE(manifest_.has_trainer());
}

// Releases before 0.3 call the matrix that leads out of the layer w3.
TEST_F(ReadersTest, EarlyReleasesOfInternEvoNameTheFeedForwardLayersOtherwise) {
  for (const std::string layout : {"tp1", "tp2_pp2_zo2"}) {
    const std::string copy = CopyOf(Fixture("internevo/" + layout));
    const std::string w2 = "feed_forward.w2.weight", w3 = "feed_forward.w3.weight";
    Edit(copy, "model_t", {{w2, w3}, {w3, w2}});
    ExpectHolds(copy, "internevo/state.safetensors");
  }
}

// A plan that is in a file of its own only, as releases that save it first write it.
TEST_F(ReadersTest, InternEvosPlanMayBeInAFileOfItsOwn) {
  const std::string copy = CopyOf(Fixture("internevo/zo2"));
  Edit(copy, "optimizer_", {{"zero_devide_optim_plan", "zero_divide_optim_plan"}});
  ExpectHolds(copy, "internevo/state.safetensors");
}

TEST_F(ReadersTest, ConvertedWeightsComeFromMasterWeights) {
  const std::string paddle = Fixture("paddle/testdata/mp2_pp2_sharding2_v2_master");
  for (const char* format : {"hf", "torch", "dcp", "gguf", "megatron"}) {
    SCOPED_TRACE(format);
    const std::string written = In(std::string(format) + ".gguf");
    ASSERT_EQ(Run({"convert", paddle, written, std::string("--to=") + format}), ckpt::kExitOk)
        << err_;
    EXPECT_THAT(out_, HasSubstr("Made from the master weights, since the weights were not saved: "
                                "lm_head.weight, "));
    Open(written);
    EXPECT_THAT(TensorNames(), Contains(HasSubstr("embed_tokens.weight")));
  }
}

// Errors name the one file of a checkpoint, not its folder.
TEST_F(ReadersTest, OneFileIsCalledByItsName) {
  const std::string file = CopyOf(Fixture("state_dict/gpt2_wrapped.pt"));
  ckpt::ModelProto model;
  ASSERT_OK_AND_ASSIGN(const auto described, testing::OpenForeignRun(Fixture("pytorch/gpt2.hf")));
  model = described.manifest().model();
  model.set_text(absl::StrReplaceAll(model.text(), {{"vocab_size: 61", "vocab_size: 62"}}));
  EXPECT_THAT(std::string(ckpt::convert::OpenForeign(file, {.model = &model}).status().message()),
              HasSubstr("gpt2_wrapped.pt: tensor "));
}

// What torch's HuggingFaceStorageWriter writes with save_distributed=True: each rank's rows.
class SafetensorsOfDcpTest : public ReadersTest {
 protected:
  void SetUp() override {
    ReadersTest::SetUp();
    fs::create_directory(In("shards"));
    ASSERT_OK_AND_ASSIGN(const LogicalState state, testing::ReadFp32State(kWhole));
    for (int rank = 0; rank < 2; ++rank) WriteShard(state, rank);
  }
  static std::string ShardName(int rank) {
    return "shard-0000" + std::to_string(rank + 1) + "-model-00001-of-00001.safetensors";
  }
  void WriteShard(const LogicalState& state, int rank) const {
    nlohmann::json header, info;
    std::string elements;
    for (const auto& [name, tensor] : state) {
      const int64_t rows = tensor.shape[0], first = rank == 0 ? 0 : rows / 2;
      Shape shape = tensor.shape, offset(shape.size(), 0);
      shape[0] = rank == 0 ? rows / 2 : rows - first;
      offset[0] = first;
      const size_t row_bytes = tensor.bytes.size() / rows, begin = elements.size();
      elements.append(reinterpret_cast<const char*>(tensor.bytes.data()) + first * row_bytes,
                      shape[0] * row_bytes);
      header[name] = {
          {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, elements.size()}}};
      info[name]["saved_offsets"] = offset;
    }
    header["__metadata__"] = {
        {"DCP_SHARDING_INFO", info.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
    const std::string text = header.dump();
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
    std::ofstream(In("shards/" + ShardName(rank)), std::ios::binary) << length << text << elements;
  }
  std::string Refused() const {
    return std::string(ckpt::convert::OpenForeign(In("shards"), {}).status().message());
  }

  const std::string kWhole = Fixture("pytorch/llama3_untied.hf");
};

TEST_F(SafetensorsOfDcpTest, PartsOfRanksAreJoined) {
  Open(In("shards"));
  EXPECT_EQ(storage_->format(), "safetensors");
  EXPECT_FALSE(manifest_.has_model());
  fs::copy(kWhole + "/config.json", In("shards/config.json"));
  EXPECT_EQ(Run({"diff", kWhole, In("shards")}), ckpt::kExitOk) << out_ << err_;
}

// Its consolidated files have an index, and no config.json.
TEST_F(SafetensorsOfDcpTest, ConsolidatedFiles) {
  const std::string copy = CopyOf(kWhole);
  fs::remove(copy + "/config.json");
  Open(copy);
  EXPECT_EQ(storage_->format(), "safetensors");
  ASSERT_OK_AND_ASSIGN(const auto described, testing::OpenForeignRun(kWhole));
  Open(copy, {.model = &described.manifest().model()});
  EXPECT_TRUE(manifest_.has_model());
}

TEST_F(SafetensorsOfDcpTest, DamagedOnes) {
  fs::copy(kWhole + "/config.json", In("shards/config.json"));
  const std::string first = ReadFile(In("shards/" + ShardName(0)));
  Edit(In("shards"), ShardName(0), {{"DCP_SHARDING_INFO", "DCP_SHARDING_INFI"}});
  EXPECT_THAT(Refused(), HasSubstr(ShardName(0) + ": tensor "));
  EXPECT_THAT(Refused(), HasSubstr("no saved_offsets in the header's DCP_SHARDING_INFO"));
  fs::remove(In("shards/" + ShardName(0)));
  EXPECT_THAT(Refused(), HasSubstr("] is in no file"));
  // The last rows are missing.
  std::ofstream(In("shards/" + ShardName(0)), std::ios::binary) << first;
  fs::remove(In("shards/" + ShardName(1)));
  EXPECT_THAT(Refused(), HasSubstr("expected [61,16], found [30,16]"));
}

}  // namespace
}  // namespace tessera
