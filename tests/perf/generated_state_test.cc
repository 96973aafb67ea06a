#include "tests/perf/generated_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/process_group.h"
#include "comm/threads/thread_world.h"
#include "trainer/state/communicator_group.h"

namespace tessera {
namespace {

constexpr char kTinyModel[] = "size: 'gpt2-tiny'";

class GeneratedStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ThreadWorld world(4);
    ASSERT_OK(world.Run([&](Communicator& rank) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GeneratedState> state,
                               GeneratedState::Create(kTinyModel, "dp2_zero2_tp2", rank));
      const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&rank);
      TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder to,
                               ckpt::CheckpointFolder::Open(folder_.path()));
      return to.Save(1, state->dict(), {.group = &*group}).status();
    }));
  }

  const TestFolder folder_;
};

TEST_F(GeneratedStateTest, ALoadComparesEveryElement) {
  ASSERT_OK_AND_ASSIGN(const ckpt::CheckpointFolder saved,
                       ckpt::CheckpointFolder::Open(folder_.path()));
  ASSERT_OK_AND_ASSIGN(const ckpt::Checkpoint checkpoint, saved.Latest());
  ThreadWorld world(1);
  ASSERT_OK(world.Run([&](Communicator& rank) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<GeneratedState> state,
                             GeneratedState::Create(kTinyModel, "single", rank));
    EXPECT_EQ(state->CheckLoaded().code(), absl::StatusCode::kDataLoss) << "nothing is loaded";
    TESSERA_RETURN_IF_ERROR(checkpoint.Load(state->dict()).status());
    TESSERA_RETURN_IF_ERROR(state->CheckLoaded());

    // Two tensors of one shape whose elements land in each other's place.
    ckpt::StateDict wrong = state->dict();
    const auto find = [&](const char* name) -> ckpt::ShardedTensor& {
      return *std::ranges::find(wrong.tensors, name, &ckpt::ShardedTensor::name);
    };
    std::swap(find("transformer.h.0.ln_1.weight").shards,
              find("transformer.h.1.ln_1.weight").shards);
    EXPECT_EQ(checkpoint.Load(wrong).status().code(), absl::StatusCode::kDataLoss);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace tessera
