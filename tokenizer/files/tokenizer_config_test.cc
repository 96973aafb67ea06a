// What tokenizer.json and the files beside it say.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "base/file_descriptor.h"
#include "base/testing.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/load_tokenizer.h"
#include "tokenizer/files/test_data.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Copies a tokenizer's files.
void CopyTokenizer(const std::string& name, const TestFolder& folder) {
  for (const std::string file : {"tokenizer.json", "vocab.json", "merges.txt"}) {
    const std::string path = "tokenizer/testdata/" + name + "/" + file;
    if (std::filesystem::exists(path)) folder.Write(file, OrFail(ReadFile(path, 1 << 20)));
  }
}

void ExpectLoadRefused(const TestFolder& folder, const std::string& part) {
  const absl::Status status = LoadTokenizer(folder.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << part << ": " << status;
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
}

// transformers gives "the file" the ids of " the file" then, whatever the class.
TEST(TokenizerConfigTest, APrefixThatTheVocabularyDoesNotAddIsRefused) {
  for (const char* name : {"gpt2", "gpt2_json"}) {
    const TestFolder folder;
    CopyTokenizer(name, folder);
    folder.Write("tokenizer_config.json", R"({"add_prefix_space": true})");
    ExpectLoadRefused(folder, "add_prefix_space is true");
    folder.Write("tokenizer_config.json", R"({"add_prefix_space": false})");
    EXPECT_OK(LoadTokenizer(folder.path()));
    folder.Write("tokenizer_config.json", R"({"add_prefix_space": null})");
    EXPECT_OK(LoadTokenizer(folder.path()));
  }
  const TestFolder llama2;
  CopyTokenizer("llama2", llama2);
  llama2.Write("tokenizer_config.json", R"({"add_prefix_space": true})");
  EXPECT_OK(LoadTokenizer(llama2.path()));
  llama2.Write("tokenizer_config.json", R"({"add_prefix_space": false})");
  ExpectLoadRefused(llama2, "add_prefix_space is false");
}

TEST(TokenizerConfigTest, AddedTokensThatTheVocabularyLacksAreRefused) {
  for (const char* name : {"gpt2", "gpt2_json"}) {
    const TestFolder folder;
    CopyTokenizer(name, folder);
    const auto plain = OrFail(LoadTokenizer(folder.path()));
    const std::string end = std::to_string(plain->end_of_text());
    const auto write = [&](const std::string& id, const Json& token) {
      folder.Write("tokenizer_config.json", Json{{"added_tokens_decoder", {{id, token}}}}.dump());
    };
    write(end, {{"content", "<|endoftext|>"}, {"lstrip", false}});
    EXPECT_OK(LoadTokenizer(folder.path()));
    write(end, {{"content", "<|endoftext|>"}, {"lstrip", true}});
    ExpectLoadRefused(folder, "lstrip is true");
    write(std::to_string(plain->vocab_size()), {{"content", "<user>"}});
    ExpectLoadRefused(folder, "<user>");
    write("5", {{"content", "<|endoftext|>"}});
    ExpectLoadRefused(folder, "<|endoftext|> of id 5");
    write(end, 7);
    EXPECT_TRUE(absl::IsDataLoss(LoadTokenizer(folder.path()).status()));

    std::filesystem::remove(folder.File("tokenizer_config.json"));
    folder.Write("added_tokens.json", R"({"<user>": 1300})");
    ExpectLoadRefused(folder, "<user> of id 1300");
    folder.Write("added_tokens.json", R"({"<|endoftext|>": )" + end + "}");
    EXPECT_OK(LoadTokenizer(folder.path()));
    folder.Write("added_tokens.json", "[]");
    EXPECT_TRUE(absl::IsDataLoss(LoadTokenizer(folder.path()).status()));
  }
}

// In Oniguruma, {1,3}+ is a repetition of a repetition: "12345678" stays one piece there.
TEST(TokenizerConfigTest, TheExpressionOfTiktokenMeansAnotherThingInTokenizerJson) {
  Json file = TestJson("llama3/tokenizer.json");
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kCl100kRegex;
  const absl::Status status = ParseTokenizerJson("FILE", file.dump()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("pattern.Regex"), std::string::npos) << status;
}

}  // namespace
}  // namespace tessera
