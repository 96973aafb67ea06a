#include "comm/threads/thread_world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "base/threads.h"
#include "comm/testing/conformance.h"

namespace tessera {
namespace {

class ThreadConformance : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ThreadConformance, Holds) {
  const auto [which, size] = GetParam();
  ThreadWorld world(size);
  EXPECT_EQ(world.Run(ConformanceCases()[which].run), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(
    All, ThreadConformance,
    testing::Combine(testing::Range(0, static_cast<int>(ConformanceCases().size())),
                     testing::Range(1, 10)),
    [](const testing::TestParamInfo<std::tuple<int, int>>& info) {
      return ConformanceCases()[std::get<0>(info.param)].name + "With" +
             std::to_string(std::get<1>(info.param)) + "Ranks";
    });

bool Mentions(const absl::Status& status, const std::string& text) {
  return absl::StrContains(std::string(status.message()), text);
}

int Occurrences(const absl::Status& status, const std::string& text) {
  const std::string message(status.message());
  int count = 0;
  for (size_t at = message.find(text); at != message.npos; at = message.find(text, at + 1)) ++count;
  return count;
}

TEST(ThreadWorld, AnErrorOnOneRankEndsAllWithItsMessageOnce) {
  ThreadWorld world(5);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    if (comm.rank() == 3) return absl::DataLossError("bad file 'x'");
    absl::Status first = comm.Barrier();
    EXPECT_EQ(first, comm.Barrier());  // every later call returns it, too
    return first;
  });
  EXPECT_EQ(status, absl::DataLossError("rank 3: bad file 'x'"));
  ASSERT_EQ(world.statuses().size(), 5u);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(world.statuses()[rank],
              absl::DataLossError(rank == 3 ? "bad file 'x'" : "rank 3: bad file 'x'"));
  }
}

TEST(ThreadWorld, AbortEndsWaitsOfEveryGroup) {
  ThreadWorld world(4);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto group, comm.Split(comm.rank() / 2, 0, "pair"));
    if (comm.rank() == 0) comm.Abort(absl::ResourceExhaustedError("out of memory"));
    // Ranks 2 and 3 do not communicate with rank 0; each waits for a message that is never sent.
    std::vector<float> data(10);
    return group->Receive(data, 0, 5);
  });
  EXPECT_EQ(status, absl::ResourceExhaustedError("rank 0: out of memory"));
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(world.statuses()[rank], status);
}

TEST(ThreadWorld, ADeadlineNamesTheMissingRankAndWhatItDoes) {
  CommOptions options;
  options.timeout = absl::Seconds(20);
  ThreadWorld world(3, options);
  std::atomic<bool> given_up = false;
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    absl::Status status = comm.Barrier();
    if (!status.ok()) return status;
    if (comm.rank() == 2) {
      while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return absl::OkStatus();
    }
    std::vector<float> gradients(100000);
    status = comm.AllReduce(gradients, ReduceOp::kSum,
                            {.timeout = absl::Milliseconds(200), .what = "bucket 7"});
    given_up = true;
    return status;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Mentions(status, "all-reduce #1 of 'world' (bucket 7)")) << status;
  EXPECT_TRUE(Mentions(status, "waiting for rank 2")) << status;
  EXPECT_TRUE(Mentions(status, "rank 2 has computed for")) << status;
  EXPECT_TRUE(Mentions(status, "since barrier #0 of 'world'")) << status;
  EXPECT_EQ(Occurrences(status, "not complete"), 1) << status;
}

TEST(ThreadWorld, TheMissingRankIsFoundBehindOneThatWaitsForIt) {
  CommOptions options;
  options.timeout = absl::Milliseconds(400);
  ThreadWorld world(3, options);
  std::atomic<bool> given_up = false;
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    std::vector<float> data(1);
    if (comm.rank() == 0) {  // waits for 1, which waits for 2
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      absl::Status status = comm.Receive(data, 1, 0, {.timeout = absl::Milliseconds(200)});
      given_up = true;
      return status;
    }
    if (comm.rank() == 1) return comm.Receive(data, 2, 0, {.timeout = absl::Seconds(20)});
    while (!given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  EXPECT_TRUE(Mentions(status, "rank 0: ")) << status;
  EXPECT_TRUE(Mentions(status, "rank 1 has waited in receive")) << status;
  EXPECT_TRUE(Mentions(status, "rank 2 has not communicated yet")) << status;
}

TEST(ThreadWorld, ARankThatHasReturnedIsGone) {
  CommOptions options;
  options.probe_interval = absl::Milliseconds(50);
  ThreadWorld world(2, options);
  const absl::Status status = world.Run(
      [](Communicator& comm) { return comm.rank() == 0 ? comm.Barrier() : absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Mentions(status, "rank 1 has returned")) << status;
}

TEST(ThreadWorld, DifferentSizesAreAnError) {
  ThreadWorld world(2);
  const absl::Status status = world.Run([](Communicator& comm) {
    std::vector<float> data(comm.rank() == 0 ? 10 : 20);
    return comm.AllReduce(data, ReduceOp::kSum);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(Mentions(status, "bytes where rank")) << status;
}

TEST(ThreadWorld, AForgottenOperationEndsBeforeItsBuffer) {
  ThreadWorld world(2);
  const absl::Status status = world.Run([](Communicator& comm) {
    {
      std::vector<float> data(100000, 1.0f);
      Pending pending = comm.StartAllReduce(data, ReduceOp::kSum);
    }
    return comm.Barrier();
  });
  EXPECT_OK(status);
}

TEST(ThreadWorld, GroupsOfOneRankServeSeveralThreads) {
  ThreadWorld world(3);
  const absl::Status status = world.Run([](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto background, comm.Split(0, comm.rank(), "background"));
    std::atomic<bool> ok = true;
    std::thread thread([&] {
      for (int i = 0; i < 50; ++i) {
        std::vector<int32_t> one(1000, 1);
        ok = ok && background->AllReduce(one, ReduceOp::kSum).ok() && one[999] == 3;
      }
    });
    absl::Status status;
    for (int i = 0; i < 50 && status.ok(); ++i) status = comm.Barrier();
    thread.join();
    return !status.ok() || ok ? status : absl::InternalError("the other thread's sums");
  });
  EXPECT_OK(status);
}

// Ranks wait for each other: if one cannot start, none runs.
TEST(ThreadWorldTest, RanksThatCannotBeStartedAreAnError) {
  for (const int threads : {0, 1, 2}) {
    LimitThreads(threads);
    ThreadWorld world(3);
    const absl::Status status = world.Run([](Communicator&) -> absl::Status {
      ADD_FAILURE() << "a rank has begun";
      return absl::OkStatus();
    });
    LimitThreads(-1);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

}  // namespace
}  // namespace tessera
