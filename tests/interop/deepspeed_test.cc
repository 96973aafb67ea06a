// Checkpoints that DeepSpeed has saved, with every stage of ZeRO over several ranks, against the
// tensors that DeepSpeed itself gathered from them and from the running engines.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/manifest.h"
#include "convert/open_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

// Layouts, and the names that make_fixtures.py gives them.
constexpr const char* kLayouts[] = {"zero1",      "zero2_bf16",      "bf16_optimizer",
                                    "zero3_bf16", "zero3",           "zero3_bf16_gqa",
                                    "universal",  "universal_zero1", "universal_zero3"};

std::string Fixture(const std::string& name) { return "tests/interop/deepspeed/" + name; }

using Values = std::map<std::string, std::vector<float>>;

// What DeepSpeed gathered: fp32 weights under their names, moments, and rounded weights as
// NAME.module.
Values ReadExpected(const std::string& layout) {
  std::ifstream stream(Fixture(layout) + "/expected.safetensors", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  const auto header_bytes = ckpt::SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  EXPECT_TRUE(header_bytes.ok()) << header_bytes.status();
  const auto header = ckpt::ParseSafetensorsHeader(file.substr(0, *header_bytes), file.size());
  EXPECT_TRUE(header.ok()) << header.status();
  Values values;
  for (const ckpt::SafetensorsEntry& entry : header->entries) {
    const bool is_rounded = entry.dtype == ckpt::BF16;
    std::vector<float>& tensor = values[entry.key];
    for (uint64_t i = 0; i < entry.length_bytes; i += is_rounded ? 2 : 4) {
      uint32_t bits = 0;
      if (is_rounded) {
        uint16_t high;
        std::memcpy(&high, file.data() + entry.file_offset + i, sizeof(high));
        bits = static_cast<uint32_t>(high) << 16;
      } else {
        std::memcpy(&bits, file.data() + entry.file_offset + i, sizeof(bits));
      }
      tensor.push_back(std::bit_cast<float>(bits));
    }
  }
  return values;
}

// That the checkpoint has each expected tensor, bit for bit, and no other.
void ExpectHolds(const ckpt::Checkpoint& checkpoint, Values expected) {
  std::map<std::string, bool> names;
  for (const ckpt::TensorInfo& tensor : checkpoint.tensors()) names[tensor.name] = true;
  for (const ckpt::TensorInfo& tensor : checkpoint.tensors()) {
    if (!tensor.alias_of.empty()) continue;
    std::string key = tensor.name;
    if (key.ends_with(".master")) {
      key.resize(key.size() - std::string(".master").size());
    } else if (names.contains(key + ".master")) {
      key += ".module";
    }
    ASSERT_TRUE(expected.contains(key)) << tensor.name;
    const auto found = checkpoint.LoadTensor<float>(tensor.name);
    ASSERT_TRUE(found.ok()) << found.status();
    const std::vector<float>& values = expected[key];
    ASSERT_EQ(found->size(), values.size()) << tensor.name;
    EXPECT_EQ(std::memcmp(found->data(), values.data(), values.size() * sizeof(float)), 0)
        << tensor.name;
    expected.erase(key);
  }
  for (const auto& [key, unused] : expected) ADD_FAILURE() << "missing: " << key;
}

class DeepSpeedTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    root_ = fs::path(::testing::TempDir()) / name;
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  std::string In(const std::string& name) const { return (root_ / name).string(); }

  static auto Open(const std::string& folder) { return ckpt::convert::OpenForeign(folder, {}); }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int exit_code = ckpt::RunCkpt(arguments, {out, err, nullptr});
    err_ = err.str();
    return exit_code;
  }

  // A copy of a fixture, after a change to its inner folder.
  std::string Changed(const std::string& layout,
                      const std::function<void(const fs::path& folder)>& change) {
    const std::string copy = In("changed");
    fs::remove_all(copy);
    fs::copy(Fixture(layout), copy, fs::copy_options::recursive);
    change(fs::path(copy) / "global_step3");
    return copy;
  }

  // The message of the error with which the folder is refused.
  static std::string Refusal(const std::string& folder) {
    const auto storage = Open(folder);
    EXPECT_FALSE(storage.ok());
    return std::string(storage.status().message());
  }

  fs::path root_;
  std::string err_;
};

TEST_P(DeepSpeedTest, HoldsWhatDeepSpeedGathers) {
  const std::string layout = GetParam();
  // The folder that the program names, and the one with the files.
  for (const char* inner : {"", "/global_step3"}) {
    const auto storage = Open(Fixture(layout) + inner);
    ASSERT_TRUE(storage.ok()) << storage.status();
    EXPECT_EQ((*storage)->format(), "deepspeed");
    const auto checkpoint = ckpt::Checkpoint::Open(**storage, "");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->step(), 3);
    // One on each rank and step.
    const ckpt::Manifest& manifest = checkpoint->manifest();
    EXPECT_EQ(manifest.trainer().data().consumed_samples(),
              3 * manifest.topology().data_parallel());
    ExpectHolds(*checkpoint, ReadExpected(layout));
  }
}

TEST_P(DeepSpeedTest, HoldsItUnderEveryTopology) {
  const std::string layout = GetParam();
  const Values expected = ReadExpected(layout);
  for (const char* topology : {"single", "tp2", "pp2", "dp2_zero2_tp2_pp2"}) {
    const std::string folder = In(topology);
    ASSERT_EQ(Run({"convert", Fixture(layout), folder, "--to=tessera",
                   std::string("--topology=") + topology}),
              0)
        << err_;
    const auto storage = ckpt::OpenStorage(folder);
    ASSERT_TRUE(storage.ok()) << storage.status();
    const auto latest = ckpt::Latest(**storage, "");
    ASSERT_TRUE(latest.ok()) << latest.status();
    const auto checkpoint = ckpt::Checkpoint::Open(**storage, latest->directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ExpectHolds(*checkpoint, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeepSpeedTest, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return std::string(info.param); });

using DeepSpeedRefusalTest = DeepSpeedTest;

TEST_F(DeepSpeedRefusalTest, AMissingRank) {
  const std::string folder = Changed("zero2_bf16", [](const fs::path& inner) {
    fs::remove(inner / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  });
  EXPECT_THAT(Refusal(folder), HasSubstr("the files of these data-parallel ranks are missing: 1"));
}

TEST_F(DeepSpeedRefusalTest, TheLastRankIsMissing) {
  const std::string folder = Changed("zero2_bf16", [](const fs::path& inner) {
    fs::remove(inner / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt");
  });
  EXPECT_THAT(Refusal(folder),
              HasSubstr("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt: the state was cut among 3 "
                        "ranks, but 2 have files"));
}

TEST_F(DeepSpeedRefusalTest, TwoFilesOfOneRank) {
  const std::string folder = Changed("zero2_bf16", [](const fs::path& inner) {
    fs::copy(inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
             inner / "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  });
  EXPECT_THAT(Refusal(folder), HasSubstr("are both files of one rank"));
}

TEST_F(DeepSpeedRefusalTest, ModelParallelRanks) {
  const std::string folder = Changed("zero1", [](const fs::path& inner) {
    fs::copy(inner / "mp_rank_00_model_states.pt", inner / "mp_rank_01_model_states.pt");
  });
  EXPECT_THAT(Refusal(folder),
              HasSubstr("mp_rank_01_model_states.pt is of a model-parallel rank, a pipeline's "
                        "layer or an expert: such checkpoints are read after DeepSpeed's "
                        "ds_to_universal has converted them"));
}

TEST_F(DeepSpeedRefusalTest, TheModelsFileIsMissing) {
  const std::string folder = Changed(
      "zero1", [](const fs::path& inner) { fs::remove(inner / "mp_rank_00_model_states.pt"); });
  EXPECT_THAT(Refusal(folder), HasSubstr("the model's file beside it is missing"));
}

TEST_F(DeepSpeedRefusalTest, LatestNamesAMissingFolder) {
  const std::string folder = Changed("zero1", [](const fs::path& inner) { fs::remove_all(inner); });
  EXPECT_THAT(Refusal(folder), HasSubstr("latest names the folder global_step3, which is missing"));
}

// The file of a rank from another run, of more ranks.
TEST_F(DeepSpeedRefusalTest, AFileOfAnotherRun) {
  const std::string folder = Changed("zero1", [](const fs::path& inner) {
    fs::copy_file(
        Fixture("zero2_bf16") + "/global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        inner / "zero_pp_rank_1_mp_rank_00_optim_states.pt", fs::copy_options::overwrite_existing);
  });
  EXPECT_THAT(Refusal(folder), HasSubstr("zero_pp_rank_1_mp_rank_00_optim_states.pt: the state was "
                                         "cut among 3 ranks, but 2 have files"));
}

TEST_F(DeepSpeedRefusalTest, AnotherModel) {
  const std::string folder = Changed("zero1", [](const fs::path& inner) {
    fs::copy_file(Fixture("zero3_bf16") + "/config.json", inner.parent_path() / "config.json",
                  fs::copy_options::overwrite_existing);
  });
  EXPECT_THAT(Refusal(folder), HasSubstr("parameter model.embed_tokens.weight is missing"));
}

TEST_F(DeepSpeedRefusalTest, AUniversalParameterWithoutWeights) {
  const std::string folder = Changed("universal", [](const fs::path& inner) {
    fs::remove(inner / "zero" / "transformer.ln_f.weight" / "fp32.pt");
  });
  EXPECT_THAT(Refusal(folder), HasSubstr("zero/transformer.ln_f.weight/fp32.pt is missing"));
}

// Names of other models: everything but what needs the model.
TEST_F(DeepSpeedRefusalTest, WithoutAConfigTheNamesAreDeepSpeeds) {
  for (const char* layout : {"zero1", "universal"}) {
    const std::string folder = Changed(
        layout, [](const fs::path& inner) { fs::remove(inner.parent_path() / "config.json"); });
    const auto storage = Open(folder);
    ASSERT_TRUE(storage.ok()) << storage.status();
    const auto checkpoint = ckpt::Checkpoint::Open(**storage, "");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ExpectHolds(*checkpoint, ReadExpected(layout));
    EXPECT_TRUE(checkpoint->manifest().model().architecture().empty());
  }
}

}  // namespace
}  // namespace tessera
