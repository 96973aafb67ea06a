// Folders of Hugging Face in which files of two saves lie: none of them is left out without a word.

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using HuggingFaceShardsTest = testing::ForeignTest;

constexpr char kSharded[] = "tests/interop/pytorch/llama3_untied.hf";

TEST_F(HuggingFaceShardsTest, AShardThatTheIndexDoesNotNameIsNoted) {
  const std::string copy = CopyOf(kSharded);
  fs::copy(copy + "/model-00002-of-00004.safetensors", copy + "/model-00005-of-00005.safetensors");
  ASSERT_EQ(Run({"inspect", copy}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Left out: files that model.safetensors.index.json does not name: "
                              "model-00005-of-00005.safetensors"));
}

TEST_F(HuggingFaceShardsTest, AnAdapterBesideTheModelIsNoted) {
  const std::string copy = CopyOf(kSharded);
  fs::copy(copy + "/model-00002-of-00004.safetensors", copy + "/adapter_model.safetensors");
  ASSERT_EQ(Run({"inspect", copy}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Left out: files of safetensors beside the model's: "
                              "adapter_model.safetensors"));
}

// transformers reads the single file. The shards have other weights.
TEST_F(HuggingFaceShardsTest, ASingleFileTakesThePlaceOfAnIndex) {
  const std::string copy = CopyOf(kSharded), single = In("single");
  ASSERT_EQ(Run({"convert", kSharded, single, "--to=hf", "--dtype=bf16"}), 0) << err_;
  fs::copy(single + "/model.safetensors", copy + "/model.safetensors");
  ASSERT_EQ(Run({"diff", copy, single, "--data"}), 0) << out_ << err_;
  constexpr char kLeftOut[] =
      "Left out: files that model.safetensors replaces: "
      "model.safetensors.index.json, model-00001-of-00004.safetensors";
  ASSERT_EQ(Run({"inspect", copy}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(kLeftOut));
  // The same with a damaged index.
  for (const std::string contents : {"", "{\"weight_map\": {\"a\": 1}}", "{\"weight_map\": {}}"}) {
    std::ofstream(copy + "/model.safetensors.index.json") << contents;
    ASSERT_EQ(Run({"diff", copy, single, "--data"}), 0) << out_ << err_;
    ASSERT_EQ(Run({"inspect", copy}), 0) << err_;
    EXPECT_THAT(out_, HasSubstr(kLeftOut));
    EXPECT_THAT(out_, HasSubstr("model.safetensors.index.json: "));
  }
}

// The first seven weights have exactly as many bytes as are allowed.
TEST_F(HuggingFaceShardsTest, FilesAreFullAndTheIndexCountsTheirBytes) {
  for (const auto& [dtype, size, total] :
       {std::tuple("bf16", "3552", 17888), {"f32", "7104", 35776}}) {
    const std::string folder = In(dtype);
    ASSERT_EQ(Run({"convert", kSharded, folder, "--to=hf", absl::StrCat("--dtype=", dtype),
                   absl::StrCat("--max-file-size=", size)}),
              0)
        << err_;
    const auto index =
        nlohmann::ordered_json::parse(ReadFile(folder + "/model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], total);
    std::string files;  // of the model's weights, in its order
    for (const auto& [weight, file] : index["weight_map"].items()) {
      files += file.get<std::string>()[10];
    }
    EXPECT_EQ(files, "111111123444444456778");
  }
}

}  // namespace
}  // namespace tessera
