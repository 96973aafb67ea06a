// NCCL's world over a fake NCCL on fake devices, whose streams run late and in adversarial order.

#include "comm/nccl/nccl_world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/nccl/testing/fake_nccl.h"
#include "comm/testing/conformance.h"
#include "comm/threads/thread_world.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {
namespace {

// "Kernels" of the host on the fake device.
class FakeReducer final : public DeviceReducer {
 public:
  explicit FakeReducer(FakeDeviceRuntime& device) : device_(device) {}

  void Reduce(Stream& stream, ReduceOp op, CommType type, std::span<const void* const> inputs,
              void* output, int64_t elements) override {
    device_.Enqueue(stream.handle(),
                    [op, type, inputs = std::vector<const void*>(inputs.begin(), inputs.end()),
                     output, elements] { ReduceInTreeOrder(op, type, inputs, output, elements); });
  }

 private:
  FakeDeviceRuntime& device_;
};

struct FakeGpu {
  explicit FakeGpu(const FakeDeviceOptions& options) {
    auto owned = std::make_unique<FakeDeviceRuntime>(options);
    runtime = owned.get();
    context = std::make_unique<DeviceContext>(std::move(owned));
  }
  FakeDeviceRuntime* runtime;
  std::unique_ptr<DeviceContext> context;
};

struct ClusterOptions {
  uint64_t seed = 0;
  CommOptions comm = {};
  int failing_rank = -1;  // whose NCCL reports an error at its first launch
  std::function<bool(int64_t)> drops_wait;
};

// Ranks with a fake device each.
class Cluster {
 public:
  using Main =
      std::function<absl::Status(Communicator& comm, FakeDeviceRuntime& device, Stream& compute)>;

  Cluster(int size, const ClusterOptions& options)
      : options_(options), world_(size, options.comm), net_(fabric_) {
    for (int rank = 0; rank < size; ++rank) {
      gpus_.push_back(std::make_unique<FakeGpu>(FakeDeviceOptions{
          .seed = options.seed == 0 ? 0 : options.seed * 100 + static_cast<uint64_t>(rank),
          .fabric = fabric_,
          .drops_wait = options.drops_wait}));
    }
  }

  absl::Status Run(const Main& rank_main) {
    return world_.Run([&](Communicator& host) -> absl::Status {
      FakeGpu& gpu = *gpus_[host.rank()];
      TESSERA_RETURN_IF_ERROR(gpu.runtime->Select());
      FakeNccl nccl(net_, *gpu.runtime,
                    {.seed = options_.seed * 100 + static_cast<uint64_t>(host.rank()),
                     .fail_at_launch = host.rank() == options_.failing_rank ? 0 : -1});
      TESSERA_ASSIGN_OR_RETURN(Stream compute, Stream::Create(*gpu.context));
      FakeReducer reducer(*gpu.runtime);
      TESSERA_ASSIGN_OR_RETURN(auto world, NcclWorld::Create(host, nccl, compute, reducer));
      const absl::Status status = rank_main(world->world(), *gpu.runtime, compute);
      if (!status.ok()) host.Abort(status);
      return status;
    });
  }

  const std::vector<absl::Status>& statuses() const { return world_.statuses(); }
  FakeNcclNet& net() { return net_; }

 private:
  const ClusterOptions options_;
  const std::shared_ptr<FakeFabric> fabric_ = FakeFabric::OverHostMemory();
  ThreadWorld world_;
  FakeNcclNet net_;
  std::vector<std::unique_ptr<FakeGpu>> gpus_;
};

bool Mentions(const absl::Status& status, const std::string& text) {
  return absl::StrContains(std::string(status.message()), text);
}

class NcclConformance : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(NcclConformance, Holds) {
  const auto [which, size, seed] = GetParam();
  Cluster cluster(size, {.seed = static_cast<uint64_t>(seed)});
  const absl::Status status =
      cluster.Run([which = which](Communicator& comm, FakeDeviceRuntime&, Stream&) {
        return ConformanceCases()[which].run(comm);
      });
  EXPECT_OK(status);
}

INSTANTIATE_TEST_SUITE_P(
    All, NcclConformance,
    testing::Combine(testing::Range(0, static_cast<int>(ConformanceCases().size())),
                     testing::Values(1, 2, 3, 5), testing::Values(0, 1, 2)),
    [](const testing::TestParamInfo<std::tuple<int, int, int>>& info) {
      return ConformanceCases()[std::get<0>(info.param)].name + "With" +
             std::to_string(std::get<1>(info.param)) + "RanksSeed" +
             std::to_string(std::get<2>(info.param));
    });

// Kernels of the compute stream write what is sent and what is received is read by kernels behind
// it. Returns whether every rank found the right sums.
bool FollowsKernels(uint64_t seed, bool follow, std::function<bool(int64_t)> drops_wait = {}) {
  constexpr int64_t kCount = 1000;
  std::atomic<bool> right = true;
  // They outlive the operations also where the compute stream does not wait for these.
  std::vector<std::vector<float>> buffers(3, std::vector<float>(kCount, -1.0f));
  Cluster cluster(3, {.seed = seed, .drops_wait = std::move(drops_wait)});
  const absl::Status status = cluster.Run(
      [&](Communicator& comm, FakeDeviceRuntime& device, Stream& compute) -> absl::Status {
        std::vector<float>& data = buffers[static_cast<size_t>(comm.rank())];
        std::vector<float> read(kCount);
        for (int round = 1; round <= 3; ++round) {
          device.Enqueue(compute.handle(), [&, round] {
            for (float& value : data) value = static_cast<float>(round * (comm.rank() + 1));
          });
          Pending sum = comm.StartAllReduce(data, ReduceOp::kSum);
          TESSERA_RETURN_IF_ERROR(follow ? sum.Follow() : sum.Wait());
          device.Enqueue(compute.handle(), [&] { read = data; });
          TESSERA_RETURN_IF_ERROR(compute.Synchronize());
          for (const float value : read) {
            if (value != static_cast<float>(6 * round)) right = false;
          }
        }
        return absl::OkStatus();
      });
  EXPECT_OK(status);
  return right;
}

TEST(NcclWorldTest, OperationsFollowTheComputeStream) {
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_TRUE(FollowsKernels(seed, false)) << seed;
}

TEST(NcclWorldTest, TheComputeStreamFollowsOperations) {
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_TRUE(FollowsKernels(seed, true)) << seed;
}

// A thread of an asynchronous save, say, which drives the training thread's operations, too.
TEST(NcclWorldTest, AThreadThatHasNotSelectedTheDeviceDrivesOperations) {
  Cluster cluster(2, {});
  const absl::Status status = cluster.Run(
      [](Communicator& comm, FakeDeviceRuntime& /*device*/, Stream& /*compute*/) -> absl::Status {
        std::vector<float> data(100, 1);
        absl::Status waited;
        std::thread([&] { waited = comm.StartAllReduce(data, ReduceOp::kSum).Wait(); }).join();
        EXPECT_EQ(data.front(), 2);
        return waited;
      });
  EXPECT_OK(status);
}

TEST(NcclWorldTest, AMissingEventWaitIsFound) {
  int found = 0;
  const auto all = [](int64_t) { return true; };
  for (uint64_t seed = 0; seed < 20; ++seed) found += !FollowsKernels(seed, false, all);
  EXPECT_GT(found, 0);
  // Each operation waits for the compute stream, and then the compute stream for the operation.
  const auto second = [](int64_t wait) { return wait % 2 == 1; };
  found = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) found += !FollowsKernels(seed, true, second);
  EXPECT_GT(found, 0);
}

// The host is ahead of the device, which has run nothing of what it follows.
TEST(NcclWorldTest, FollowingDoesNotWaitForTheDevice) {
  Cluster cluster(2, {});
  const absl::Status status = cluster.Run(
      [](Communicator& comm, FakeDeviceRuntime& device, Stream& compute) -> absl::Status {
        std::vector<float> data(1000), gathered(2000);
        TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kSum));
        std::atomic<bool> released = false, ran = false;
        device.EnqueueShared(compute.handle(), [&] {
          ran = released.load();
          return ran.load();
        });
        Pending sum = comm.StartAllReduce(data, ReduceOp::kSum);
        TESSERA_RETURN_IF_ERROR(sum.Follow());
        TESSERA_RETURN_IF_ERROR(comm.StartAllGather(data, gathered).Follow());
        if (comm.rank() == 0) {
          TESSERA_RETURN_IF_ERROR(comm.StartSend(data, 1, 7).Follow());
        } else {
          TESSERA_RETURN_IF_ERROR(comm.StartReceive(data, 0, 7).Follow());
        }
        EXPECT_FALSE(ran);
        released = true;
        device.Notify();
        return compute.Synchronize();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

TEST(NcclWorldTest, ADeadPeerOfAFollowedOperationEndsTheStep) {
  CommOptions comm;
  comm.probe_interval = absl::Milliseconds(50);
  Cluster cluster(3, {.seed = 5, .comm = comm});
  std::atomic<int> followed = 0;
  const absl::Status status =
      cluster.Run([&](Communicator& comm, FakeDeviceRuntime&, Stream& compute) -> absl::Status {
        std::vector<float> data(1000);
        TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kSum));
        if (comm.rank() == 2) return absl::OkStatus();
        const absl::Status s = comm.StartAllReduce(data, ReduceOp::kSum, {.what = "g"}).Follow();
        followed += s.ok() ? 1 : 0;
        const absl::Status end = compute.Synchronize();
        EXPECT_FALSE(end.ok());
        return end;
      });
  EXPECT_GT(followed, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(Mentions(status, "rank 2 has returned")) << status;
  EXPECT_TRUE(Mentions(status, "all-reduce #1 of 'world' (g)")) << status;
  EXPECT_GE(cluster.net().aborts(), 2);
}

TEST(NcclWorldTest, ADeadlineOfAFollowedOperationEndsTheStep) {
  Cluster cluster(3, {.seed = 5});
  std::atomic<bool> given_up = false;
  const absl::Status status = cluster.Run([&](Communicator& comm, FakeDeviceRuntime&,
                                              Stream& compute) -> absl::Status {
    std::vector<float> data(1000);
    TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kSum));
    if (comm.rank() == 2) {
      while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return absl::OkStatus();
    }
    absl::Status s =
        comm.StartAllReduce(data, ReduceOp::kSum, {.timeout = absl::Milliseconds(200)}).Follow();
    EXPECT_EQ(s, absl::OkStatus());
    s = compute.Synchronize();
    given_up = true;
    return s;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(Mentions(status, "all-reduce #1 of 'world' is not complete")) << status;
}

// What the device has run after it was aborted is not taken for a result.
TEST(NcclWorldTest, AnotherRanksErrorEndsAStepThatFollows) {
  Cluster cluster(2, {.seed = 5});
  const absl::Status status =
      cluster.Run([&](Communicator& comm, FakeDeviceRuntime&, Stream& compute) -> absl::Status {
        std::vector<float> data(1000);
        TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kSum));
        if (comm.rank() == 1) return absl::DataLossError("bad file");
        comm.StartAllReduce(data, ReduceOp::kSum).Follow().IgnoreError();
        const absl::Status s = compute.Synchronize();
        EXPECT_TRUE(Mentions(s, "bad file")) << s;
        return s;
      });
  EXPECT_EQ(status, absl::DataLossError("rank 1: bad file"));
}

TEST(NcclWorldTest, ADeadPeerIsNamed) {
  CommOptions comm;
  comm.probe_interval = absl::Milliseconds(50);
  Cluster cluster(3, {.seed = 5, .comm = comm});
  const absl::Status status =
      cluster.Run([](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
        if (comm.rank() == 2) return absl::OkStatus();
        std::vector<float> data(1000);
        return comm.AllReduce(data, ReduceOp::kSum);
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(Mentions(status, "rank 2 has returned")) << status;
  EXPECT_GE(cluster.net().aborts(), 2);
}

TEST(NcclWorldTest, ADeadlineNamesTheOperationAndTheMissingRank) {
  Cluster cluster(3, {.seed = 5});
  std::atomic<bool> given_up = false;
  const absl::Status status =
      cluster.Run([&](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
        absl::Status status = comm.Barrier();
        if (!status.ok()) return status;
        if (comm.rank() == 2) {
          while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return absl::OkStatus();
        }
        std::vector<float> data(1000);
        status = comm.AllReduce(data, ReduceOp::kSum,
                                {.timeout = absl::Milliseconds(200), .what = "bucket 7"});
        given_up = true;
        return status;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(Mentions(status, "all-reduce #1 of 'world' (bucket 7)")) << status;
  EXPECT_TRUE(Mentions(status, "rank 2 has computed for")) << status;
}

TEST(NcclWorldTest, AnAsynchronousErrorEndsEveryRank) {
  Cluster cluster(3, {.seed = 5, .failing_rank = 1});
  const absl::Status status =
      cluster.Run([](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
        std::vector<float> data(1000);
        return comm.AllReduce(data, ReduceOp::kSum, {.what = "bucket 7"});
      });
  EXPECT_EQ(status, absl::UnavailableError("rank 1: all-reduce #0 of 'world' (bucket 7): NCCL: "
                                           "remote process exited or there was a network error"));
  EXPECT_EQ(cluster.statuses()[0], status);
  EXPECT_EQ(cluster.statuses()[2], status);
}

TEST(NcclWorldTest, AbortEndsWaitsOfEveryGroup) {
  Cluster cluster(4, {.seed = 5});
  const absl::Status status =
      cluster.Run([](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(auto group, comm.Split(comm.rank() / 2, 0, "pair"));
        if (comm.rank() == 0) comm.Abort(absl::ResourceExhaustedError("out of memory"));
        std::vector<float> data(10);
        // Ranks 2 and 3 do not communicate with rank 0.
        return group->Receive(data, 1 - group->rank(), 5);
      });
  EXPECT_EQ(status, absl::ResourceExhaustedError("rank 0: out of memory"));
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(cluster.statuses()[rank], status);
}

TEST(NcclWorldTest, TheWatchdogAbortsWhileNoRankWaits) {
  Cluster cluster(2, {.seed = 5});
  const absl::Status status =
      cluster.Run([&](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
        if (comm.rank() == 1) return absl::DataLossError("bad file");
        std::vector<float> data(1000);
        Pending never = comm.StartAllReduce(data, ReduceOp::kSum);
        // This rank's communicator is aborted although this thread only computes.
        for (int i = 0; i < 20000 && cluster.net().aborts() < 2; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_EQ(cluster.net().aborts(), 2);
        return never.Wait();
      });
  EXPECT_EQ(status, absl::DataLossError("rank 1: bad file"));
}

TEST(NcclWorldTest, MessagesOfDifferentSizesAreAnError) {
  Cluster cluster(2, {.seed = 5});
  const absl::Status status = cluster.Run([](Communicator& comm, FakeDeviceRuntime&, Stream&) {
    std::vector<float> data(comm.rank() == 0 ? 10 : 20);
    return comm.rank() == 0 ? comm.Send(data, 1, 0) : comm.Receive(data, 0, 0);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(Mentions(status, "rank 0 sent 40 bytes where rank 1 expected 80")) << status;
}

// A message does not wait behind a collective operation that its receiver starts later, nor behind
// a receive that was started ahead.
TEST(NcclWorldTest, MessagesWaitForNothingElse) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Cluster cluster(2, {.seed = seed});
    const absl::Status status =
        cluster.Run([](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
          std::vector<float> data(1000, 1.0f), message(10), later(10);
          const int other = 1 - comm.rank();
          Pending ahead = comm.StartReceive(later, other, 7);
          Pending sum;
          if (comm.rank() == 0) sum = comm.StartAllReduce(data, ReduceOp::kSum);
          Pending sent = comm.StartSend(message, other, 3);
          std::vector<float> received(10);
          TESSERA_RETURN_IF_ERROR(comm.Receive(received, other, 3));
          if (comm.rank() == 1) sum = comm.StartAllReduce(data, ReduceOp::kSum);
          TESSERA_RETURN_IF_ERROR(sum.Wait());
          TESSERA_RETURN_IF_ERROR(comm.Send(message, other, 7));
          TESSERA_RETURN_IF_ERROR(sent.Wait());
          return ahead.Wait();
        });
    EXPECT_OK(status) << seed;
  }
}

// Pieces above 16 MiB are received and added in segments, the last of which is shorter, and is
// empty on the ranks whose pieces are.
TEST(NcclWorldTest, LargeReductionsHaveSeveralSegments) {
  const std::vector<int64_t> counts = {(int64_t{9} << 20) + 5, 3, int64_t{4} << 20};
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  Cluster cluster(3, {.seed = 5});
  const absl::Status status =
      cluster.Run([&](Communicator& comm, FakeDeviceRuntime&, Stream&) -> absl::Status {
        const int rank = comm.rank();
        std::vector<float> data(static_cast<size_t>(total));
        for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(rank + i % 1000);
        std::vector<float> mine(static_cast<size_t>(counts[static_cast<size_t>(rank)]));
        TESSERA_RETURN_IF_ERROR(comm.ReduceScatter(data, mine, ReduceOp::kSum, counts));
        size_t begin = 0;
        for (int i = 0; i < rank; ++i) begin += static_cast<size_t>(counts[static_cast<size_t>(i)]);
        for (size_t i = 0; i < mine.size(); ++i) {
          if (mine[i] == static_cast<float>(3 + 3 * ((begin + i) % 1000))) continue;
          return absl::DataLossError("element " + std::to_string(i));
        }
        return absl::OkStatus();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

TEST(NcclWorldTest, AllocatedPiecesAreGivenBack) {
  Cluster cluster(3, {.seed = 5});
  const absl::Status status =
      cluster.Run([](Communicator& comm, FakeDeviceRuntime&, Stream& compute) -> absl::Status {
        std::vector<float> data(5000);
        TESSERA_RETURN_IF_ERROR(comm.AllReduce(data, ReduceOp::kSum));
        const std::string used = compute.context().DescribeMemory();
        return used == "nothing" ? absl::OkStatus() : absl::InternalError(used);
      });
  EXPECT_OK(status);
}

}  // namespace
}  // namespace tessera
