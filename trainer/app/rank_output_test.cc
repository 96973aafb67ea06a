#include "trainer/app/rank_output.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(RankOutputTest, NotesAndLogMessagesGoToTheRanksFile) {
  const fs::path folder = fs::path(::testing::TempDir()) / "rank_output" / "run";
  fs::remove_all(folder);
  for (const char* note : {"first run", "second run"}) {
    const absl::StatusOr<std::unique_ptr<RankOutput>> output = RankOutput::Open(folder.string(), 3);
    ASSERT_TRUE(output.ok()) << output.status();
    std::fprintf((*output)->file(), "%s\n", note);
    LOG(INFO) << "logged in the " << note;
  }
  const std::string text = ReadFile(folder / "rank-00003.log");
  for (const char* expected :
       {"first run\n", "logged in the first run\n", "second run\n", "logged in the second run\n"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

TEST(RankOutputTest, WithoutAFolderNobodyHears) {
  const absl::StatusOr<std::unique_ptr<RankOutput>> output = RankOutput::Open("", 1);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_GT(std::fprintf((*output)->file(), "unheard\n"), 0);
}

TEST(RankOutputTest, AFolderThatCannotBeIsNamed) {
  const fs::path file = fs::path(::testing::TempDir()) / "in_the_way";
  std::ofstream(file) << "x";
  const absl::Status status = RankOutput::Open((file / "run").string(), 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("run_dir="));
}

}  // namespace
}  // namespace tessera
