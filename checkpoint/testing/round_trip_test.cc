// Random tensors, shardings, replicas and memory layouts, saved by some ranks and loaded by others,
// compared with whole tensors.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kBF16,
                             DType::kU8,  DType::kI64, DType::kBool};
constexpr TensorRole kRoles[] = {TensorRole::kWeight, TensorRole::kMasterWeight,
                                 TensorRole::kOptimizerState, TensorRole::kBuffer};

std::vector<WholeTensor> RandomTensors(std::mt19937_64& random) {
  std::vector<WholeTensor> tensors;
  const int count = 1 + random() % 6;
  for (int t = 0; t < count; ++t) {
    Shape shape;
    const int rank = random() % 4;
    for (int d = 0; d < rank; ++d) shape.push_back(random() % 12 == 0 ? 0 : 1 + random() % 20);
    tensors.push_back(RandomTensor(absl::StrCat("tensor.", t), kRoles[random() % 4],
                                   kDTypes[random() % std::size(kDTypes)], shape, random));
  }
  return tensors;
}

// Splits every tensor at random and deals its boxes to the ranks; some boxes to two ranks.
std::vector<std::unique_ptr<LocalState>> Deal(const std::vector<WholeTensor>& tensors, int ranks,
                                              bool fill, std::mt19937_64& random) {
  std::vector<std::unique_ptr<LocalState>> states;
  for (int r = 0; r < ranks; ++r) states.push_back(std::make_unique<LocalState>());
  for (const WholeTensor& tensor : tensors) {
    const std::vector<Box> boxes = RandomCut(tensor.shape, 1 + random() % (2 * ranks), random);
    // Another split of the same tensor, on other ranks: replicas that are not copies of each
    // other's boxes.
    const std::vector<Box> other_boxes = RandomCut(tensor.shape, 1 + random() % 3, random);
    const bool replicated = ranks > 1 && random() % 3 == 0;
    const int split = replicated ? 1 + random() % (ranks - 1) : ranks;
    std::vector<std::vector<Box>> held(ranks);
    for (const Box& box : boxes) {
      const int first = random() % split;
      held[first].push_back(box);
      if (split > 1 && random() % 3 == 0) held[(first + 1) % split].push_back(box);
    }
    if (replicated) {
      for (const Box& box : other_boxes) held[split + random() % (ranks - split)].push_back(box);
    }
    for (int r = 0; r < ranks; ++r) {
      if (r > 0 && held[r].empty() && random() % 2 == 0)
        continue;  // this rank does not know the tensor
      states[r]->Add(tensor, held[r], fill, &random);
    }
  }
  return states;
}

std::pair<uint64_t, uint64_t> DigestOf(const LogicalTensor& saved) {
  return {saved.digest().lo(), saved.digest().hi()};
}

// The digest of the whole tensor.
std::pair<uint64_t, uint64_t> DigestOf(const std::vector<WholeTensor>& tensors,
                                       const std::string& name) {
  for (const WholeTensor& tensor : tensors) {
    if (tensor.name != name) continue;
    const size_t size = ElementSize(tensor.dtype);
    const LogicalDigest digest =
        DigestRun(0, tensor.bytes.data(), tensor.bytes.size() / size, size);
    return {digest.lo, digest.hi};
  }
  return {1, 1};  // not the digest of any tensor
}

uint64_t BytesOf(const StateDict& state) {
  uint64_t bytes = 0;
  for (const ShardedTensor& tensor : state.tensors) {
    for (const Shard& shard : tensor.shards) {
      bytes += ElementCount(shard.box.shape) * ElementSize(tensor.dtype);
    }
  }
  return bytes;
}

TEST(RoundTripTest, RandomShardingsToRandomShardings) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " round ", round));
    MemoryStorage storage;
    const std::vector<WholeTensor> tensors = RandomTensors(random);
    const int savers = 1 + random() % 5, loaders = 1 + random() % 5;
    const auto saved = Deal(tensors, savers, true, random);
    SaveOptions save_options;
    save_options.checksum_chunk_bytes = 8 << (random() % 10);
    save_options.max_file_bytes = 1 << (6 + random() % 12);
    save_options.io_threads = 1 + random() % 3;
    save_options.staging_bytes = 1 << (random() % 16);
    std::string directory;
    RunRanks(savers, [&](ProcessGroup& group) {
      ASSERT_OK_AND_ASSIGN(const auto report,
                           SaveNow(storage, {.step = round}, saved[group.rank()]->dict,
                                   On(group, save_options), {.choose_root = In("run")}));
      if (group.rank() == 0) directory = report.directory;
    });
    ASSERT_EQ(directory, "run/" + StepDirectoryName(round));

    ASSERT_OK_AND_ASSIGN(const auto verified,
                         VerifyCheckpoint(storage, directory, {.digests = true, .io_threads = 2}));
    for (const Damage& damage : verified.damage) {
      ADD_FAILURE() << damage.file << " " << damage.tensor << " " << damage.message;
    }

    ASSERT_OK_AND_ASSIGN(const auto manifest, ReadManifest(storage, directory));
    for (const LogicalTensor& saved_tensor : manifest.tensors()) {
      EXPECT_EQ(DigestOf(saved_tensor), DigestOf(tensors, saved_tensor.name()))
          << saved_tensor.name();
    }

    const auto loaded = Deal(tensors, loaders, false, random);
    LoadOptions load_options;
    load_options.io_threads = 1 + random() % 3;
    load_options.staging_bytes = 1 << (random() % 16);
    RunRanks(loaders, [&](ProcessGroup& group) {
      StateDict& dict = loaded[group.rank()]->dict;
      LoadOptions options = On(group, load_options);
      uint64_t placed = 0, wanted = 0;
      options.progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
        EXPECT_GE(done_bytes, placed);
        placed = done_bytes;
        wanted = total_bytes;
      };
      ASSERT_OK_AND_ASSIGN(const auto report, LoadCheckpoint(storage, directory, dict, options));
      EXPECT_EQ(placed, wanted);
      EXPECT_EQ(placed, BytesOf(dict));
      EXPECT_GT(report.duration, absl::ZeroDuration());
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    });
    for (const auto& state : loaded) {
      for (const ShardedTensor& tensor : state->dict.tensors) {
        for (const WholeTensor& whole : tensors) {
          if (whole.name != tensor.name) continue;
          for (const Shard& shard : tensor.shards) {
            EXPECT_TRUE(LocalState::Holds(shard, whole))
                << tensor.name << " " << ToString(shard.box);
          }
        }
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::ckpt
