#include "trainer/app/launch.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/files.h"
#include "base/testing.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// Variables that launchers set; a test that itself runs under one must not see them.
constexpr const char* kVariables[] = {
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK",    "PMI_RANK",
    "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "TESSERA_TERMINAL_COLUMNS"};

Launch DetectWith(const std::map<std::string, std::string>& environment) {
  for (const char* variable : kVariables) unsetenv(variable);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  return DetectLaunch();
}

TEST(DetectLaunchTest, AloneWithoutALauncher) {
  const Launch launch = DetectWith({});
  EXPECT_FALSE(launch.in_world);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_LT(launch.terminal_columns, 0) << "stdout itself tells";
}

TEST(DetectLaunchTest, EveryLauncherTellsTheRank) {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    const Launch launch = DetectWith({{variable, "3"}});
    EXPECT_TRUE(launch.in_world) << variable;
    EXPECT_EQ(launch.rank, 3) << variable;
    EXPECT_EQ(launch.terminal_columns, 0) << "a rank's terminal is the launcher's";
  }
}

TEST(DetectLaunchTest, SlurmStepsOfSeveralTasksAreWorlds) {
  EXPECT_TRUE(DetectWith({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}}).in_world);
  EXPECT_EQ(DetectWith({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}}).rank, 2);
  EXPECT_FALSE(DetectWith({{"SLURM_PROCID", "0"}}).in_world) << "a batch script, or a shell in it";
  EXPECT_FALSE(DetectWith({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}).in_world);
}

TEST(DetectLaunchTest, TheLauncherKnowsTheTerminal) {
  EXPECT_EQ(DetectWith({{"PMIX_RANK", "0"}, {"TESSERA_TERMINAL_COLUMNS", "120"}}).terminal_columns,
            120);
}

TEST(CheckWorldSizeTest, SaysWhatMpirunNeeds) {
  const Topology topology{.tensor = 2, .data = 4, .pipeline = 2};
  EXPECT_OK(CheckWorldSize(topology, 16));
  const absl::Status status = CheckWorldSize(topology, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(),
            "data_parallel_size=4 * tensor_model_parallel_size=2 * pipeline_model_parallel_size=2 "
            "needs 16 processes, but 1 was started: use mpirun -n 16");
  EXPECT_EQ(CheckWorldSize(Topology{}, 2).message(),
            "data_parallel_size=1 * tensor_model_parallel_size=1 * pipeline_model_parallel_size=1 "
            "needs 1 process, but 2 were started: start it without mpirun");
}

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(RankOutputTest, NotesAndLogMessagesGoToTheRanksFile) {
  const fs::path folder = fs::path(::testing::TempDir()) / "rank_output" / "run";
  fs::remove_all(folder);
  for (const char* note : {"first run", "second run"}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RankOutput> output,
                         RankOutput::Open(folder.string(), 3));
    std::fprintf(output->file(), "%s\n", note);
    LOG(INFO) << "logged in the " << note;
  }
  const std::string text = ReadWholeFile(folder / "rank-00003.log").value_or("");
  for (const char* expected :
       {"first run\n", "logged in the first run\n", "second run\n", "logged in the second run\n"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

TEST(RankOutputTest, WithoutAFolderNobodyHears) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RankOutput> output, RankOutput::Open("", 1));
  EXPECT_GT(std::fprintf(output->file(), "unheard\n"), 0);
}

TEST(RankOutputTest, NoDescriptorIsLeftForNowhere) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = RankOutput::Open("", 1).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot open /dev/null"));
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
