// What a job knows between its steps: which requests it has obeyed, and which save is in flight.

#include "checkpoint/manager/job_facts.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/testing/test_state.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

TEST(JobFactsTest, ARequestThatWasObeyedEndsNoOtherJob) {
  const std::string path = ::testing::TempDir() + "/stop_file_once";
  std::ofstream(path) << "5";
  MemoryStorage folder;
  for (const bool saved : {false, true}) {
    StopFileOnce file;
    file.Open(path, &folder);
    file.Begin(3);
    EXPECT_EQ(file.AfterStep(4, nullptr), StopFileAsks::kNothing);
    EXPECT_EQ(file.AfterStep(5, nullptr), StopFileAsks::kSaveAndEnd) << "nobody has obeyed it";
    file.NoteSaved(saved ? 5 : 4, /*staging=*/nullptr);
  }
  StopFileOnce next;
  next.Open(path, &folder);
  next.Begin(3);
  EXPECT_EQ(next.AfterStep(5, nullptr), StopFileAsks::kNothing);
  StopFileOnce without;
  EXPECT_EQ(without.AfterStep(5, nullptr), StopFileAsks::kNothing);
}

TEST(JobFactsTest, LaterStepsAreSoughtUntilTheJobSaves) {
  MemoryStorage folder;
  std::vector<float> elements(4);
  ASSERT_OK(CheckpointFolder(folder).Save(7, OneTensor(elements)));
  LaterSteps later;
  later.Begin(5);
  EXPECT_TRUE(later.Find(folder, 6));
  EXPECT_TRUE(absl::IsFailedPrecondition(later.found()));
  later.NoteSave();
  EXPECT_FALSE(later.Find(folder, 6));
  later.Begin(5);
  EXPECT_FALSE(later.Find(folder, 6)) << "they are the job's own";
  LaterSteps unannounced;
  EXPECT_FALSE(unannounced.Find(folder, 8)) << "begins after step 7";
  EXPECT_FALSE(unannounced.Find(folder, 6)) << "and has found none";
}

TEST(JobFactsTest, ASaveIsInFlightFromItsAnnouncementOn) {
  BackgroundSaves saves;
  EXPECT_FALSE(saves.in_flight());
  saves.Announce();
  EXPECT_TRUE(saves.announced());
  saves.Begin();
  EXPECT_FALSE(saves.announced());
  EXPECT_TRUE(saves.in_flight());
  saves.Finish();
  EXPECT_FALSE(saves.in_flight());
  saves.Withdraw();
  saves.Announce();
  EXPECT_TRUE(saves.in_flight()) << "nothing was withdrawn";
}

}  // namespace
}  // namespace tessera::ckpt
