#include "trainer/data/prepare_data.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <span>

#include "base/file_descriptor.h"
#include "base/testing.h"
#include "nlohmann/json.hpp"
#include "tests/worlds/power/power_loss.h"
#include "tokenizer/files/load_tokenizer.h"
#include "trainer/data/test_files.h"
#include "trainer/data/token_checksums.h"

namespace tessera {
namespace {

const std::string kGpt2Folder = "tokenizer/testdata/gpt2";
const std::string kLlama3Folder = "tokenizer/testdata/llama3";

void IgnoreProgress(std::string_view, int64_t, int64_t) {}

absl::StatusOr<PrepareDataResult> Prepare(const PrepareDataOptions& options) {
  return PrepareData(options, IgnoreProgress);
}

std::vector<int32_t> AllTokens(const std::string& pattern) {
  std::vector<int32_t> tokens;
  const std::vector<std::string> paths = *Glob(pattern);
  for (const std::string& path : paths) {
    const auto file = OrFail(TokenFile::Open(path));
    std::vector<int32_t> shard(file->count());
    EXPECT_OK(file->Read(0, 1 << 16, shard));
    tokens.insert(tokens.end(), shard.begin(), shard.end());
  }
  return tokens;
}

std::map<std::string, std::string> Snapshot(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename().string()] = Slurp(entry.path().string());
  }
  return files;
}

class PrepareDataTest : public ::testing::Test {
 protected:
  // Fifty small documents in two folders, and what is skipped: a hidden folder, a binary file, an
  // empty one and a dangling link.
  PrepareDataTest() {
    for (int i = 0; i < 50; ++i) {
      std::string text;
      for (int line = 0; line <= i % 7; ++line) {
        text += "document " + std::to_string(i) + " line " + std::to_string(line) + "\n";
      }
      in_.Write((i % 2 ? "a/doc" : "b/deeper/doc") + std::to_string(i) + ".txt", text);
    }
    in_.Write(".hidden/doc.txt", "hidden");
    in_.Write("a/image.png", std::string("\x89PNG\0\0", 6));
    in_.Write("a/nothing.txt", "");
    std::filesystem::create_symlink("missing", in_.File("nowhere"));
    options_.inputs = {in_.path()};
    options_.output_dir = out_.File("data");
    options_.tokenizer = "byte";
    options_.validation_fraction = 0.2;
    options_.shard_tokens = 700;
  }

  TestFolder in_, out_;
  PrepareDataOptions options_;
};

TEST_F(PrepareDataTest, TokensAreTheDocumentsEachOnce) {
  ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
  EXPECT_FALSE(result.up_to_date);
  std::map<std::string, std::string> skipped;
  for (const SkippedFile& file : result.skipped) skipped[file.path] = file.reason;
  const std::map<std::string, std::string> expected_skipped = {
      {in_.File(".hidden"), "hidden"},
      {in_.File("a/image.png"), "not text: a zero byte in its first 4 KiB"},
      {in_.File("a/nothing.txt"), "empty"},
      {in_.File("nowhere"), "not a regular file"}};
  EXPECT_EQ(skipped, expected_skipped);
  const DatasetSummary& summary = result.summary;
  EXPECT_EQ(summary.split, "documents");
  EXPECT_EQ(summary.train.documents + summary.validation.documents, 50);
  EXPECT_GT(summary.validation.documents, 1);

  ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(options_.output_dir + "/tokenizer.bin"));
  std::map<std::string, int> expected, found;
  const DocumentList list = *FindDocuments(options_.inputs);
  for (const std::string& path : list.paths) {
    if (const std::string text = Slurp(path); !text.empty()) ++expected[text];
  }
  int64_t tokens_seen = 0;
  for (const char* prefix : {"train", "val"}) {
    const std::vector<int32_t> tokens = AllTokens(options_.output_dir + "/" + prefix + "_*.bin");
    tokens_seen += tokens.size();
    ASSERT_EQ(tokens.at(0), 256);
    std::string document;
    for (size_t i = 1; i <= tokens.size(); ++i) {
      if (i < tokens.size() && tokens[i] != 256) {
        document += tokenizer->TokenText(tokens[i]);
        continue;
      }
      ++found[document];
      document.clear();
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(tokens_seen, summary.train.tokens + summary.validation.tokens);
  const auto first = TokenFile::Open(options_.output_dir + "/train_000.bin");
  EXPECT_EQ((*first)->count(), 700);
}

TEST_F(PrepareDataTest, SameInputsAreNotPreparedTwiceAndGiveTheSameBytes) {
  ASSERT_OK(Prepare(options_));
  const auto files = Snapshot(options_.output_dir);
  ASSERT_OK_AND_ASSIGN(const auto again, Prepare(options_));
  EXPECT_TRUE(again.up_to_date);
  EXPECT_EQ(again.summary.files.size() + 1, files.size());

  std::filesystem::remove(options_.output_dir + "/train_000.bin");
  EXPECT_FALSE(Prepare(options_)->up_to_date);
  EXPECT_EQ(Snapshot(options_.output_dir), files);

  // A text with one byte changed is a different input.
  in_.Write("a/doc1.txt", "document 1 line 0\ndocument 1 line X\n");
  EXPECT_FALSE(Prepare(options_)->up_to_date);
  EXPECT_NE(Snapshot(options_.output_dir), files);
}

TEST_F(PrepareDataTest, OldShardsGoAndForeignOnesAreLeftAlone) {
  ASSERT_OK(Prepare(options_));
  EXPECT_TRUE(std::filesystem::exists(options_.output_dir + "/train_001.bin"));
  options_.shard_tokens = 1000000;
  ASSERT_OK(Prepare(options_));
  EXPECT_FALSE(std::filesystem::exists(options_.output_dir + "/train_001.bin"));
  EXPECT_FALSE(std::filesystem::exists(options_.output_dir + "/train_001.bin.crc32c"));
  EXPECT_NE((*TokenFile::Open(options_.output_dir + "/train_000.bin"))->CompleteFingerprint(), 0u);
  out_.Write("data/train_005.bin", "mine");
  options_.shard_tokens = 500;
  ExpectError(Prepare(options_).status(), absl::StatusCode::kFailedPrecondition, "train_005.bin");
  EXPECT_EQ(Slurp(options_.output_dir + "/train_005.bin"), "mine");
}

TEST_F(PrepareDataTest, FilesChangedOnPurposeGetOtherChecksums) {
  ASSERT_OK(Prepare(options_));
  const std::string path = options_.output_dir + "/train_000.bin";
  std::string contents = Slurp(path);
  contents[2000] ^= 1;
  out_.Write("data/train_000.bin", contents);
  std::vector<int32_t> tokens(700);
  EXPECT_TRUE(absl::IsDataLoss((*TokenFile::Open(path))->Read(0, 257, tokens)));
  ASSERT_OK_AND_ASSIGN(const int64_t files,
                       AddChecksums(options_.output_dir + "/train_*", IgnoreProgress));
  EXPECT_GT(files, 1);
  EXPECT_OK((*TokenFile::Open(path))->Read(0, 257, tokens));
  ExpectError(AddChecksums(out_.File("none*"), IgnoreProgress).status(),
              absl::StatusCode::kNotFound, "none*");
}

// A run that died while files were exchanged is detected by the next one.
TEST_F(PrepareDataTest, RecoversFromAnInterruptedExchange) {
  ASSERT_OK(Prepare(options_));
  const auto files = Snapshot(options_.output_dir);
  DatasetSummary summary = *ReadDatasetSummary(options_.output_dir);
  summary.request.clear();
  summary.files.push_back({"train_099.bin", 4});
  out_.Write("data/train_099.bin", "left");
  ASSERT_OK(WriteDatasetSummary(summary, options_.output_dir));
  ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
  EXPECT_FALSE(result.up_to_date);
  EXPECT_EQ(Snapshot(options_.output_dir), files);
}

TEST_F(PrepareDataTest, FewDocumentsAreSplitAtTheirTails) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  options_.inputs = {in_.Write("one.txt", text)};
  options_.validation_fraction = 0.1;
  ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
  EXPECT_EQ(result.summary.split, "tails");
  EXPECT_EQ(result.summary.train.text_bytes + result.summary.validation.text_bytes, text.size());
  EXPECT_NEAR(result.summary.validation.text_bytes, 0.1 * text.size(), 20);
  const std::vector<int32_t> tokens = AllTokens(options_.output_dir + "/val_*.bin");
  EXPECT_EQ(std::string(tokens.begin() + 1, tokens.begin() + 6), "line ");
  EXPECT_EQ(tokens.back(), '\n');
}

TEST_F(PrepareDataTest, StagingFoldersOfKilledRunsGo) {
  namespace fs = std::filesystem;
  const std::string& folder = options_.output_dir;
  fs::create_directories(folder + "/.staging-aB3dEf/below");
  fs::create_directories(folder + "/.staging-atwork");
  fs::create_directories(folder + "/.staging-of-somebody");
  const int fd = open((folder + "/.staging-atwork").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  ASSERT_OK(Prepare(options_));
  EXPECT_FALSE(fs::exists(folder + "/.staging-aB3dEf"));
  EXPECT_TRUE(fs::exists(folder + "/.staging-atwork"));
  EXPECT_TRUE(fs::exists(folder + "/.staging-of-somebody"));
  close(fd);
}

TEST_F(PrepareDataTest, TooLittleTextIsSaidInOneSentence) {
  options_.inputs = {in_.Write("tiny.txt", "one\n")};
  options_.tokenizer = "sentencepiece";
  options_.validation_fraction = 0;
  options_.vocab_size = 5000;
  const absl::Status status = Prepare(options_).status();
  ExpectError(status, absl::StatusCode::kInvalidArgument, "vocab_size is 5000: ");
  EXPECT_EQ(MessageOf(status).find(".cc"), std::string::npos) << status;
  std::string many;  // different characters, more than the vocabulary holds
  for (int c = 0; c < 400; ++c) {
    many += static_cast<char>(0xE4 + c / 4096);
    many += static_cast<char>(0x80 + c / 64);
    many += static_cast<char>(0x80 + c % 64);
  }
  options_.inputs = {in_.Write("many.txt", many + "\n")};
  options_.vocab_size = 300;
  const absl::Status small = Prepare(options_).status();
  ExpectError(small, absl::StatusCode::kInvalidArgument, "vocab_size is 300: ");
  EXPECT_EQ(MessageOf(small).find(".cc"), std::string::npos) << small;
}

TEST_F(PrepareDataTest, WithoutValidation) {
  options_.validation_fraction = 0;
  ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
  EXPECT_EQ(result.summary.split, "none");
  EXPECT_FALSE(Glob(options_.output_dir + "/val_*.bin").ok());
  EXPECT_GT(result.summary.unigram_nats_per_token, 1);
}

TEST_F(PrepareDataTest, SentencePieceOnRealText) {
  options_.inputs = {*DefaultCorpusPattern()};
  options_.inputs[0].replace(options_.inputs[0].find("*.pod"), 5, "perlre*.pod");
  options_.tokenizer = "sentencepiece";
  options_.vocab_size = 1000;
  options_.format = TokenFormat::kLlama3;
  options_.tokenizer_sample_bytes = 200000;
  ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
  const DatasetSummary& summary = result.summary;
  EXPECT_EQ(summary.vocab_size, 1000);
  EXPECT_LT(summary.train.tokens, summary.train.text_bytes / 2);
  EXPECT_GT(summary.unigram_nats_per_token, 4);
  EXPECT_LT(summary.unigram_nats_per_token, std::log(1000));
  const auto tokenizer = LoadTokenizer(options_.output_dir + "/tokenizer.model");
  const auto table = LoadTokenizer(options_.output_dir + "/tokenizer.bin");
  ASSERT_TRUE(tokenizer.ok() && table.ok());
  const std::vector<int32_t> tokens = AllTokens(options_.output_dir + "/train_*.bin");
  const std::string text = *(*tokenizer)->Decode(tokens);
  EXPECT_EQ(text, *(*table)->Decode(tokens));
  EXPECT_EQ(text.size(),
            summary.train.text_bytes + summary.train.documents * kEndOfTextMarker.size());
}

TEST_F(PrepareDataTest, OptionErrorsNameTheOption) {
  const auto expect = [this](const auto& change, const char* part) {
    PrepareDataOptions options = options_;
    change(options);
    ExpectError(Prepare(options).status(), absl::StatusCode::kInvalidArgument, part);
    EXPECT_FALSE(std::filesystem::exists(options_.output_dir + "/train_000.bin"));
  };
  expect([](auto& o) { o.output_dir = ""; }, "output_dir");
  expect([](auto& o) { o.tokenizer = "word"; }, "tokenizer is word");
  expect([](auto& o) { o.threads = -1; }, "threads is -1");
  expect([](auto& o) { o.begin_of_text = true; }, "begin_of_text is true");
  expect([](auto& o) { o.tokenizer = kGpt2Folder, o.vocab_size = 300; }, "vocab_size is 300");
  const std::string table = in_.Write(".table", Int32Header({20240328, 2, 1, 0}) + "\x01x");
  expect([&](auto& o) { o.tokenizer = table; }, "can only decode");
  expect([](auto& o) { o.vocab_size = 300; }, "vocab_size is 300");
  expect([](auto& o) { o.validation_fraction = 1; }, "validation_fraction is 1");
  expect([](auto& o) { o.validation_fraction = -0.1; }, "validation_fraction is -0.1");
  expect([](auto& o) { o.validation_fraction = NAN; }, "validation_fraction is nan");
  expect([](auto& o) { o.shard_tokens = 0; }, "shard_tokens is 0");
  expect([](auto& o) { o.tokenizer_sample_bytes = 0; }, "tokenizer_sample_bytes is 0");
  const auto sentencepiece = [](int64_t vocab_size) {
    return [vocab_size](auto& o) {
      o.tokenizer = "sentencepiece";
      o.vocab_size = vocab_size;
    };
  };
  expect(sentencepiece(100), "vocab_size is 100");
  expect(sentencepiece(65537), "vocab_size is 65537");
  expect(sentencepiece(60000), "vocab_size is 60000: the text supports");
}

// A document that is longer than a chunk, with many kinds of places where it could be cut.
std::string LongDocument() {
  const std::vector<std::string> parts = {"word",  " two", "\n\n",  "   ", "12345",        " 7",
                                          "...\n", "\r\n", " it's", "\t",  "\xE4\xB8\xAD", "?!"};
  std::string text;
  for (uint32_t i = 1; text.size() < (5 << 18); i = i * 1664525 + 1013904223) {
    text += parts[(i >> 20) % parts.size()];
  }
  return text;
}

TEST_F(PrepareDataTest, AGivenTokenizerEncodesWholeDocumentsOnAnyNumberOfThreads) {
  // No place to cut, but the end.
  in_.Write("a/long.txt", LongDocument());
  in_.Write("a/uncut.txt", std::string((1 << 20) + 5, '.'));
  options_.shard_tokens = 1 << 30;
  options_.validation_fraction = 0;
  for (const std::string& folder : {kGpt2Folder, kLlama3Folder}) {
    options_.tokenizer = folder;
    options_.begin_of_text = folder == kLlama3Folder;
    std::map<std::string, std::string> files;
    for (const int threads : {1, 3}) {
      options_.threads = threads;
      options_.output_dir = out_.File("data" + std::to_string(threads));
      ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
      EXPECT_EQ(result.summary.tokenizer, "bpe");
      EXPECT_EQ(result.summary.format, "gpt2");
      if (threads == 1) files = Snapshot(options_.output_dir);
      EXPECT_TRUE(Snapshot(options_.output_dir) == files) << threads;
    }
    // The folder can be given in place of the original.
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(options_.output_dir));
    std::map<std::vector<int32_t>, int> expected, found;
    const DocumentList list = *FindDocuments(options_.inputs);
    for (const std::string& path : list.paths) {
      if (const std::string text = Slurp(path); !text.empty()) {
        std::vector<int32_t> ids = *tokenizer->Encode(text);
        if (options_.begin_of_text) ids.insert(ids.begin(), *tokenizer->begin_of_text());
        ++expected[ids];
      }
    }
    const std::vector<int32_t> tokens = AllTokens(options_.output_dir + "/train_*.bin");
    ASSERT_EQ(tokens.at(0), tokenizer->end_of_text());
    std::vector<int32_t> document;
    for (size_t i = 1; i <= tokens.size(); ++i) {
      if (i < tokens.size() && tokens[i] != tokenizer->end_of_text()) {
        document.push_back(tokens[i]);
        continue;
      }
      ++found[document];
      document.clear();
    }
    EXPECT_TRUE(found == expected);
  }
}

TEST_F(PrepareDataTest, TheFormatFollowsFromTheVocabulary) {
  auto vocabulary = nlohmann::json::parse(Slurp(kGpt2Folder + "/vocab.json"));
  const int64_t end_of_text = vocabulary["<|endoftext|>"];
  for (size_t id = vocabulary.size(); id < 70000; ++id)
    vocabulary["token" + std::to_string(id)] = id;
  out_.Write("tokenizer/merges.txt", Slurp(kGpt2Folder + "/merges.txt"));
  options_.tokenizer = out_.Write("tokenizer/vocab.json", vocabulary.dump());
  ASSERT_OK_AND_ASSIGN(const auto result, Prepare(options_));
  EXPECT_EQ(result.summary.format, "llama3");
  EXPECT_EQ(result.summary.vocab_size, 70000);
  EXPECT_EQ(result.summary.end_of_text, end_of_text);
  EXPECT_TRUE(Prepare(options_)->up_to_date);
  options_.format = TokenFormat::kGpt2;
  ExpectError(Prepare(options_).status(), absl::StatusCode::kInvalidArgument, "format is gpt2");
  // Another tokenizer at the same path is another request.
  options_.format.reset();
  out_.Write("tokenizer/vocab.json", vocabulary.dump() + "\n");
  EXPECT_FALSE(Prepare(options_)->up_to_date);
}

TEST_F(PrepareDataTest, InputAndOutputErrorsNameThePath) {
  options_.inputs = {in_.path(), in_.File("none*.txt")};
  ExpectError(Prepare(options_).status(), absl::StatusCode::kNotFound, "none*.txt");
  std::filesystem::create_directory(in_.File("empty"));
  options_.inputs = {in_.File("empty")};
  ExpectError(Prepare(options_).status(), absl::StatusCode::kNotFound, in_.File("empty"));
  options_.inputs = {in_.Write("nothing.txt", "")};
  ExpectError(Prepare(options_).status(), absl::StatusCode::kInvalidArgument, "no text");
  options_.inputs = {in_.path()};
  options_.output_dir = in_.Write("file", "x") + "/below";
  const absl::Status status = Prepare(options_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(MessageOf(status).find(options_.output_dir), std::string::npos) << status;
}

// A dataset that counts as complete has the files that it lists; none of the directory's syncs may
// be omitted. (Syncing the file itself is FileReplacement's task, and tested there.)
TEST_F(PrepareDataTest, ALossOfPowerLeavesNoDatasetWithOtherFiles) {
  using Json = nlohmann::json;
  std::string request;  // request of the new files
  options_.shard_tokens = 1500;
  PowerLossScenario scenario;
  scenario.prepare = [&](const std::string& root) {
    PrepareDataOptions old = options_;
    old.output_dir = root + "/data";
    old.shard_tokens = 700;
    ASSERT_OK(Prepare(old));
  };
  scenario.run = [&](const std::string& root) {
    options_.output_dir = root + "/data";
    return Prepare(options_).status();
  };
  scenario.check = [&](const FileImage& image, bool finished) -> std::string {
    const auto at = image.find("data/dataset.json");
    if (at == image.end()) return "dataset.json is gone";
    const Json root = Json::parse(at->second, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) return "dataset.json is damaged";
    if (finished && root["request"] != request) return "the old dataset.json is back";
    for (const auto& [path, contents] : image) {
      const auto tokens = image.find(path.substr(0, path.rfind('.')));
      if (!IsChecksumPath(path) || path.find("/.staging") != path.npos) continue;
      if (tokens == image.end()) continue;  // of old files, about to be removed
      const auto checksums = DecodeTokenChecksums(path, contents);
      if (!checksums.ok()) return checksums.status().ToString();
      TokenChecksumBuilder builder;
      builder.Append(std::as_bytes(std::span(tokens->second)));
      if (builder.Finish({}).chunk_crc32c != checksums->chunk_crc32c) {
        return path + " is of another file";
      }
    }
    if (root["request"] == "") return "";
    for (const Json& file : root["files"]) {
      const auto found = image.find("data/" + file["name"].get<std::string>());
      if (found == image.end()) return file["name"].get<std::string>() + " is missing";
      if (found->second.size() != file["size_bytes"]) return file["name"].get<std::string>();
    }
    return "";
  };
  const std::string root = out_.File("root");
  request = [&] {
    PrepareDataOptions same = options_;
    same.output_dir = out_.File("other");
    EXPECT_OK(Prepare(same));
    return Json::parse(Slurp(same.output_dir + "/dataset.json"))["request"].get<std::string>();
  }();
  EXPECT_EQ(RunWithPowerLoss(scenario, root, nullptr, nullptr), "");
  for (const std::string sync : {"data", "data#2", "data#3", "data#4", "data#5",
                                 "data/dataset.json.tmp", "data/dataset.json.tmp#2"}) {
    EXPECT_NE(RunWithPowerLoss(scenario, root, &sync, nullptr), "") << sync;
  }
}

}  // namespace
}  // namespace tessera
