#include "compute/parallel/tensor_parallel.h"

#include <vector>

#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// [rows, 2], element i being start + i.
Tensor Counting(int64_t rows, float start) {
  Tensor tensor(DType::kF32, {rows, 2});
  for (int64_t i = 0; i < 2 * rows; ++i) {
    tensor.view().as<float>()[i] = start + static_cast<float>(i);
  }
  return tensor;
}

std::vector<float> Values(const Tensor& tensor) {
  const float* data = tensor.view().as<float>();
  return {data, data + tensor.view().elements()};
}

TEST(TensorParallelTest, ARankHasARunOfShards) {
  EXPECT_OK(ThreadWorld(2).Run([](Communicator& comm) {
    const TensorParallel tensor_parallel(&comm, 8, /*sequence_parallel=*/true);
    EXPECT_EQ(tensor_parallel.size(), 2);
    EXPECT_EQ(tensor_parallel.shards(), 8);
    EXPECT_EQ(tensor_parallel.local_shards(), 4);
    EXPECT_EQ(tensor_parallel.first_shard(), 4 * comm.rank());
    EXPECT_TRUE(tensor_parallel.sequence_parallel());
    return absl::OkStatus();
  }));
}

TEST(TensorParallelTest, OneRankHasNothingToExchange) {
  const TensorParallel tensor_parallel(nullptr, 4, /*sequence_parallel=*/true);
  EXPECT_EQ(tensor_parallel.local_shards(), 4);
  EXPECT_FALSE(tensor_parallel.sequence_parallel());
  const Tensor x = Counting(3, 1);
  EXPECT_OK(tensor_parallel.AllReduce(x, "x"));
  EXPECT_OK(tensor_parallel.ReduceScatter(x, "x"));
  EXPECT_OK(tensor_parallel.AllGather(x, "x"));
  EXPECT_EQ(Values(x), Values(Counting(3, 1)));
}

TEST(TensorParallelTest, CollectivesOverRows) {
  EXPECT_OK(ThreadWorld(2).Run([](Communicator& comm) {
    const TensorParallel tensor_parallel(&comm, 2, /*sequence_parallel=*/false);
    const float rank = static_cast<float>(comm.rank());
    const Tensor sum = Counting(2, 10 * rank);
    EXPECT_OK(tensor_parallel.AllReduce(sum, "sum"));
    EXPECT_EQ(Values(sum), (std::vector<float>{10, 12, 14, 16}));

    const Tensor scattered = Counting(2, 10 * rank);
    EXPECT_OK(tensor_parallel.ReduceScatter(scattered, "scattered"));
    EXPECT_EQ(Values(scattered), comm.rank() == 0 ? (std::vector<float>{10, 12, 2, 3})
                                                  : (std::vector<float>{10, 11, 14, 16}));

    const Tensor gathered = Counting(2, 10 * rank);
    EXPECT_OK(tensor_parallel.AllGather(gathered, "gathered"));
    EXPECT_EQ(Values(gathered), (std::vector<float>{0, 1, 12, 13}));

    const Tensor uneven = Counting(3, 10 * rank);
    const std::vector<int64_t> rows = {0, 3};
    EXPECT_OK(tensor_parallel.AllGather(uneven, rows, "uneven"));
    EXPECT_EQ(Values(uneven), (std::vector<float>{10, 11, 12, 13, 14, 15}));
    return absl::OkStatus();
  }));
}

TEST(TensorParallelTest, ErrorsOfTheCommunicatorComeBack) {
  ThreadWorld world(2);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    if (comm.rank() == 1) return absl::UnavailableError("gone");
    const TensorParallel tensor_parallel(&comm, 2, false);
    const Tensor x = Counting(2, 0);
    const absl::Status sum = tensor_parallel.AllReduce(x, "x");
    EXPECT_EQ(sum.code(), absl::StatusCode::kUnavailable);
    return sum;
  });
  EXPECT_EQ(status.message(), "rank 1: gone");
}

}  // namespace
}  // namespace tessera
