#include "trainer/app/step_agreement.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "gtest/gtest.h"
#include "layout/topology.h"

namespace tessera {
namespace {

TEST(AgreeOnStepTest, OneProcessAgreesWithItself) {
  ASSERT_OK_AND_ASSIGN(const auto mesh, Mesh::Create(Topology{}, nullptr));
  std::vector<int64_t> counts = {1, 2};
  ASSERT_OK_AND_ASSIGN(const StepAgreement agreement, AgreeOnStep(*mesh, counts, 0));
  EXPECT_EQ(counts[1], 2);
  EXPECT_TRUE(agreement.wire.empty());
  EXPECT_LT(agreement.pipeline_wait_share, 0);
}

TEST(AgreeOnStepTest, TheTimeIsTheMeanOverRanks) {
  EXPECT_OK(ThreadWorld(2).Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh, Mesh::Create(Topology{.data = 2}, &comm));
    const double own = mesh->rank();
    TESSERA_ASSIGN_OR_RETURN(
        const StepAgreement agreed,
        AgreeOnStep(*mesh, {}, 0, {.compute = 1 + own, .communication = own, .waiting = 0.5}));
    EXPECT_DOUBLE_EQ(agreed.time.compute, 1.5);
    EXPECT_DOUBLE_EQ(agreed.time.communication, 0.5);
    EXPECT_DOUBLE_EQ(agreed.time.waiting, 0.5);
    EXPECT_DOUBLE_EQ(agreed.time.saving, 0);
    return absl::OkStatus();
  }));
}

TEST(AgreeOnStepTest, CountsAndMemoryAreAddedUp) {
  EXPECT_OK(ThreadWorld(4).Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh,
                             Mesh::Create(Topology{.data = 2, .pipeline = 2}, &comm));
    std::vector<int64_t> counts = {0, 1, 2};
    for (int64_t& count : counts) count += mesh->rank();
    TESSERA_ASSIGN_OR_RETURN(
        const StepAgreement agreed,
        AgreeOnStep(*mesh, counts, 0.5 * mesh->rank(), {}, {.host = 100 + mesh->rank(), .gpu = 7}));
    EXPECT_EQ(counts, (std::vector<int64_t>{6, 10, 14}));
    EXPECT_EQ(agreed.memory.host, 406);
    EXPECT_EQ(agreed.memory.gpu, 28);
    EXPECT_DOUBLE_EQ(agreed.pipeline_wait_share, 0.75);
    return absl::OkStatus();
  }));
}

TEST(AgreeOnStepTest, BytesOfAllRanksByAxisAndOperation) {
  ThreadWorld world(4);
  EXPECT_OK(world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh,
                             Mesh::Create(Topology{.tensor = 2, .data = 2}, &comm));
    mesh->TakeTraffic();
    std::vector<float> values(100);
    TESSERA_RETURN_IF_ERROR(mesh->tensor()->AllReduce(values, ReduceOp::kSum));
    if (mesh->coordinate().data == 0) {
      TESSERA_RETURN_IF_ERROR(mesh->data()->Send(values, 1, 0));
    } else {
      TESSERA_RETURN_IF_ERROR(mesh->data()->Receive(values, 0, 0));
    }
    TESSERA_ASSIGN_OR_RETURN(StepAgreement agreed, AgreeOnStep(*mesh, {}, 0));
    EXPECT_LT(agreed.pipeline_wait_share, 0) << "there is no pipeline";
    EXPECT_EQ(agreed.wire.size(), 2u);
    if (agreed.wire.size() != 2) return absl::OkStatus();
    EXPECT_EQ(agreed.wire[0].axis, "tp");
    EXPECT_EQ(agreed.wire[0].operation, CommOpName(CommOp::kAllReduce));
    EXPECT_EQ(agreed.wire[0].bytes, 4 * 400) << "each of four ranks, to one other";
    EXPECT_EQ(agreed.wire[1].axis, "dp");
    EXPECT_EQ(agreed.wire[1].operation, CommOpName(CommOp::kSend));
    EXPECT_EQ(agreed.wire[1].bytes, 2 * 400);
    // The next step sends nothing except the agreement itself.
    TESSERA_ASSIGN_OR_RETURN(agreed, AgreeOnStep(*mesh, {}, 0));
    EXPECT_EQ(agreed.wire.size(), 1u);
    if (!agreed.wire.empty()) EXPECT_EQ(agreed.wire[0].axis, "world");
    return absl::OkStatus();
  }));
}

// The result of the check on each of three ranks.
std::vector<std::string> Check(const std::vector<TrainConfig>& configs) {
  std::vector<std::string> found(configs.size());
  EXPECT_OK(
      ThreadWorld(static_cast<int>(configs.size())).Run([&](Communicator& comm) -> absl::Status {
        const auto ranks = MakeProcessGroup(&comm);
        found[comm.rank()] =
            std::string(CheckSameSettings(configs[comm.rank()], {.ranks = *ranks}).message());
        return absl::OkStatus();
      }));
  return found;
}

// GPUs and processors exchange no messages.
TEST(SameRunTest, AGpuBesideProcessorsIsNamed) {
  std::vector<TrainConfig> configs(2);
  for (TrainConfig& config : configs) {
    config.mutable_training()->set_device(ComputeDevice::CPU);
    config.mutable_parallel()->set_numerics(Numerics::EXACT);
  }
  configs[1].mutable_training()->set_device(ComputeDevice::CUDA);
  EXPECT_EQ(Check(configs),
            (std::vector<std::string>{"",
                                      "this process was started with other settings than rank "
                                      "0: training.device: CPU -> CUDA"}));
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
  EXPECT_OK(ThreadWorld(2).Run([&](Communicator& comm) -> absl::Status {
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
  }));
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
    EXPECT_OK(status);
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
  EXPECT_OK(accepted);
  EXPECT_EQ(notes, std::vector<std::string>{"not all ranks compute the same bits: " + differences});
}

}  // namespace
}  // namespace tessera
