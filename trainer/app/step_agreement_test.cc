#include "trainer/app/step_agreement.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/comm/threads/thread_world.h"
#include "compute/parallel/mesh.h"
#include "layout/topology.h"

namespace tessera {
namespace {

TEST(AgreeOnStepTest, OneProcessAgreesWithItself) {
  const auto mesh = Mesh::Create(Topology{}, nullptr);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  const absl::StatusOr<StepAgreement> agreement = AgreeOnStep(**mesh, SIGTERM, 0);
  ASSERT_TRUE(agreement.ok());
  EXPECT_EQ(agreement->stop_signal, SIGTERM);
  EXPECT_TRUE(agreement->wire.empty());
  EXPECT_LT(agreement->pipeline_wait_share, 0);
}

TEST(AgreeOnStepTest, TheTimeIsTheMeanOverRanks) {
  ThreadWorld world(2);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh, Mesh::Create(Topology{.data = 2}, &comm));
    const double own = mesh->rank();
    TESSERA_ASSIGN_OR_RETURN(
        const StepAgreement agreed,
        AgreeOnStep(*mesh, 0, 0, {}, {.compute = 1 + own, .communication = own, .waiting = 0.5}));
    EXPECT_DOUBLE_EQ(agreed.time.compute, 1.5);
    EXPECT_DOUBLE_EQ(agreed.time.communication, 0.5);
    EXPECT_DOUBLE_EQ(agreed.time.waiting, 0.5);
    EXPECT_DOUBLE_EQ(agreed.time.saving, 0);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(AgreeOnStepTest, ASignalToOneRankIsEverybodys) {
  ThreadWorld world(4);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh,
                             Mesh::Create(Topology{.data = 2, .pipeline = 2}, &comm));
    TESSERA_ASSIGN_OR_RETURN(
        StepAgreement agreed,
        AgreeOnStep(*mesh, 0, 0.5 * mesh->rank(), {}, {}, {.host = 100 + mesh->rank(), .gpu = 7}));
    EXPECT_EQ(agreed.stop_signal, 0);
    EXPECT_EQ(agreed.memory.host, 406);
    EXPECT_EQ(agreed.memory.gpu, 28);
    EXPECT_DOUBLE_EQ(agreed.pipeline_wait_share, 0.75);
    const int signal = mesh->rank() == 2 ? SIGTERM : 0;
    TESSERA_ASSIGN_OR_RETURN(agreed, AgreeOnStep(*mesh, signal, 0));
    EXPECT_EQ(agreed.stop_signal, SIGTERM);
    // SIGINT has precedence over SIGTERM: all ranks return the same.
    const int either = mesh->rank() == 1 ? SIGINT : mesh->rank() == 3 ? SIGTERM : 0;
    TESSERA_ASSIGN_OR_RETURN(agreed, AgreeOnStep(*mesh, either, 0));
    EXPECT_EQ(agreed.stop_signal, SIGINT);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(AgreeOnStepTest, WhatRankZeroKnowsIsEverybodys) {
  ThreadWorld world(3);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh, Mesh::Create(Topology{.data = 3}, &comm));
    const int64_t own = mesh->rank() + 1;
    TESSERA_ASSIGN_OR_RETURN(const StepAgreement agreed,
                             AgreeOnStep(*mesh, 0, 0,
                                         {.elapsed = absl::Seconds(own),
                                          .stop_file = {.step = -own, .version = own},
                                          .save_in_flight = own > 1,
                                          .save_trouble = own == 1 ? ckpt::SaveTrouble::kTooLong
                                                                   : ckpt::SaveTrouble::kNone,
                                          .folder_is_taken = own == 1,
                                          .records_fail = own == 1}));
    EXPECT_EQ(agreed.leader.elapsed, absl::Seconds(1));
    EXPECT_EQ(agreed.leader.stop_file.step, -1);
    EXPECT_EQ(agreed.leader.stop_file.version, 1);
    EXPECT_FALSE(agreed.leader.save_in_flight);
    EXPECT_EQ(agreed.leader.save_trouble, ckpt::SaveTrouble::kTooLong);
    EXPECT_TRUE(agreed.leader.folder_is_taken);
    EXPECT_TRUE(agreed.leader.records_fail);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(AgreeOnStepTest, BytesOfAllRanksByAxisAndOperation) {
  ThreadWorld world(4);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
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
    TESSERA_ASSIGN_OR_RETURN(StepAgreement agreed, AgreeOnStep(*mesh, 0, 0));
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
    TESSERA_ASSIGN_OR_RETURN(agreed, AgreeOnStep(*mesh, 0, 0));
    EXPECT_EQ(agreed.wire.size(), 1u);
    if (!agreed.wire.empty()) EXPECT_EQ(agreed.wire[0].axis, "world");
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace tessera
