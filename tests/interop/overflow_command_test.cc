// `ckpt convert --dtype` never makes an infinity of a number unasked, in any format.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "convert/write_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using OverflowCommandTest = testing::ForeignTest;

// Sets element [1,2] of the embedding.
void SetEmbedding(const std::string& folder, float value) {
  const std::string path = folder + "/model.safetensors";
  std::string bytes = ReadFile(path);
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  const auto& entry = header.at("transformer.wte.weight");
  ASSERT_EQ(entry.at("dtype"), "F32");
  const uint64_t columns = entry.at("shape")[1];
  const uint64_t begin = 8 + header_bytes + entry.at("data_offsets")[0].get<uint64_t>();
  std::memcpy(bytes.data() + begin + (columns + 2) * sizeof(float), &value, sizeof(float));
  WriteFile(path, bytes);
}

TEST_F(OverflowCommandTest, EveryFormatNamesTheElementAndKeepsNoFile) {
  struct Narrow {
    std::string dtype, name;
    float value;
    std::string shown;
  };
  for (const Narrow& to : std::vector<Narrow>{{"f16", "F16", 65520, "65520"},
                                              {"f16", "F16", -1e30F, "-1e+30"},
                                              {"bf16", "BF16", 3.4e38F, "3.4e+38"}}) {
    const std::string source = CopyOf("tests/interop/pytorch/gpt2.hf");
    SetEmbedding(source, to.value);
    for (const std::string& format : ckpt::convert::WrittenFormatNames()) {
      if (format == "llmc" && to.dtype == "f16") continue;  // llm.c has no such files
      SCOPED_TRACE(format + " " + to.shown);
      const std::string made = In("made");
      const std::vector<std::string> convert = {"convert", source, made, "--to=" + format,
                                                "--dtype=" + to.dtype};
      EXPECT_EQ(Run(convert), 2);
      EXPECT_THAT(err_, HasSubstr(absl::StrCat("tensor transformer.wte.weight: element [1,2] is ",
                                               to.shown, ", which ", to.name, " cannot hold")));
      EXPECT_THAT(err_, HasSubstr("--allow-overflow"));
      EXPECT_FALSE(fs::exists(made));
      std::vector<std::string> allowed = convert;
      allowed.emplace_back("--allow-overflow");
      EXPECT_EQ(Run(allowed), 0) << err_;
      // This source has an infinity of its own.
      EXPECT_EQ(Run({"convert", made, In("again"), "--to=torch", "--dtype=f16"}), 0) << err_;
      fs::remove_all(made);
      fs::remove_all(In("again"));
    }
  }
}

TEST_F(OverflowCommandTest, TheFlagIsForOtherFormatsThanTessera) {
  EXPECT_EQ(Run({"convert", "tests/interop/pytorch/gpt2.hf", In("made"), "--to=tessera",
                 "--allow-overflow"}),
            2);
  EXPECT_THAT(err_, HasSubstr("--allow-overflow is not for --to=tessera"));
}

}  // namespace
}  // namespace tessera
