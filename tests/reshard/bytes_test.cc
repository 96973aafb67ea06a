// The size of a checkpoint: bytes on disk relative to bytes of the logical state, for every
// topology; memory while loading.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "gtest/gtest.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/state_chunks.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESSERA_UNDER_SANITIZER 1
#endif
#endif

namespace tessera {
namespace {

using testing::TrainingRank;

// Large enough that headers are negligible: 32 MB of state.
constexpr char kModel[] = R"pb(
  size: "gpt2-tiny"
  num_layers: 5
  hidden_size: 208
  num_attention_heads: 8
  vocab_size: 1511
  make_vocab_size_divisible_by: 1
)pb";

class BytesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(testing::WriteTokens(root_ + "/tokens.bin", 1511, 500), absl::OkStatus());
  }
  TrainConfig Config(const std::string& topology) const {
    const int64_t micro_batches = 16 * 15 * 7;  // any data axis divides it
    return OrFail(testing::MakeConfig({.model = kModel,
                                       .tokens = root_ + "/tokens.bin",
                                       .topology = topology,
                                       .micro_batch_size = 1,
                                       .global_batch_size = micro_batches,
                                       .bucket_elements = 300000}));
  }

  // Saves a run at its start. Returns the size of everything in the checkpoint's folder, in bytes.
  absl::StatusOr<int64_t> Save(const std::string& topology, int64_t* logical_bytes) const {
    TrainConfig config = Config(topology);
    config.mutable_checkpoint()->set_save(root_ + "/" + topology);
    config.mutable_checkpoint()->set_save_interval(1);
    testing::StateCollector collector;
    ThreadWorld world(ConfigTopology(config).world_size());
    TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> training,
                               TrainingRank::Create(config, /*seed=*/1, &rank, /*log=*/nullptr));
      TESSERA_RETURN_IF_ERROR(training->Save());
      TESSERA_RETURN_IF_ERROR(training->FinishSaves().status());
      return logical_bytes == nullptr ? absl::OkStatus()
                                      : collector.Add(training->trainer().chunks());
    }));
    if (logical_bytes != nullptr) *logical_bytes = testing::Bytes(collector.Take());
    int64_t bytes = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(config.checkpoint().save())) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
};

TEST_F(BytesTest, ACheckpointIsHardlyLargerThanTheState) {
  int64_t logical_bytes = 0;
  std::string worst;
  double largest = 0;
  // Replicas, ranges of ZeRO that divide nothing evenly, tensor shards, stages, and all of them.
  for (const std::string topology :
       {"single", "dp16", "dp7_zero1", "dp16_zero2", "tp8", "tp4_sp", "pp5", "pp2_vpp2",
        "dp4_zero2_tp2_pp2", "dp2_zero2_tp2_pp2_vpp2_sp", "dp3_zero2_pp2_vpp2"}) {
    const absl::StatusOr<int64_t> bytes =
        Save(topology, logical_bytes == 0 ? &logical_bytes : nullptr);
    ASSERT_OK(bytes) << topology;
    const double ratio = static_cast<double>(*bytes) / static_cast<double>(logical_bytes);
    EXPECT_GE(ratio, 1) << topology;
    EXPECT_LE(ratio, 1.01) << topology;
    if (ratio > largest) worst = topology;
    largest = std::max(largest, ratio);
    std::filesystem::remove_all(root_ + "/" + topology);
  }
  std::cout << "bytes written over " << logical_bytes << " bytes of logical state: at most "
            << largest << " (" << worst << ")\n";
}

// The optimizer's buffers are written as they lie: one for each kind of state.
TEST_F(BytesTest, AFileHasTheOptimizersStateInTheOrderOfMemory) {
  for (const std::string topology : {"single", "dp2_zero2"}) {
    const TrainConfig config = Config(topology);
    ThreadWorld world(ConfigTopology(config).world_size());
    const absl::Status ran = world.Run([&](Communicator& rank) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> training,
                               TrainingRank::Create(config, /*seed=*/1, &rank, /*log=*/nullptr));
      const char* end = nullptr;
      int buffers = 0;
      for (const ckpt::ShardedTensor& tensor : OptimizerTensors(training->state()).tensors) {
        for (const ckpt::Shard& shard : tensor.shards) {
          const auto* const data = static_cast<const char*>(shard.data);
          // Parameters are aligned to 256 elements.
          if (end == nullptr || data < end || data >= end + 1024) ++buffers;
          end = data + ElementCount(shard.box.shape) * 4;
        }
      }
      EXPECT_EQ(buffers, 2) << topology;
      return absl::OkStatus();
    });
    ASSERT_OK(ran);
  }
}

// Memory of this process in bytes. What several mappings share counts once: ranks, threads here,
// map each other's buffers.
int64_t MemoryInUse() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string name;
  for (int64_t kib = 0; rollup >> name;) {
    if (name == "Pss:" && rollup >> kib) return kib * 1024;
  }
  return -1;
}

// The most memory that this process had at any moment since it was made, looked at all the time.
class PeakMemory {
 public:
  ~PeakMemory() { Stop(); }
  int64_t Stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_;
  }

 private:
  void Look() {
    do {
      peak_ = std::max(peak_, MemoryInUse());
    } while (!stopped_);
  }

  std::atomic<bool> stopped_ = false;
  int64_t peak_ = 0;
  std::thread thread_{[this] { Look(); }};
};

// The memory that loading took beyond what the ranks, threads of this process, had before.
absl::StatusOr<int64_t> MemoryOfLoad(const TrainConfig& config, const std::string& folder,
                                     uint64_t staging_bytes) {
  int64_t before = -1, bytes = -1;
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> training,
                             TrainingRank::Create(config, /*seed=*/1, &rank, /*log=*/nullptr));
    // All pages are present before the load.
    testing::FillState(training->trainer().chunks(), /*seed=*/2);
    ckpt::StateDict state = WeightState(training->state());
    for (ckpt::ShardedTensor& tensor : OptimizerTensors(training->state()).tensors) {
      state.tensors.push_back(std::move(tensor));
    }
    TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder opened,
                             ckpt::CheckpointFolder::Open(folder));
    TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, opened.At(0));
    const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&rank);
    TESSERA_RETURN_IF_ERROR(rank.Barrier());
    std::optional<PeakMemory> peak;
    if (rank.rank() == 0) {
      before = MemoryInUse();
      peak.emplace();
    }
    TESSERA_RETURN_IF_ERROR(rank.Barrier());
    TESSERA_RETURN_IF_ERROR(
        checkpoint.Load(state, {.group = &*group, .io_threads = 2, .staging_bytes = staging_bytes})
            .status());
    TESSERA_RETURN_IF_ERROR(rank.Barrier());
    if (rank.rank() == 0) bytes = peak->Stop() - before;
    return absl::OkStatus();
  }));
  return bytes;
}

// No rank holds more than its own state and a bounded buffer: neither the whole model nor a second
// copy of what it loads.
TEST_F(BytesTest, ALoadTakesNoMoreThanItsBuffers) {
#ifdef TESSERA_UNDER_SANITIZER
  GTEST_SKIP() << "sanitizers keep memory that was given back (needs: uninstrumented)";
#endif
  int64_t logical_bytes = 0;
  ASSERT_EQ(Save("dp4_zero2_tp2_pp2", &logical_bytes).status(), absl::OkStatus());
  constexpr uint64_t kStagingBytes = uint64_t{2} << 20;
  constexpr int64_t kMaxPieces = 7;  // per checksum chunk, where ranks read for each other
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  // Manifest, plan and stacks.
  constexpr int64_t kRest = int64_t{3} << 20;
  for (const std::string topology : {"single", "dp4", "tp4", "pp4", "dp4_zero2", "dp2_tp2"}) {
    const TrainConfig config = Config(topology);
    const absl::StatusOr<int64_t> bytes =
        MemoryOfLoad(config, root_ + "/dp4_zero2_tp2_pp2", kStagingBytes);
    ASSERT_OK(bytes) << topology;
    const int64_t ranks = ConfigTopology(config).world_size();
    EXPECT_LE(*bytes, ranks * (kMaxPieces * kPieceBytes + kRest)) << topology;
    EXPECT_LE(*bytes / ranks, logical_bytes / 3) << topology;
    std::cout << topology << ": " << *bytes / ranks << " bytes a rank; logical state "
              << logical_bytes << "\n";
  }
}

}  // namespace
}  // namespace tessera
