#include "compute/parallel/pipeline_schedule.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr double kForwardTime = 1;
constexpr double kBackwardTime = 2;

std::vector<PipelineShape> Shapes() {
  std::vector<PipelineShape> shapes;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const int64_t micro_batches : {1, 2, 3, 4, 8, 13, 32}) {
      shapes.push_back({.ranks = ranks, .chunks = 1, .micro_batches = micro_batches});
    }
    for (const int chunks : {2, 3, 4}) {
      for (const int64_t rounds : {1, 2, 5}) {
        shapes.push_back({.ranks = ranks, .chunks = chunks, .micro_batches = rounds * ranks});
      }
    }
  }
  return shapes;
}

std::string Name(const PipelineShape& shape) {
  return std::to_string(shape.ranks) + " ranks, " + std::to_string(shape.chunks) + " chunks, " +
         std::to_string(shape.micro_batches) + " micro-batches";
}

// Simulates all ranks' schedules in time: an action starts when its rank is free, its input has
// arrived, and it has a buffer for its output. A chunk has `buffers` buffers for sending in one
// direction and as many for receiving, and a message leaves its sender's buffer when its receiver
// has one. Returns the time at which the last action ends; nullopt if the ranks deadlock.
std::optional<double> SimulatedTime(const PipelineShape& shape, int64_t buffers) {
  std::vector<std::vector<PipelineAction>> schedules;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedules.push_back(PipelineSchedule(shape, rank));
  }
  std::map<std::pair<int64_t, int64_t>, double> forward_end, backward_end;  // (micro-batch, stage)
  std::vector<size_t> next(shape.ranks);
  std::vector<double> free_at(shape.ranks);
  const int64_t last_stage = int64_t{shape.ranks} * shape.chunks - 1;
  size_t left = 0;
  for (const auto& schedule : schedules) left += schedule.size();
  while (left > 0) {
    bool moved = false;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      if (next[rank] == schedules[rank].size()) continue;
      const PipelineAction& action = schedules[rank][next[rank]];
      const int64_t stage = int64_t{action.chunk} * shape.ranks + rank;
      const bool forward = action.kind == PipelineAction::kForward;
      // The end of another pass; nullopt before that.
      const auto end_of = [](const auto& ends, int64_t micro_batch, int64_t stage) {
        const auto end = ends.find({micro_batch, stage});
        return end == ends.end() ? std::nullopt : std::optional<double>(end->second);
      };
      std::optional<double> needed = 0, room = 0;
      const int64_t before = action.micro_batch - 2 * buffers;  // whose buffers are free again
      if (forward) {
        if (stage > 0) needed = end_of(forward_end, action.micro_batch, stage - 1);
        if (stage < last_stage && before >= 0) room = end_of(forward_end, before, stage + 1);
      } else {
        needed = stage == last_stage ? end_of(forward_end, action.micro_batch, stage)
                                     : end_of(backward_end, action.micro_batch, stage + 1);
        if (stage > 0 && before >= 0) room = end_of(backward_end, before, stage - 1);
      }
      if (!needed.has_value() || !room.has_value()) continue;
      const double ready = std::max(*needed, *room);
      free_at[rank] =
          std::max(free_at[rank], ready) + (forward ? kForwardTime : kBackwardTime) / shape.chunks;
      (forward ? forward_end : backward_end)[{action.micro_batch, stage}] = free_at[rank];
      ++next[rank];
      --left;
      moved = true;
    }
    if (!moved) return std::nullopt;
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

TEST(PipelineScheduleTest, EveryPassOnceAndBackwardAfterForwardInOrder) {
  for (const PipelineShape& shape : Shapes()) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      SCOPED_TRACE(Name(shape) + ", rank " + std::to_string(rank));
      std::set<std::pair<int64_t, int>> forward, backward;
      std::vector<int64_t> last_backward(shape.chunks, -1);
      for (const PipelineAction& action : PipelineSchedule(shape, rank)) {
        const std::pair<int64_t, int> pass{action.micro_batch, action.chunk};
        if (action.kind == PipelineAction::kForward) {
          EXPECT_TRUE(forward.insert(pass).second);
          continue;
        }
        EXPECT_TRUE(forward.contains(pass));
        EXPECT_TRUE(backward.insert(pass).second);
        EXPECT_GT(action.micro_batch, last_backward[action.chunk]);
        last_backward[action.chunk] = action.micro_batch;
      }
      EXPECT_EQ(backward.size(), static_cast<size_t>(shape.micro_batches * shape.chunks));
      EXPECT_EQ(forward, backward);
    }
  }
}

TEST(PipelineScheduleTest, NeverDeadlocksAndWaitsAsLittleAsTheorySays) {
  for (const PipelineShape& shape : Shapes()) {
    SCOPED_TRACE(Name(shape));
    const double busy = static_cast<double>(shape.micro_batches) * (kForwardTime + kBackwardTime);
    for (const int64_t buffers : {int64_t{2}, shape.micro_batches}) {
      const std::optional<double> time = SimulatedTime(shape, buffers);
      ASSERT_TRUE(time.has_value()) << "deadlock with " << buffers << " buffers";
      EXPECT_NEAR(1 - busy / *time, BubbleShare(shape), 1e-12) << buffers << " buffers";
    }
  }
}

TEST(PipelineScheduleTest, HoldsNoMoreActivationsThanThePipelineIsDeep) {
  for (const PipelineShape& shape : Shapes()) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      SCOPED_TRACE(Name(shape) + ", rank " + std::to_string(rank));
      const int64_t all = shape.micro_batches * shape.chunks;
      const int64_t behind = shape.ranks - rank;
      const int64_t bound = shape.chunks == 1
                                ? behind
                                : 2 * (behind - 1) + int64_t{shape.chunks - 1} * shape.ranks + 1;
      EXPECT_EQ(MaxInFlight(PipelineSchedule(shape, rank)), std::min(all, bound));
    }
  }
}

TEST(PipelineScheduleTest, ForwardAloneTakesAnyNumberOfMicroBatches) {
  for (const int chunks : {1, 3}) {
    for (const int64_t micro_batches : {0, 1, 2, 5, 8}) {
      const PipelineShape shape{.ranks = 4, .chunks = chunks, .micro_batches = micro_batches};
      std::vector<int64_t> next(chunks);
      for (const PipelineAction& action : ForwardSchedule(shape)) {
        EXPECT_EQ(action.kind, PipelineAction::kForward);
        EXPECT_EQ(action.micro_batch, next[action.chunk]++);
        if (action.chunk > 0) EXPECT_LE(next[action.chunk], next[action.chunk - 1]);
      }
      EXPECT_EQ(next, std::vector<int64_t>(chunks, micro_batches));
    }
  }
}

}  // namespace
}  // namespace tessera
