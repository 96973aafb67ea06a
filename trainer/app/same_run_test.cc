#include "trainer/app/same_run.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/threads/thread_world.h"
#include "trainer/config/config.h"
#include "trainer/state/communicator_group.h"

namespace tessera {
namespace {

// What each of three ranks finds of its settings.
std::vector<std::string> Check(const std::vector<TrainConfig>& configs) {
  std::vector<std::string> found(configs.size());
  ThreadWorld world(static_cast<int>(configs.size()));
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    const auto ranks = MakeProcessGroup(&comm);
    found[comm.rank()] =
        std::string(CheckSameSettings(configs[comm.rank()], {.ranks = *ranks}).message());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

TEST(SameRunTest, OtherSettingsAreNamedWhereTheyAre) {
  std::vector<TrainConfig> configs(3);
  for (TrainConfig& config : configs) {
    config.mutable_training()->set_seed(1234);
    config.mutable_parallel()->set_zero_stage(0);
  }
  configs[1].mutable_training()->set_threads(5);
  for (TrainConfig& config : configs) config.mutable_data()->set_train_data_path("/data/*.bin");
  configs[2].mutable_data()->set_train_data_path("/local/train.bin");
  EXPECT_EQ(Check(configs), std::vector<std::string>(3));
  configs[1].mutable_training()->set_seed(5);
  configs[1].mutable_parallel()->set_zero_stage(1);
  EXPECT_EQ(
      Check(configs),
      (std::vector<std::string>{
          "",
          "this process was started with other settings than rank 0: training.seed: 1234 -> 5; "
          "parallel.zero_stage: 0 -> 1",
          ""}));
}

TEST(SameRunTest, OtherFilesAreNoticed) {
  ThreadWorld world(2);
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    const auto ranks = MakeProcessGroup(&comm);
    EXPECT_TRUE(CheckSameFiles("train_data_path", 7, {.ranks = *ranks}).ok());
    const absl::Status other = CheckSameFiles("train_data_path", comm.rank(), {.ranks = *ranks});
    EXPECT_EQ(other.message(),
              comm.rank() == 0
                  ? ""
                  : "train_data_path: the files hold other tokens here than for rank 0");
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace tessera
