#include "compute/parallel/replicas.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/reference/reference_backend.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

TEST(DescribePartiesTest, NamesTheMostFirst) {
  EXPECT_EQ(DescribeParties({}), "");
  EXPECT_EQ(DescribeParties(std::vector<ReplicaBits>{{3, 7}, {4, 7}}), "");
  EXPECT_EQ(DescribeParties(std::vector<ReplicaBits>{{0, 1}, {4, 7}, {8, 7}, {12, 9}}),
            "ranks 4, 8 against rank 0 against rank 12");
  std::vector<ReplicaBits> many;
  for (int rank = 0; rank < 40; ++rank) many.push_back({rank, rank == 20 ? 1u : 0u});
  EXPECT_EQ(DescribeParties(many),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 23 more against "
            "rank 20");
}

struct Heard {
  int calls = 0, reporters = 0;
  std::vector<std::string> messages;
};

// Three ranks with three tensors each; `flipped` counts from the front of a rank's memory.
Heard Compare(int flipped_rank, std::vector<int> flipped, const absl::Status& answer) {
  ThreadWorld world(3);
  Heard heard;
  Mutex mutex;
  EXPECT_OK(world.Run([&](Communicator& group) -> absl::Status {
    const Tensor memory(DType::kF32, {30});
    for (int i = 0; i < 30; ++i) memory.view().as<float>()[i] = static_cast<float>(i);
    if (group.rank() == flipped_rank) {
      for (const int i : flipped) memory.view().as<uint32_t>()[i] ^= 1;
    }
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    std::vector<ReplicatedTensor> tensors;
    for (int i = 0; i < 3; ++i) {
      tensors.push_back({absl::StrCat("t", i), memory.view().Slice(0, 10 * i, 10 * (i + 1))});
    }
    const absl::Status status = CheckReplicas("weight", tensors, *backend, &group,
                                              [&](const std::string& message, bool is_reporter) {
                                                const MutexLock lock(&mutex);
                                                ++heard.calls;
                                                heard.reporters += is_reporter ? 1 : 0;
                                                heard.messages.push_back(message);
                                                return answer;
                                              });
    if (!flipped.empty()) EXPECT_EQ(status, answer);
    return absl::OkStatus();
  }));
  return heard;
}

TEST(CheckReplicasTest, EqualCopiesPass) {
  EXPECT_EQ(Compare(0, {}, absl::DataLossError("not called")).calls, 0);
  EXPECT_OK(CheckReplicas("weight", {}, *MakeReferenceBackend(), nullptr, nullptr));
}

TEST(CheckReplicasTest, OneFlippedBitIsNamedOnEveryRank) {
  for (int rank = 0; rank < 3; ++rank) {
    const Heard heard = Compare(rank, {19}, absl::DataLossError("stop"));
    EXPECT_EQ(heard.calls, 3);
    EXPECT_EQ(heard.reporters, 1);
    for (const std::string& message : heard.messages) {
      EXPECT_EQ(message, absl::StrCat("weight of 't1' is not the same on all ranks that hold it: ",
                                      rank == 0   ? "ranks 1, 2"
                                      : rank == 1 ? "ranks 0, 2"
                                                  : "ranks 0, 1",
                                      " against rank ", rank));
    }
  }
}

TEST(CheckReplicasTest, CountsFurtherTensors) {
  EXPECT_EQ(Compare(2, {0, 29}, absl::OkStatus()).messages[0],
            "weight of 't0' (and of 1 more tensor) is not the same on all ranks that hold it: "
            "ranks 0, 1 against rank 2");
}

}  // namespace
}  // namespace tessera
