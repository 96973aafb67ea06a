#include "trainer/app/same_run.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compute/comm/communicator.h"
#include "compute/comm/threads/thread_world.h"
#include "gtest/gtest.h"
#include "trainer/config/config.h"
#include "trainer/state/communicator_group.h"

namespace tessera {
namespace {

// The result of the check on each of three ranks.
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
    const uint64_t rank = comm.rank();
    const auto message = [&](const DataFingerprint& fingerprint) {
      return std::string(
          CheckSameFiles("train_data_path", fingerprint, {.ranks = *ranks}).message());
    };
    const std::string other =
        rank == 0 ? "" : "train_data_path: the files hold other tokens here than for rank 0";
    EXPECT_EQ(message({.sampled = 7, .complete = 8}), "");
    EXPECT_EQ(message({.sampled = 7, .complete = 8 + rank}), other);
    EXPECT_EQ(message({.sampled = 7 + rank}), other);
    // One of them has no checksums.
    EXPECT_EQ(message({.sampled = 7, .complete = 8 * rank}), "");
    EXPECT_EQ(message({.sampled = 7 + rank, .complete = 8 * rank}), other);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// Rank 0's message, of four ranks, about ranks with other numerics.
std::pair<absl::Status, std::vector<std::string>> CheckNumerics(
    const std::vector<NumericsFingerprint>& fingerprints, bool exact) {
  std::vector<std::string> notes;
  TrainConfig config;
  if (exact) config.mutable_parallel()->set_numerics(Numerics::EXACT);
  ThreadWorld world(static_cast<int>(fingerprints.size()));
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    const auto ranks = MakeProcessGroup(&comm);
    return CheckSameNumerics(fingerprints[comm.rank()], config, {.ranks = *ranks},
                             [&](const std::string& note) {
                               EXPECT_EQ(comm.rank(), 0);
                               notes.push_back(note);
                             });
  });
  return {status, notes};
}

TEST(SameRunTest, RanksThatComputeOtherwiseAreNamed) {
  const NumericsFingerprint base = {.instruction_set = "avx512",
                                    .library = "oneDNN 2.6.3 avx512_core",
                                    .products_hash = 1,
                                    .loops_hash = 2};
  NumericsFingerprint older = base;
  older.instruction_set = "avx2";
  older.products_hash = 3;
  NumericsFingerprint caches = base;
  caches.products_hash = 4;
  for (const bool exact : {false, true}) {
    const auto [status, notes] = CheckNumerics({base, base, base}, exact);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(notes.empty());
  }
  const std::string differences =
      "ranks 1, 3 differ from rank 0: instruction set avx512, there avx2, other bits of matrix "
      "products; rank 4 differs from rank 0: other bits of matrix products";
  const std::vector<NumericsFingerprint> mixed = {base, older, base, older, caches};
  const auto [refused, no_notes] = CheckNumerics(mixed, /*exact=*/true);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_NE(std::string(refused.message()).find(differences), std::string::npos) << refused;
  EXPECT_TRUE(no_notes.empty());
  const auto [accepted, notes] = CheckNumerics(mixed, /*exact=*/false);
  EXPECT_TRUE(accepted.ok()) << accepted;
  EXPECT_EQ(notes, std::vector<std::string>{"not all ranks compute the same bits: " + differences});
}

}  // namespace
}  // namespace tessera
