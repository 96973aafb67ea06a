
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "tests/device/check/check.h"
#include "tests/device/check/choices.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

class ProgramChecksTest : public ::testing::Test {
 protected:
  ProgramChecksTest() { std::filesystem::create_directories(folder_ / "programs"); }

  void Write(const std::string& name, const std::string& script) const {
    const std::filesystem::path file = folder_ / "programs" / name;
    std::ofstream(file) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  CheckOutcome Run() const { return RunTestPrograms(folder_ / "programs", folder_); }

  const TestFolder own_;
  const std::filesystem::path folder_ = own_.path();
};

TEST_F(ProgramChecksTest, AllProgramsMustPass) {
  EXPECT_EQ(Run().kind, CheckOutcome::kSkipped);
  Write("a_test", "exit 0");
  Write("b_test", "exit 0");
  EXPECT_EQ(Run().kind, CheckOutcome::kPassed);
  EXPECT_EQ(Run().detail, "a_test, b_test");
  Write("b_test", "echo what is wrong; exit 1");
  EXPECT_EQ(Run().kind, CheckOutcome::kFailed);
  EXPECT_EQ(Run().detail, "b_test ended with 1\nwhat is wrong\n");
}

TEST_F(ProgramChecksTest, AProgramThatDoesNotEndIsAFailure) {
  Write("a_test", "exec /bin/sleep 600");
  const CheckOutcome outcome = RunTestPrograms(folder_ / "programs", folder_, Deadline(0.1));
  EXPECT_EQ(outcome.kind, CheckOutcome::kFailed);
  EXPECT_EQ(outcome.detail, "a_test has not ended at --deadline=0");
}

TEST_F(ProgramChecksTest, ASkippedCaseIsAFailure) {
  Write("a_test", "echo '[  SKIPPED ] Case.Name (0 ms)'");
  EXPECT_EQ(Run().kind, CheckOutcome::kFailed);
}

TEST_F(ProgramChecksTest, TheSanitizerIsOptional) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const CheckOutcome without = RunSanitizer("memcheck", {"/bin/true"}, folder_);
  // A CUDA toolkit may have one.
  if (FindProgram("compute-sanitizer", {"/usr/local/cuda/bin"}).empty()) {
    EXPECT_EQ(without.kind, CheckOutcome::kSkipped);
    EXPECT_EQ(without.detail, "no compute-sanitizer");
  }
  setenv("PATH", (folder_ / "programs").c_str(), 1);
  Write("compute-sanitizer", R"([ "$*" = "--tool racecheck --error-exitcode 99 /bin/x --y" ])");
  EXPECT_EQ(RunSanitizer("racecheck", {"/bin/x", "--y"}, folder_).kind, CheckOutcome::kPassed);
  Write("compute-sanitizer", "/bin/sleep 600");
  EXPECT_EQ(RunSanitizer("racecheck", {"/bin/x"}, folder_, Deadline(0.1)).detail,
            "does not fit into --deadline=0");
  Write("compute-sanitizer", "echo a race; exit 99");
  EXPECT_EQ(RunSanitizer("racecheck", {"/bin/x", "--y"}, folder_).kind, CheckOutcome::kFailed);
  Write("compute-sanitizer", "echo '========= Error: Device not supported.'; exit 99");
  EXPECT_EQ(RunSanitizer("racecheck", {"/bin/x", "--y"}, folder_).kind, CheckOutcome::kSkipped);
  setenv("PATH", path.c_str(), 1);
}

TEST_F(ProgramChecksTest, ChecksOfAChoiceThatFailOrNeverEndAreNotTheEnd) {
  const auto error = [&](const std::string& script, double seconds) {
    const ChoiceCheck check = CheckInProcess({"/bin/sh", "-c", script, "check"}, folder_, seconds);
    return std::string(check({"sums=true", {}}).message());
  };
  EXPECT_EQ(error("[ $1 = --ways=sums=true ]", 60), "");
  EXPECT_THAT(error("echo an illegal address; kill -6 $$", 60),
              HasSubstr("ended with 134\nan illegal address"));
  EXPECT_EQ(error("exec /bin/sleep 600", 0.2), "its checks have not ended in 0 s");
  // A deadline of all checks may end those of a choice.
  const ChoiceCheck check =
      CheckInProcess({"/bin/sh", "-c", "exec /bin/sleep 600", "check"}, folder_, 60, Deadline(0.2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(check({"sums=true", {}})));
}

}  // namespace
}  // namespace tessera::testing
