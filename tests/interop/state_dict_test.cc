// State dicts of torch and of torch.distributed.checkpoint, in the names of transformers and of
// Meta, as models of this library. What transformers itself stores in its own format is the judge.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "base/files.h"
#include "base/testing.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/value.h"
#include "convert/open_foreign.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/saved_model.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;

using Tensors = std::map<std::string, std::vector<float>>;

std::string StateDictFixture(const std::string& name) { return "tests/interop/state_dict/" + name; }
std::string HuggingFace(const std::string& name) { return "tests/interop/pytorch/" + name; }

absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> OpenStateDict(
    const std::string& name, const ckpt::ModelProto* model = nullptr) {
  return ckpt::convert::OpenForeign(name, {.model = model});
}

ckpt::Manifest ManifestOf(Storage& storage) { return OrFail(ckpt::ReadManifest(storage, "")); }

Tensors Load(Storage& storage) {
  Tensors tensors;
  const auto checkpoint = ckpt::Checkpoint::Open(storage, "");
  EXPECT_OK(checkpoint);
  const ckpt::Manifest manifest = ManifestOf(storage);
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    const auto elements = checkpoint->LoadTensor<float>(tensor.name());
    EXPECT_OK(elements);
    tensors[tensor.name()] = elements.value_or(std::vector<float>());
  }
  return tensors;
}

Tensors LoadFrom(const std::string& name, const ckpt::ModelProto* model = nullptr) {
  const auto storage = OpenStateDict(name, model);
  EXPECT_OK(storage);
  return storage.ok() ? Load(**storage) : Tensors();
}

ckpt::ModelProto ModelOf(const std::string& name) {
  const auto storage = OrFail(OpenStateDict(name));
  return ManifestOf(*storage).model();
}

// What the live model and optimizer had, by the names of transformers.
Tensors ReadExpected(const std::string& name) {
  const std::string bytes = OrFail(ReadWholeFile(StateDictFixture(name + ".logical.safetensors")));
  const auto header = OrFail(ckpt::ParseSafetensorsHeader(bytes, bytes.size()));
  Tensors expected;
  for (const ckpt::SafetensorsEntry& entry : header.entries) {
    std::vector<float>& elements = expected[entry.key];
    elements.resize(entry.length_bytes / sizeof(float));
    bytes.copy(reinterpret_cast<char*>(elements.data()), entry.length_bytes, entry.file_offset);
  }
  return expected;
}

// The tensors of a storage less the second name of a tied embedding.
Tensors LoadUntied(Storage& storage) {
  Tensors tensors = Load(storage);
  if (tensors.contains("transformer.wte.weight")) tensors.erase("lm_head.weight");
  return tensors;
}

template <typename T>
T ValueOf(const ckpt::convert::ForeignStorage& storage, const std::string& name) {
  const auto values = ckpt::convert::ValuesByName(storage.state());
  const auto at = values.find(name);
  const T* const found = at == values.end() ? nullptr : at->second->As<T>();
  if (found != nullptr) return *found;
  ADD_FAILURE() << "no value " << name;
  return T();
}

// A folder with a state dict in which `from` is called `to`, and which has no checksums.
std::string Renamed(const std::string& from, const std::string& to) {
  const std::filesystem::path folder = ::testing::TempDir() + "/renamed";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(StateDictFixture("gpt2"), folder);
  const std::filesystem::path path = folder / "pytorch_model.bin";
  std::string contents = OrFail(ReadWholeFile(path));
  contents.replace(contents.find(from), from.size(), to);
  std::ofstream(path, std::ios::binary) << ckpt::convert::WithoutChecksums(std::move(contents));
  return folder.string();
}

TEST(StateDictTest, AParameterThatIsMissingIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"h.1.ln_2.weight", "h.1.lm_2.weight"},
      {"wpe.weight", "wpe.weighu"},
      {"wpe.weight", "wpe.w\xc3\xa4it\""}};
  for (const auto& [from, to] : cases) {
    const std::string folder = Renamed(from, to);
    ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(folder));
    const std::string expected = "the model's transformer." + from +
                                 " is missing; the files have transformer." + absl::CHexEscape(to) +
                                 ", which the model does not have";
    EXPECT_EQ(storage->mismatch(), expected);
    EXPECT_FALSE(ManifestOf(*storage).has_model());
    CheckpointConfig config;
    config.set_load(folder);
    const auto model = FindSavedModel(config);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(expected));
    config.set_allow_missing(true);
    EXPECT_OK(FindSavedModel(config));
  }
  EXPECT_EQ((*OpenStateDict(StateDictFixture("gpt2")))->mismatch(), "");
}

TEST(StateDictTest, WrappersAroundTheModel) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       OpenStateDict(StateDictFixture("gpt2_wrapped.pt"), &model));
  EXPECT_EQ(Load(*storage), LoadFrom(HuggingFace("gpt2.hf")));
  EXPECT_THAT(storage->notes(),
              ElementsAre("Left out: tensors that are not the model's: rng_state."));
  // Without a model, tensors keep the names that they have in the file.
  ASSERT_OK_AND_ASSIGN(const auto unknown, OpenStateDict(StateDictFixture("gpt2_wrapped.pt")));
  const ckpt::Manifest manifest = ManifestOf(*unknown);
  std::vector<std::string> names;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) names.push_back(tensor.name());
  EXPECT_THAT(names, Contains("model.module._orig_mod.transformer.wte.weight"));
}

TEST(StateDictTest, OfTwoModelsInOneFileThePlaceTellsWhichIsMeant) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       OpenStateDict(StateDictFixture("gpt2_twice.pt"), &model));
  EXPECT_EQ(Load(*storage), LoadFrom(HuggingFace("gpt2.hf")));
  EXPECT_THAT(storage->notes(), Contains(HasSubstr("tensors below \"ema.\"; the model is the one "
                                                   "below \"model.\".")));
}

TEST(StateDictTest, AnotherModelKeepsTheNamesOfTheFile) {
  const ckpt::ModelProto llama = ModelOf(HuggingFace("llama3_untied.hf"));
  ASSERT_OK_AND_ASSIGN(const auto storage,
                       OpenStateDict(StateDictFixture("gpt2_wrapped.pt"), &llama));
  EXPECT_FALSE(ManifestOf(*storage).has_model());
  ASSERT_FALSE(storage->notes().empty());
  EXPECT_THAT(
      storage->notes().back(),
      MatchesRegex("Names are those of the files: the model's model.embed_tokens.weight is not "
                   "among model.module.lm_head.weight, .*, and 20 more\\."));
}

// The files of a folder by their names in memory.
std::shared_ptr<MemoryStorage> Copied(const std::map<std::string, std::string>& files) {
  auto storage = std::make_shared<MemoryStorage>();
  for (const auto& [name, source] : files) {
    EXPECT_OK(WriteAll(*storage, name, OrFail(ReadWholeFile(StateDictFixture(source)))));
  }
  return storage;
}

// Llama 2's params.json gives the vocabulary's size as -1. It is taken from the embeddings' table,
// whether ranks have some of its rows or some of its columns.
TEST(StateDictTest, MetasVocabularyIsThatOfTheEmbeddings) {
  for (const std::string name : {"llama_meta", "llama_ranks", "llama2_ranks"}) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(StateDictFixture(name))) {
      const std::string file = entry.path().filename().string();
      files[file] = name + "/" + file;
    }
    const auto storage = Copied(files);
    ASSERT_OK_AND_ASSIGN(auto params, ReadAll(*storage, "params.json", 1000));
    const size_t size = params.find(name == "llama_meta" ? "61" : "62");
    ASSERT_NE(size, std::string::npos);
    params.replace(size, 2, "-1");
    ASSERT_OK(WriteAll(*storage, "params.json", params));
    const auto opened = ckpt::convert::OpenForeignFolder(storage, {});
    ASSERT_OK(opened) << name;
    EXPECT_EQ(Load(**opened), LoadFrom(StateDictFixture(name))) << name;
  }
}

TEST(StateDictTest, PartsOfMetasRanksThatDoNotMatch) {
  const auto refusal = [](std::map<std::string, std::string> files) {
    files["params.json"] = "llama_ranks/params.json";
    return std::string(ckpt::convert::OpenForeignFolder(Copied(files), {}).status().message());
  };
  const std::string first = "llama_ranks/consolidated.00.pth";
  const std::string second = "llama_ranks/consolidated.01.pth";
  EXPECT_THAT(refusal({{"consolidated.00.pth", first}, {"consolidated.02.pth", second}}),
              HasSubstr("consolidated.01.pth is missing, consolidated.02.pth is there"));
  EXPECT_THAT(refusal({{"consolidated.00.pth", first},
                       {"consolidated.01.pth", second},
                       {"consolidated.02.pth", second}}),
              HasSubstr("consolidated.00.pth: tensor tok_embeddings.weight: shape [31,16] is "
                        "neither [62,16] nor one of 3 equal parts of it"));
  EXPECT_THAT(refusal({{"consolidated.00.pth", first}, {"consolidated.01.pth", "gpt2_twice.pt"}}),
              HasSubstr("consolidated.01.pth: tensor layers.0.attention.wk.weight: missing, "
                        "consolidated.00.pth has it"));
}

// It is not the whole model, but nothing of it is missing.
TEST(StateDictTest, APartThatIsNamedItselfHasItsOwnNames) {
  const std::string ranks = StateDictFixture("llama_ranks");
  const std::string parts = HuggingFace("llama3_untied.hf");
  std::vector<std::string> files = {ranks + "/consolidated.00.pth", ranks + "/consolidated.01.pth"};
  for (const auto& entry : std::filesystem::directory_iterator(parts)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  EXPECT_EQ(files.size(), 6);
  for (const std::string& file : files) {
    ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(file));
    EXPECT_EQ(storage->mismatch(), "") << file;
    EXPECT_THAT(storage->notes(), Contains(HasSubstr("which is a part of a model"))) << file;
  }
  for (const std::string name : {"end-of-epoch.pt", "step-500-of-1000.pt", "consolidated.ema.pth",
                                 "consolidated.00.pth", "pytorch_model-00001-of-00001.bin"}) {
    ASSERT_OK_AND_ASSIGN(const auto storage, ckpt::convert::OpenForeignFolder(
                                                 Copied({{name, "nanogpt/ckpt.pt"}}), {}, name));
    EXPECT_TRUE(ManifestOf(*storage).has_model()) << name;
  }
}

TEST(StateDictTest, AllThatATrainerOfTransformersSavesIsShown) {
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(StateDictFixture("trainer")));
  EXPECT_THAT(storage->notes(), ElementsAre());
  EXPECT_EQ(ValueOf<int64_t>(*storage, "trainer_state.global_step"), 3);
  EXPECT_EQ(ValueOf<int64_t>(*storage, "scheduler.last_epoch"), 3);
  EXPECT_EQ(ValueOf<double>(*storage, "optimizer.param_groups.0.weight_decay"), 0.1);
  // The optimizer has the groups of the file, whose numbers have become names of parameters.
  const ckpt::OptimizerState optimizer = ManifestOf(*storage).optimizer();
  ASSERT_EQ(optimizer.groups_size(), 2);
  EXPECT_EQ(optimizer.groups(0).options().at("weight_decay"), 0.1);
  EXPECT_EQ(optimizer.groups(1).options().at("weight_decay"), 0);
  EXPECT_EQ(std::ranges::count(optimizer.parameters(), 1U, &ckpt::OptimizerParameter::group), 5);
}

// The weights do not depend on a file of the optimizer; where that is needed, damage is an error.
TEST(StateDictTest, ADamagedFileOfTheOptimizerBesideAModel) {
  std::map<std::string, std::string> files;
  for (const char* const file :
       {"config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"}) {
    files[file] = std::string("trainer/") + file;
  }
  const auto storage = Copied(files);
  ASSERT_OK_AND_ASSIGN(const auto optimizer, ReadAll(*storage, "optimizer.pt", 1 << 20));
  ASSERT_OK(WriteAll(*storage, "optimizer.pt", optimizer.substr(0, optimizer.size() / 2)));
  const auto open = [&](bool needed) {
    return ckpt::convert::OpenForeignFolder(storage, {.needs_trainer_files = needed});
  };
  const absl::Status refused = open(true).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("optimizer.pt: "));

  ASSERT_OK_AND_ASSIGN(const auto opened, open(false));
  EXPECT_THAT(opened->notes(), ElementsAre(HasSubstr(refused.message())));
  EXPECT_FALSE(ManifestOf(*opened).has_optimizer());
  Tensors weights = ReadExpected("trainer");
  std::erase_if(weights,
                [](const auto& tensor) { return tensor.first.find(".exp_") != std::string::npos; });
  EXPECT_EQ(LoadUntied(*opened), weights);
}

TEST(StateDictTest, MomentsByNumberOfTiedAndFrozenParameters) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(StateDictFixture("script.pt"), &model));
  EXPECT_THAT(storage->notes(), ElementsAre());
  const ckpt::Manifest manifest = ManifestOf(*storage);
  EXPECT_EQ(manifest.trainer().step(), 4);
  EXPECT_EQ(manifest.trainer().data().consumed_samples(), 48);
  const Tensors expected = ReadExpected("script");
  EXPECT_FALSE(expected.contains("transformer.h.1.mlp.c_fc.bias.exp_avg"));
  EXPECT_EQ(LoadUntied(*storage), expected);
}

// Linear layers are transposed, the square ones too, and the file says what its model is. Both the
// name of the weights and that of the head are there; the optimizer has numbers.
TEST(StateDictTest, CheckpointsOfNanoGptAreReadWithTheirModelAndTheirMoments) {
  for (const std::string name : {"nanogpt", "nanogpt_biases"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(StateDictFixture(name + "/ckpt.pt")));
    EXPECT_EQ(LoadUntied(*storage), ReadExpected(name));
    EXPECT_THAT(storage->notes(), ElementsAre(HasSubstr("nanoGPT computes GELU exactly")));
    const ckpt::Manifest manifest = ManifestOf(*storage);
    EXPECT_EQ(manifest.trainer().step(), 3);
    CheckpointConfig config;
    config.set_load(StateDictFixture(name));
    ASSERT_OK_AND_ASSIGN(const auto model, FindSavedModel(config));
    ASSERT_TRUE(model.has_value());
    EXPECT_EQ(model->config.has_use_biases(), name == "nanogpt");
    EXPECT_EQ(model->config.vocab_size(), 23);
    EXPECT_EQ(model->config.max_position_embeddings(), 12);
  }
}

TEST(StateDictTest, AmsGradsStatesGoAlongAndARateInATensorIsANumber) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(StateDictFixture("captured.pt"), &model));
  EXPECT_THAT(storage->notes(), ElementsAre("The optimizer is not AdamW: amsgrad is true; a run "
                                            "that continues with AdamW computes other values."));
  EXPECT_EQ(LoadUntied(*storage), ReadExpected("captured"));
  const ckpt::Manifest manifest = ManifestOf(*storage);
  EXPECT_EQ(manifest.optimizer().algorithm(), "adam");
  EXPECT_EQ(manifest.optimizer().groups(0).options().at("learning_rate"), 0.015625);
  EXPECT_EQ(manifest.trainer().step(), 3);
}

// What accelerate saves of a model in shards is in folders beside the files of the trainer.
TEST(StateDictTest, ShardsBesideTheFilesOfATrainerAreNamed) {
  const auto storage = Copied(
      {{"scheduler.pt", "trainer/scheduler.pt"}, {"rng_state_0.pth", "trainer/scheduler.pt"}});
  ASSERT_OK(storage->MakeDirectory("pytorch_model_fsdp_0"));
  const absl::Status status = ckpt::convert::OpenForeignFolder(storage, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a trainer's files, whose weights are in pytorch_model_fsdp_0"));
}

// accelerate saves no config.json.
TEST(StateDictTest, AModelBesideTheFilesOfATrainerIsReadWithoutAConfiguration) {
  const ckpt::ModelProto model = ModelOf(StateDictFixture("accelerate"));
  const auto storage = Copied({{"model.safetensors", "accelerate/model.safetensors"},
                               {"optimizer.bin", "accelerate/optimizer.bin"},
                               {"optimizer_1.bin", "accelerate/optimizer.bin"},
                               {"model_1.safetensors", "accelerate/model.safetensors"}});
  ASSERT_OK_AND_ASSIGN(const auto opened,
                       ckpt::convert::OpenForeignFolder(storage, {.model = &model}));
  EXPECT_EQ(opened->format(), "safetensors");
  EXPECT_EQ(LoadUntied(*opened), ReadExpected("accelerate"));
  EXPECT_THAT(opened->notes(),
              IsSupersetOf({"Left out: files of safetensors beside the model's: "
                            "model_1.safetensors.",
                            "Left out: other files of the trainer: optimizer_1.bin."}));
  ASSERT_OK(storage->Delete("model.safetensors"));
  const absl::Status without = ckpt::convert::OpenForeignFolder(storage, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(without)) << without;
  EXPECT_THAT(std::string(without.message()),
              HasSubstr("a trainer's files, whose weights are in model_1.safetensors"));
}

// A trainer's whole state, of which such a file is an export.
TEST(StateDictTest, AModelBesideWhatTorchOrLlmcHaveSavedHidesNothing) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  const std::pair<std::string, std::string> exported = {"model.safetensors",
                                                        "accelerate/model.safetensors"};
  const auto torch = Copied({exported, {"last.ckpt", "script.pt"}, {"scaler.pt", "script.pt"}});
  ASSERT_OK_AND_ASSIGN(const auto opened,
                       ckpt::convert::OpenForeignFolder(torch, {.model = &model}));
  EXPECT_EQ(ManifestOf(*opened).trainer().step(), 4);
  EXPECT_EQ(LoadUntied(*opened), ReadExpected("script"));

  const absl::Status several =
      ckpt::convert::OpenForeignFolder(
          Copied({exported, {"a.pt", "script.pt"}, {"b.pt", "named.pt"}}), {})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(several)) << several;

  const auto llmc = Copied({exported, {"model_00000003.bin", "../pytorch/gpt2.model.bin"}});
  ASSERT_OK_AND_ASSIGN(const auto of_llmc, ckpt::convert::OpenForeignFolder(llmc, {}));
  EXPECT_EQ(Load(*of_llmc), LoadFrom(HuggingFace("gpt2.model.bin")));

  const auto alone = Copied({exported});
  ASSERT_OK_AND_ASSIGN(const auto expected, ckpt::convert::OpenForeignFolder(alone, {}));
  for (const auto& beside : {torch, llmc}) {
    for (const std::string format : {"safetensors", "dcp"}) {
      ASSERT_OK_AND_ASSIGN(const auto named,
                           ckpt::convert::OpenForeignFolder(beside, {.format = format}));
      EXPECT_EQ(named->format(), "safetensors");
      EXPECT_EQ(Load(*named), Load(*expected));
    }
  }
}

TEST(StateDictTest, AFileOfATrainerThatIsAllThereIsIsNotCalledLeftOut) {
  for (const std::string name : {"rng_state.pth", "scheduler.bin"}) {
    const auto storage = Copied({{name, "trainer/scheduler.pt"}});
    ASSERT_OK_AND_ASSIGN(const auto opened, ckpt::convert::OpenForeignFolder(storage, {}));
    EXPECT_THAT(opened->notes(), ElementsAre()) << name;
    EXPECT_EQ(ValueOf<int64_t>(*opened, "last_epoch"), 3);
    const auto values = ckpt::convert::ValuesByName(opened->state());
    EXPECT_FALSE(values.contains("scheduler.last_epoch")) << name;
  }
}

// A name that any script may use is shown and means nothing.
TEST(StateDictTest, AValueCalledStepInDcp) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStateDict(StateDictFixture("numbered_dcp"), &model));
  EXPECT_EQ(ManifestOf(*storage).trainer().step(), 2);
  EXPECT_EQ(ValueOf<int64_t>(*storage, "step"), 17);
}

// Two layers are alike, and the optimizer has the parameters of one: unless it has their names, the
// moments stay where they are.
TEST(StateDictTest, MomentsByNumberThatMayBeSeveral) {
  const ckpt::ModelProto model = ModelOf(HuggingFace("gpt2.hf"));
  ASSERT_OK_AND_ASSIGN(const auto ambiguous,
                       OpenStateDict(StateDictFixture("ambiguous.pt"), &model));
  EXPECT_THAT(ambiguous->notes(),
              ElementsAre(HasSubstr("Moments by number keep their names: parameter 1 of the "
                                    "optimizer may be transformer.ln_f.weight or "
                                    "transformer.ln_f.bias; ")));
  const ckpt::Manifest manifest = ManifestOf(*ambiguous);
  EXPECT_EQ(manifest.optimizer().parameters_size(), 0);
  EXPECT_FALSE(manifest.has_trainer());
  EXPECT_TRUE(Load(*ambiguous).contains("optimizer.state.0.exp_avg"));

  ASSERT_OK_AND_ASSIGN(const auto named, OpenStateDict(StateDictFixture("named.pt"), &model));
  EXPECT_EQ(ManifestOf(*named).optimizer().parameters_size(), 2);
  EXPECT_EQ(LoadUntied(*named), ReadExpected("named"));
}

}  // namespace
}  // namespace tessera
