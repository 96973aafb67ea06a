#include "trainer/metrics/record_file.h"

#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/files.h"
#include "base/testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> LinesOf(const std::string& log) {
  std::vector<std::string> lines;
  ForEachLine(log, [&](const RecordLine& line) {
    if (line.value.is_object()) lines.emplace_back(line.text);
  });
  return lines;
}

// A log that is cut anywhere is continued with whole lines only.
TEST(RecordFileTest, EveryTornLineIsDropped) {
  const TestFolder folder;
  const std::vector<std::string> lines = {R"({"a":1})", R"({"b":"x\n"})", R"({"c":{"d":[1,2]}})"};
  const std::string log = lines[0] + "\n" + lines[1] + "\n" + lines[2] + "\n";
  for (size_t cut = 0; cut <= log.size(); ++cut) {
    const std::string path = folder.Write("log.jsonl", log.substr(0, cut));
    ASSERT_OK_AND_ASSIGN(const auto file, RecordFile::Continue(path));
    ASSERT_OK(file->Write("{\"new\":1}\n"));
    const std::string now = ReadWholeFile(path).value_or("");
    std::vector<std::string> expected = LinesOf(log.substr(0, cut));
    expected.push_back("{\"new\":1}");
    std::string text;
    for (const std::string& line : expected) text += line + "\n";
    EXPECT_EQ(now, text) << cut;
  }
}

TEST(RecordFileTest, DamagedLinesAreDroppedAndTheRestOfThemKept) {
  const std::string zeros(3, '\0');
  const std::string log =
      "{\"a\":1}\n" + zeros + "{\"b\":2}\n" + zeros + "\nno record\n{\"c\":3}\n";
  EXPECT_EQ(LinesOf(log), (std::vector<std::string>{"{\"a\":1}", "{\"b\":2}", "{\"c\":3}"}));
  const TestFolder folder;
  const std::string path = folder.Write("log.jsonl", log);
  ASSERT_OK_AND_ASSIGN(const auto file, RecordFile::Continue(path));
  EXPECT_EQ(ReadWholeFile(path).value_or(""), "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n");
}

TEST(RecordFileTest, AFileThatIsNoLongerOursIsNoticed) {
  const TestFolder folder;
  const std::string path = folder.File("log.jsonl");
  const std::vector<std::function<void()>> losses = {
      [&] { fs::remove(path); }, [&] { fs::rename(path, folder.File("moved")); },
      [&] { EXPECT_OK(RecordFile::Replace(path, "theirs\n")); },
      [&] {
        fs::remove(path);
        fs::create_directory(path);
      }};
  for (size_t loss = 0; loss < losses.size(); ++loss) {
    fs::remove_all(path);
    ASSERT_OK_AND_ASSIGN(const auto file, RecordFile::Replace(path, "begins\n"));
    ASSERT_OK(file->Write("first\n"));
    losses[loss]();
    const absl::Status status = file->Write("second\n");
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << loss << status;
    EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
    EXPECT_EQ(file->status(), status);
    EXPECT_EQ(file->Sync(), status);
    if (loss == 2) EXPECT_EQ(ReadWholeFile(path).value_or(""), "theirs\n");
  }
}

TEST(RecordFileTest, OnlyRegularFilesAreOpened) {
  const TestFolder folder;
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder.path(), std::string("/dev/zero")}) {
    const absl::Status status = RecordFile::Continue(path).status();
    EXPECT_EQ(status.message(), "cannot open " + path + ": not a regular file");
  }
}

}  // namespace
}  // namespace tessera
