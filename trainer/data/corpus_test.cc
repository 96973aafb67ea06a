#include "trainer/data/corpus.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing.h"
#include "trainer/data/test_files.h"

namespace tessera {
namespace {

TEST(FindDocumentsTest, OneFileByTwoNamesIsOneDocument) {
  const TestFolder folder;
  folder.Write("real/x.txt", "text");
  std::filesystem::create_directory_symlink(folder.File("real"), folder.File("link"));
  ASSERT_OK_AND_ASSIGN(const auto list,
                       FindDocuments({folder.File("*/x.txt"), folder.File("real/x.txt")}));
  EXPECT_EQ(list.paths.size(), 1);
}

// A pattern and a name are as likely to mean an archive as a folder is to hold one.
TEST(FindDocumentsTest, BinaryFilesAreSkippedHoweverTheyAreNamed) {
  const TestFolder folder;
  folder.Write("text.txt", "text");
  folder.Write("archive.gz", std::string("a\0b", 3));
  for (const std::string input : {"", "*"}) {
    ASSERT_OK_AND_ASSIGN(const auto list,
                         FindDocuments({folder.File("text.txt"), folder.File(input)}));
    EXPECT_EQ(list.paths, std::vector<std::string>{folder.File("text.txt")}) << input;
    ASSERT_EQ(list.skipped.size(), 1u) << input;
    EXPECT_EQ(std::filesystem::path(list.skipped[0].path).filename(), "archive.gz");
    EXPECT_EQ(list.skipped[0].reason, "not text: a zero byte in its first 4 KiB");
  }
  std::filesystem::create_symlink("nowhere", folder.File("link.txt"));
  EXPECT_OK(FindDocuments({folder.File("text.txt"), folder.File("*")}));
  ExpectError(FindDocuments({folder.File("archive.gz")}).status(), absl::StatusCode::kNotFound,
              "archive.gz\": skipped, not text");
}

TEST(ForEachChunkTest, ChunksJoinToTheTextAndEndBetweenLinesOrCharacters) {
  const TestFolder folder;
  std::string lines, characters;
  for (int i = 0; lines.size() < 2500000; ++i) lines += "line " + std::to_string(i) + "\n";
  while (characters.size() < 2500000) characters += "\xE2\x82\xAC";
  for (const std::string& text :
       {lines, characters, std::string(3 << 20, '\x80'), std::string("x")}) {
    const Document document{folder.Write("f", text), static_cast<int64_t>(text.size()), 0};
    std::vector<std::string> chunks;
    const DocumentPart part{&document, 0, document.size_bytes};
    ASSERT_OK(ForEachChunk(part, [&](std::string_view chunk) {
      chunks.emplace_back(chunk);
      return absl::OkStatus();
    }));
    std::string joined;
    for (const std::string& chunk : chunks) {
      joined += chunk;
      if (text == lines) EXPECT_EQ(chunk.back(), '\n');
      if (text == characters) EXPECT_EQ(chunk.size() % 3, 0);
    }
    EXPECT_TRUE(joined == text);
  }
}

TEST(SplitCorpusTest, ATailWithoutALineBeginsWithACharacter) {
  const TestFolder folder;
  std::string text;
  while (text.size() < 1000) text += "\xE2\x82\xAC";
  const std::vector<Document> documents = {
      {folder.Write("f", text), static_cast<int64_t>(text.size()), 0}};
  for (const double fraction : {0.1, 0.101, 0.102}) {
    ASSERT_OK_AND_ASSIGN(const CorpusSplit split, SplitCorpus(documents, fraction));
    ASSERT_EQ(split.kind, "tails");
    EXPECT_EQ(split.validation[0].begin_bytes % 3, 0) << fraction;
  }
}

TEST(DefaultCorpusTest, MissingPackageIsNamed) {
  const TestFolder folder;
  ExpectError(DefaultCorpusPattern(folder.path()).status(), absl::StatusCode::kNotFound,
              "apt-get install perl-doc");
}

}  // namespace
}  // namespace tessera
