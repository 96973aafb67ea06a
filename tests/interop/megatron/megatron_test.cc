// Checkpoints that megatron-core has written (make_fixtures.py), against what it was given.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert/formats/open_foreign.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/tools/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/convert/model_rules.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

struct Fixture {
  const char* folder;
  const char* model;  // with ".safetensors": its weights and its optimizer's states
  bool has_master;
};

std::ostream& operator<<(std::ostream& out, const Fixture& fixture) {
  return out << fixture.folder;
}

std::string Path(const std::string& name) { return "tests/interop/megatron/" + name; }

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

class MegatronTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / "megatron";
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int exit_code = ckpt::RunCkpt(arguments, {out, err, nullptr}, &RegisteredModelRules());
    out_ = out.str();
    err_ = err.str();
    return exit_code;
  }

  // A copy of a checkpoint, to be changed.
  std::string Copy(const std::string& folder) const {
    fs::remove_all(root_ / "copy");
    fs::copy(Path(folder), root_ / "copy", fs::copy_options::recursive);
    return (root_ / "copy").string();
  }

  fs::path root_;
  std::string out_, err_;
};

class MegatronFixtureTest : public MegatronTest, public ::testing::WithParamInterface<Fixture> {};

TEST_P(MegatronFixtureTest, EveryTensorIsWhatMegatronWasGiven) {
  const auto storage =
      ckpt::convert::OpenForeign(Path(GetParam().folder), {.rules = &RegisteredModelRules()});
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->format(), "megatron");
  const auto checkpoint = ckpt::Checkpoint::Open(**storage, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->step(), 7);
  EXPECT_EQ(checkpoint->manifest().trainer().data().consumed_samples(), 56);

  const std::string file = ReadFile(Path(GetParam().model) + ".safetensors");
  const auto header_bytes = ckpt::SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  ASSERT_TRUE(header_bytes.ok()) << header_bytes.status();
  const auto header = ckpt::ParseSafetensorsHeader(file.substr(0, *header_bytes), file.size());
  ASSERT_TRUE(header.ok()) << header.status();
  std::map<std::string, const ckpt::SafetensorsEntry*> expected;
  for (const ckpt::SafetensorsEntry& entry : header->entries) {
    if (GetParam().has_master || !entry.key.ends_with(".master")) expected[entry.key] = &entry;
  }
  size_t compared = 0;
  for (const ckpt::TensorInfo& tensor : checkpoint->tensors()) {
    if (!tensor.alias_of.empty()) continue;
    ASSERT_TRUE(expected.contains(tensor.name)) << tensor.name;
    const ckpt::SafetensorsEntry& entry = *expected[tensor.name];
    EXPECT_EQ(tensor.global_shape, entry.shape);
    const auto found = ckpt::LoadTensor<float>(*checkpoint, tensor.name);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->size() * sizeof(float), entry.length_bytes);
    EXPECT_EQ(std::memcmp(found->data(), file.data() + entry.file_offset, entry.length_bytes), 0)
        << tensor.name;
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
}

TEST_P(MegatronFixtureTest, IsTheSameUnderEveryTopology) {
  for (const char* topology : {"single", "tp2", "pp2", "dp2_zero2_tp2_pp2"}) {
    const std::string written = (root_ / topology).string();
    ASSERT_EQ(Run({"convert", Path(GetParam().folder), written, "--to=tessera",
                   std::string("--topology=") + topology}),
              ckpt::kExitOk)
        << err_;
    EXPECT_EQ(Run({"diff", Path(GetParam().folder), written}), ckpt::kExitOk) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, MegatronFixtureTest,
    ::testing::Values(Fixture{"gpt2_single", "gpt2", false}, Fixture{"gpt2_tp2_pp2", "gpt2", false},
                      Fixture{"llama3_tied_pp2", "llama3_tied", false},
                      Fixture{"llama3_untied_single", "llama3_untied", false},
                      Fixture{"llama3_untied_dp2_tp2_pp2", "llama3_untied", true}),
    [](const auto& info) { return std::string(info.param.folder); });

TEST_F(MegatronTest, FindsTheLatestIterationOfARun) {
  fs::create_directories(root_ / "run");
  fs::copy(Path("gpt2_tp2_pp2"), root_ / "run/iter_0000007", fs::copy_options::recursive);
  std::ofstream(root_ / "run/latest_checkpointed_iteration.txt") << "7\n";
  EXPECT_EQ(Run({"diff", (root_ / "run").string(), Path("gpt2_single")}), ckpt::kExitOk)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
  EXPECT_EQ(Run({"inspect", (root_ / "run").string()}), ckpt::kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("format      megatron"));
}

TEST_F(MegatronTest, RefusesWhatIsMissingOrOfAnotherModel) {
  std::string folder = Copy("gpt2_tp2_pp2");
  fs::remove(folder + "/common.pt");
  EXPECT_NE(Run({"inspect", folder}), ckpt::kExitOk);
  EXPECT_THAT(err_, HasSubstr("common.pt"));
  folder = Copy("gpt2_tp2_pp2");
  fs::remove(folder + "/__2_0.distcp");
  EXPECT_NE(Run({"inspect", folder}), ckpt::kExitOk);
  EXPECT_THAT(err_, HasSubstr("__2_0.distcp"));
  folder = Copy("gpt2_tp2_pp2");
  fs::copy_file(Path("llama3_untied_single/common.pt"), folder + "/common.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(Run({"inspect", folder}), ckpt::kExitOk);
  EXPECT_THAT(err_, HasSubstr("belongs to no parameter of the model that common.pt describes"));
}

}  // namespace
}  // namespace tessera
