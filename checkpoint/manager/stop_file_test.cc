// A request in a stop file acts once, and reading it delays no step.

#include "checkpoint/manager/stop_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <thread>
#include <utility>

#include "base/testing.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

TEST(ParseStopFileTest, AnIntegerOrNothing) {
  for (const auto& [contents, step] : std::initializer_list<std::pair<std::string, int64_t>>{
           {"", 0}, {"\n", 0}, {"0", 0}, {"120\n", 120}, {"-7", -7}, {" \t42 \r\n", 42}}) {
    const auto parsed = ParseStopFile(contents);
    ASSERT_OK(parsed) << contents;
    EXPECT_EQ(*parsed, step);
  }
  for (const std::string garbage :
       {"stop", "12 13", "1e3", "0x10", "99999999999999999999", "\x01\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseStopFile(garbage).status())) << garbage;
  }
  EXPECT_FALSE(ParseStopFile(std::string(100, '1')).ok());
}

class StopFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(path_);
  }
  // Replaces the file as a whole: no read may see one that is still empty.
  void Write(const std::string& contents) const {
    std::ofstream(path_ + ".new") << contents;
    std::filesystem::rename(path_ + ".new", path_);
  }

  // Polls until the version is `version`; returns the step of that one.
  static int64_t Await(StopFile& file, int64_t version) {
    StopRequest request = file.Poll();
    for (; request.version < version; request = file.Poll()) Pause();
    EXPECT_EQ(request.version, version);
    return request.step;
  }

  static void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

  std::string path_;
};

TEST_F(StopFileTest, ARelativePathIsThatOfTheStart) {
  const std::filesystem::path before = std::filesystem::current_path(), path = path_;
  std::filesystem::current_path(path.parent_path());
  StopFile file(path.filename().string(), "", absl::Seconds(60));
  std::filesystem::current_path(before);
  Write("25\n");
  EXPECT_EQ(Await(file, 2), 25);
}

TEST_F(StopFileTest, TheFirstContentsAreKnownAtTheStart) {
  Write("25\n");
  StopFile file(path_, "", absl::Seconds(60));
  const StopRequest request = file.Poll();
  EXPECT_EQ(request.step, 25);
  EXPECT_EQ(request.version, 1);
  EXPECT_EQ(file.TakeNote(), "");
}

TEST_F(StopFileTest, ARequestThatHasEndedARunEndsNoOther) {
  Write("25\n");
  StopFile first(path_, "", absl::Seconds(60));
  const std::string identity = first.Identity(first.Poll().version);
  EXPECT_NE(identity, "");
  EXPECT_EQ(first.Identity(2), "") << "no such version";
  StopFile second(path_, identity, absl::Seconds(60));
  EXPECT_EQ(second.Poll().step, 0);
  Write("25\n");  // the same value, asked for anew
  EXPECT_EQ(Await(second, 2), 25);
}

TEST_F(StopFileTest, EveryWriteIsAVersion) {
  StopFile file(path_, "", absl::Seconds(60));
  EXPECT_EQ(file.Poll().version, 1);
  Write("7");
  EXPECT_EQ(Await(file, 2), 7);
  Write("7");  // the same value, written again
  EXPECT_EQ(Await(file, 3), 7);
  std::filesystem::remove(path_);
  EXPECT_EQ(Await(file, 4), 0);
}

TEST_F(StopFileTest, GarbageIsNotedOnce) {
  StopFile file(path_, "", absl::Seconds(60));
  Write("tomorrow");
  EXPECT_EQ(Await(file, 2), 0);
  EXPECT_THAT(file.TakeNote(), HasSubstr(path_ + " has no effect: expected an integer"));
  for (int i = 0; i < 20; ++i) file.Poll();
  EXPECT_EQ(file.TakeNote(), "");
}

TEST_F(StopFileTest, APipeDelaysNothing) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  StopFile file(path_, "", absl::Seconds(60));
  EXPECT_EQ(file.Poll().step, 0);
  EXPECT_THAT(file.TakeNote(), HasSubstr("not a regular file"));
}

// As that of a run, which continues to save in the renamed folder.
TEST_F(StopFileTest, AFolderThatIsRenamedKeepsItsRequests) {
  const TestFolder folder;
  const std::string named = folder.Write("run/stop", "25"), moved = folder.File("moved/stop");
  StopFile file(named, "", absl::Seconds(60));
  EXPECT_EQ(file.Poll().step, 25);
  std::filesystem::rename(folder.File("run"), folder.File("moved"));
  folder.Write("run/stop", "99");  // of another run, which has the name
  EXPECT_EQ(file.Poll().step, 25);
  folder.Write("moved/new", "30");
  std::filesystem::rename(folder.File("moved/new"), moved);
  EXPECT_EQ(Await(file, 2), 30);
  EXPECT_EQ(file.TakeNote(), "stop file " + named + " is read in " + folder.File("moved") +
                                 ", where the path has led first: it leads to another folder now");
  for (int i = 0; i < 20; ++i) file.Poll();
  EXPECT_EQ(file.TakeNote(), "");
  std::filesystem::remove_all(folder.File("moved"));  // the name is all that is left
  while (file.Poll().step != 99) Pause();
}

// Most starts are faster than the thread that reads.
TEST_F(StopFileTest, AStartWaitsNoLongerThanItMay) {
  // On a busy machine, nearly each reader may be faster than its start.
  bool waits = true;
  for (int i = 0; i < 50'000 && waits; ++i) {
    waits = StopFile(path_, "", absl::ZeroDuration()).Poll().version > 0;
  }
  EXPECT_FALSE(waits);
}

TEST_F(StopFileTest, ItsThreadEndsWithIt) {
  const auto count_threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto before = count_threads();
  StopFile(path_, "", absl::Seconds(60));
  while (count_threads() > before) Pause();
}

}  // namespace
}  // namespace tessera::ckpt
