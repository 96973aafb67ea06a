// What tokenizer.json and the files beside it say.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "base/file_descriptor.h"
#include "base/testing.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/load_tokenizer.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

std::string FileText(const std::string& name) {
  return OrFail(ReadFile("tokenizer/testdata/" + name, 1 << 20));
}

// In Oniguruma, {1,3}+ is a repetition of a repetition: "12345678" stays one piece there.
TEST(TokenizerConfigTest, TheExpressionOfTiktokenMeansAnotherThingInTokenizerJson) {
  Json file = Json::parse(FileText("llama3/tokenizer.json"));
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kCl100kRegex;
  const absl::Status status = ParseTokenizerJson("FILE", file.dump()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("pattern.Regex"), std::string::npos) << status;
}

}  // namespace
}  // namespace tessera
