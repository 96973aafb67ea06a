#include "compute/parallel/mesh.h"

#include <span>
#include <string>

#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::vector<int> WorldRanks(const Communicator& group) {
  std::vector<int> ranks;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(group.WorldRank(i));
  return ranks;
}

// Checks the group of one axis: its members and their order, and that it reduces over them only.
void ExpectGroup(Communicator* group, const std::vector<int>& ranks, int place,
                 const std::string& name) {
  if (ranks.size() == 1) {
    EXPECT_EQ(group, nullptr) << name;
    return;
  }
  ASSERT_NE(group, nullptr) << name;
  EXPECT_EQ(WorldRanks(*group), ranks);
  EXPECT_EQ(group->rank(), place);
  EXPECT_EQ(group->name(), name);
  int64_t sum = 0;
  for (const int rank : ranks) sum += 1 + rank;
  std::vector<int64_t> mine = {1 + ranks[place]};
  ASSERT_OK(group->AllReduce(mine, ReduceOp::kSum));
  EXPECT_EQ(mine[0], sum);
}

TEST(MeshTest, CoordinatesAndGroupsOfAllSizes) {
  for (int tensor = 1; tensor <= 3; ++tensor) {
    for (int data = 1; data <= 3; ++data) {
      for (int pipeline = 1; pipeline <= 3; ++pipeline) {
        const Topology topology{.tensor = tensor, .data = data, .pipeline = pipeline};
        SCOPED_TRACE(ToString(topology));
        ThreadWorld world(topology.world_size());
        ASSERT_OK(world.Run([&](Communicator& comm) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(auto created, Mesh::Create(topology, &comm));
          Mesh& mesh = *created;
          const Coordinate at = topology.CoordinateOf(comm.rank());
          EXPECT_EQ(mesh.coordinate(), at);
          EXPECT_EQ(mesh.rank(), comm.rank());
          EXPECT_EQ(mesh.topology(), topology);
          EXPECT_EQ(mesh.world(), &comm);
          EXPECT_EQ(mesh.first_stage(), at.pipeline == 0);
          EXPECT_EQ(mesh.last_stage(), at.pipeline == pipeline - 1);
          ExpectGroup(mesh.tensor(), topology.GroupOf(comm.rank(), Axis::kTensor), at.tensor, "tp");
          ExpectGroup(mesh.data(), topology.GroupOf(comm.rank(), Axis::kData), at.data, "dp");
          const std::vector<int> stages = topology.GroupOf(comm.rank(), Axis::kPipeline);
          ExpectGroup(mesh.pipeline(), stages, at.pipeline, "pp");
          if (pipeline == 1 || !(mesh.first_stage() || mesh.last_stage())) {
            EXPECT_EQ(mesh.tied(), nullptr);
          } else {
            ExpectGroup(mesh.tied(), {stages.front(), stages.back()}, mesh.first_stage() ? 0 : 1,
                        "tied");
          }
          return absl::OkStatus();
        }));
      }
    }
  }
}

TEST(MeshTest, OneRankNeedsNoWorld) {
  const Topology topology{.zero_stage = 2};
  ASSERT_OK_AND_ASSIGN(const auto mesh, Mesh::Create(topology, nullptr));
  EXPECT_EQ(mesh->rank(), 0);
  EXPECT_EQ(mesh->topology(), topology);
  for (const Communicator* group :
       {mesh->world(), mesh->tensor(), mesh->data(), mesh->pipeline(), mesh->tied()}) {
    EXPECT_EQ(group, nullptr);
  }
  EXPECT_TRUE(mesh->first_stage() && mesh->last_stage());
  EXPECT_TRUE(mesh->TakeTraffic().empty());
  EXPECT_EQ(mesh->LayersOf(12, 0, 0), (ChunkLayers{0, 12, true, true}));
}

TEST(MeshTest, AWorldOfAnotherSizeIsNamed) {
  EXPECT_EQ(Mesh::Create({.tensor = 2, .data = 3}, nullptr).status().message(),
            "data_parallel_size = 3, tensor_model_parallel_size = 2 and "
            "pipeline_model_parallel_size = 1 make 6 ranks, but 1 process was started");
  ThreadWorld world(2);
  const absl::Status status =
      world.Run([](Communicator& comm) { return Mesh::Create({}, &comm).status(); });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("make 1 rank, but 2 processes were started"));
  EXPECT_THAT(std::string(Mesh::Create({.zero_stage = 7}, nullptr).status().message()),
              HasSubstr("zero_stage = 7"));
}

TEST(MeshTest, TrafficIsWhatWasSentSinceTheLastCall) {
  EXPECT_OK(ThreadWorld(8).Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto mesh,
                             Mesh::Create({.tensor = 2, .data = 2, .pipeline = 2}, &comm));
    EXPECT_TRUE(mesh->TakeTraffic().empty());  // the splits were before
    for (int step = 0; step < 2; ++step) {
      std::vector<float> full(16), half(8);
      TESSERA_RETURN_IF_ERROR(mesh->tensor()->AllGather(half, full));
      TESSERA_RETURN_IF_ERROR(mesh->data()->ReduceScatter(full, half, ReduceOp::kSum));
      TESSERA_RETURN_IF_ERROR(mesh->data()->ReduceScatter(full, half, ReduceOp::kSum));
      TESSERA_RETURN_IF_ERROR(mesh->first_stage()
                                  ? mesh->pipeline()->Send(std::span<const float>(half), 1, 0)
                                  : mesh->pipeline()->Receive(half, 0, 0));
      const std::vector<WireTraffic> traffic = mesh->TakeTraffic();
      if (traffic.size() != 3) return absl::InternalError("operations");
      EXPECT_EQ(traffic[0].group, "tp");
      EXPECT_EQ(traffic[0].op, CommOp::kAllGather);
      EXPECT_EQ(traffic[0].calls, 1);
      EXPECT_EQ(traffic[0].bytes_sent, 8 * 4);
      EXPECT_EQ(traffic[1].group, "dp");
      EXPECT_EQ(traffic[1].op, CommOp::kReduceScatter);
      EXPECT_EQ(traffic[1].calls, 2);
      EXPECT_EQ(traffic[1].bytes_sent, 2 * 8 * 4);
      EXPECT_EQ(traffic[2].group, "pp");
      EXPECT_EQ(traffic[2].op, mesh->first_stage() ? CommOp::kSend : CommOp::kReceive);
      EXPECT_EQ(traffic[2].bytes_sent, mesh->first_stage() ? 8 * 4 : 0);
    }
    return absl::OkStatus();
  }));
}

TEST(MeshTest, TensorsAndHostMemoryHaveGroupsOfTheirOwn) {
  ThreadWorld world(4);
  EXPECT_OK(world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto device_world, comm.Split(0, comm.rank(), "device"));
    TESSERA_ASSIGN_OR_RETURN(const auto mesh,
                             Mesh::Create({.tensor = 2, .data = 2}, &comm, device_world.get()));
    const HostGroups host = mesh->host();
    EXPECT_EQ(mesh->world(), &comm);
    EXPECT_NE(mesh->data(), host.data);
    EXPECT_NE(mesh->tensor(), host.tensor);
    EXPECT_EQ(host.pipeline, nullptr);
    EXPECT_EQ(mesh->pipeline(), nullptr);
    for (Communicator* data : {mesh->data(), host.data}) {
      EXPECT_EQ(data->name(), "dp");
      std::vector<float> values = {static_cast<float>(comm.rank())};
      TESSERA_RETURN_IF_ERROR(data->AllReduce(values, ReduceOp::kSum));
      EXPECT_EQ(values[0], comm.rank() % 2 == 0 ? 0 + 2 : 1 + 3);
    }
    const std::vector<WireTraffic> traffic = mesh->TakeTraffic();
    if (traffic.size() != 1) return absl::InternalError("operations");
    EXPECT_EQ(traffic[0].group, "dp");
    EXPECT_EQ(traffic[0].calls, 2);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace tessera
