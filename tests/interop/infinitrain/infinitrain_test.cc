// Checkpoints of InfiniTrain: what becomes of what their files tell, and which of them are refused.
// layouts_test continues runs from them.

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "convert/core/foreign_storage.h"
#include "convert/open_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_fixture.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ReadFileBytes;
using testing::WriteFileBytes;
using Foreign = std::unique_ptr<ckpt::convert::ForeignStorage>;

constexpr char kLlama[] = "tests/interop/infinitrain/llama3/checkpoint_step_000003";
constexpr char kNumbered[] = "tests/interop/infinitrain/llama3_numbered/checkpoint_step_000003";
constexpr char kRanks[] = "tests/interop/infinitrain/gpt2_dp2/checkpoint_step_000002";

absl::StatusOr<Foreign> Open(const std::string& folder) {
  return ckpt::convert::OpenForeign(folder, {});
}

std::string ErrorOf(const std::string& folder) {
  const absl::Status status = Open(folder).status();
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

ckpt::Manifest ManifestOf(ckpt::Storage& storage) {
  const auto manifest = ckpt::ReadManifest(storage, "");
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return manifest.value_or(ckpt::Manifest());
}

std::vector<std::string> NamesOf(const ckpt::Manifest& manifest) {
  std::vector<std::string> names;
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) names.push_back(tensor.name());
  return names;
}

// Replaces all texts in a file, by texts of the same length in those with tensors.
void Edit(const fs::path& path, const std::string& from, const std::string& to) {
  const std::string bytes = ReadFileBytes(path);
  const std::string edited = absl::StrReplaceAll(bytes, {{from, to}});
  EXPECT_NE(edited, bytes) << path << " has no " << from;
  WriteFileBytes(path, edited);
}

class InfiniTrainTest : public testing::ForeignFixture {
 protected:
  // A copy of a checkpoint with the config.json of its model.
  std::string Copy(const char* checkpoint) const {
    const std::string copy = CopyOf(checkpoint);
    for (const auto& entry : fs::recursive_directory_iterator(copy)) {
      fs::permissions(entry.path(), fs::perms::owner_all);
    }
    const std::string model = checkpoint == std::string(kRanks) ? "gpt2" : "llama3_untied";
    WriteFileBytes(fs::path(copy) / "config.json",
                   ReadFileBytes("tests/fixtures/pytorch/" + model + ".hf/config.json"));
    return copy;
  }
};

TEST_F(InfiniTrainTest, OneRank) {
  const auto storage = Open(Copy(kLlama));
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "infinitrain");
  EXPECT_THAT((*storage)->notes(), IsEmpty());
  const ckpt::Manifest manifest = ManifestOf(**storage);
  EXPECT_EQ(manifest.trainer().step(), 3);
  EXPECT_EQ(manifest.trainer().data().consumed_samples(), 24);
  EXPECT_TRUE(manifest.has_optimizer());
  EXPECT_EQ(manifest.tensors_size(), 63);
}

TEST_F(InfiniTrainTest, WithoutAModelNamesAreThoseOfTheFiles) {
  const auto storage = Open(kLlama);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const ckpt::Manifest manifest = ManifestOf(**storage);
  EXPECT_FALSE(manifest.has_model());
  EXPECT_EQ(manifest.trainer().step(), 3);
  EXPECT_THAT(NamesOf(manifest), Contains("transformer.h.1.mlp.c_fc2.weight"));
  EXPECT_THAT(NamesOf(manifest), Contains("state.transformer.wte.weight.exp_avg"));
}

// Weights are the same as those beside moments by name, in spite of a missing comma.
TEST_F(InfiniTrainTest, MomentsByNumberAreLeftOut) {
  const auto storage = Open(Copy(kNumbered));
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_THAT((*storage)->notes(),
              ElementsAre(HasSubstr("Left out: moments by number (adam.m.3)")));
  const ckpt::Manifest manifest = ManifestOf(**storage);
  EXPECT_FALSE(manifest.has_optimizer());
  EXPECT_EQ(manifest.trainer().step(), 3);
  EXPECT_FALSE(manifest.trainer().has_data());
  EXPECT_EQ(manifest.tensors_size(), 21);
}

TEST_F(InfiniTrainTest, ConvertedAndComparedByDigests) {
  const std::string copy = Copy(kRanks), mine = In("mine");
  const auto run = [&](std::vector<std::string> args) {
    std::ostringstream out, err;
    const int code = ckpt::RunCkpt(std::move(args), {out, err, nullptr});
    EXPECT_EQ(code, ckpt::kExitOk) << out.str() << err.str();
  };
  run({"convert", copy, mine, "--to=tessera", "--topology=tp2_pp2"});
  run({"diff", copy, mine});
}

TEST_F(InfiniTrainTest, TheStepIsUnknownWhereFilesContradictEachOther) {
  std::string copy = Copy(kLlama);
  Edit(copy + "/trainer_state.json", "\"global_step\": 3", "\"global_step\": 4");
  auto storage = Open(copy);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_FALSE(ManifestOf(**storage).has_trainer());
  EXPECT_THAT((*storage)->notes(),
              ElementsAre("The step is unknown: global_step is 4, but Adam has counted 3 "
                          "updates."));
  // One of the two is enough.
  copy = Copy(kLlama);
  fs::remove(copy + "/trainer_state.json");
  storage = Open(copy);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ(ManifestOf(**storage).trainer().step(), 3);
  fs::remove(copy + "/optimizer.ckpt");
  storage = Open(copy);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_FALSE(ManifestOf(**storage).has_trainer());
}

TEST_F(InfiniTrainTest, TheModelMustBeThatOfTheFiles) {
  const std::string copy = Copy(kLlama);
  // A model whose tensors have the same shapes.
  Edit(copy + "/config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 2");
  Edit(copy + "/config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1");
  Edit(copy + "/config.json", "\"head_dim\": 4", "\"head_dim\": 8");
  const absl::Status status = Open(copy).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("trainer_state.json: n_head is 4, but the model's is 2"));
  // A model whose tensors have other shapes.
  const std::string other = Copy(kNumbered);
  Edit(other + "/config.json", "\"intermediate_size\": 56", "\"intermediate_size\": 48");
  EXPECT_THAT(ErrorOf(other), HasSubstr("expected [48,16], found [56,16]"));
}

TEST_F(InfiniTrainTest, RanksMustHaveTheWholeModel) {
  for (const char* key : {"tp_size", "pp_size", "sp_size"}) {
    const std::string copy = Copy(kRanks), size = std::string("\"") + key + "\": ";
    Edit(copy + "/rank_000001/trainer_state.json", size + "1", size + "2");
    const absl::Status status = Open(copy).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("rank_000000 to rank_000001: ") + key +
                          " in trainer_state.json is 2, but the files do not say how"));
  }
  const std::string copy = Copy(kRanks);
  fs::remove(copy + "/rank_000001/trainer_state.json");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("tp_size in trainer_state.json is missing"));
}

TEST_F(InfiniTrainTest, RanksMustAgree) {
  std::string copy = Copy(kRanks);
  Edit(copy + "/rank_000001/model.ckpt", "module.transformer.wpe.weight",
       "module.transformer.wpe.weighs");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("rank_000001/model.ckpt: tensor "
                                       "module.transformer.wpe.weighs: not in rank_000000"));
  copy = Copy(kRanks);
  fs::remove(copy + "/rank_000001/optimizer.ckpt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("missing, but in rank_000000"));
  copy = Copy(kRanks);
  Edit(copy + "/rank_000001/trainer_state.json", "\"global_step\": 2", "\"global_step\": 3");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("global_step differs from that of rank_000000"));
  copy = Copy(kRanks);
  fs::remove_all(copy + "/rank_000001");
  EXPECT_TRUE(Open(copy).ok());  // the other has the whole model
  copy = Copy(kRanks);
  fs::rename(copy + "/rank_000001", copy + "/rank_000002");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("rank_000001 is missing, rank_000002 is there"));
  copy = Copy(kRanks);
  fs::copy(copy + "/rank_000001", copy + "/rank_000002");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("expected 2 folders of ranks, found 3"));
  copy = Copy(kRanks);
  fs::copy(copy + "/rank_000001/model.ckpt", copy + "/model.ckpt");
  EXPECT_THAT(ErrorOf(copy), HasSubstr("both model.ckpt and rank_000000/ are there"));
}

// The last byte of a file belongs to some tensor.
TEST_F(InfiniTrainTest, CopiesMustBeEqual) {
  for (const char* file : {"rank_000001/model.ckpt", "rank_000000/optimizer.ckpt"}) {
    const std::string copy = Copy(kRanks);
    const fs::path path = fs::path(copy) / file;
    std::string bytes = ReadFileBytes(path);
    bytes.back() ^= 1;
    WriteFileBytes(path, bytes);
    const absl::Status status = Open(copy).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  }
}

// A head that was trained apart from the embedding does not fit this GPT-2.
TEST_F(InfiniTrainTest, TheHeadOfGpt2MustBeItsEmbedding) {
  constexpr std::string_view kHead = "module.lm_head.weight";
  constexpr size_t kHeaderBytes = 1 + 4 + 2 * 8 + 8;  // dtype, rank, dims, size
  const std::string copy = Copy(kRanks);
  for (const char* rank : {"rank_000000", "rank_000001"}) {
    const fs::path path = fs::path(copy) / rank / "model.ckpt";
    std::string bytes = ReadFileBytes(path);
    bytes.at(bytes.find(kHead) + kHead.size() + kHeaderBytes) ^= 1;
    WriteFileBytes(path, bytes);
  }
  EXPECT_THAT(ErrorOf(copy),
              HasSubstr("tensor transformer.wte.weight: the copies of [0:61,0:16] in "
                        "rank_000000/model.ckpt at offsets "));
}

TEST_F(InfiniTrainTest, RefusesTruncatedFiles) {
  for (const char* file : {"model.ckpt", "optimizer.ckpt"}) {
    const uint64_t size = fs::file_size(fs::path(kLlama) / file);
    for (const uint64_t length : {uint64_t{5}, size / 2, size - 1}) {
      const std::string copy = Copy(kLlama);
      fs::resize_file(fs::path(copy) / file, length);
      EXPECT_THAT(ErrorOf(copy), HasSubstr(file)) << length;
    }
  }
}

}  // namespace
}  // namespace tessera
