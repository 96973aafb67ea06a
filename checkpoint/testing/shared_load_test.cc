// Shared loads: every byte is read once in total, by a rank that needs it, and every rank ends with
// the right elements, within its buffers. Whatever fails on one of them, all return the same error.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/load/load_messages.pb.h"
#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

constexpr uint32_t kChunkBytes = 256;
// For pieces that are sent in several messages.
constexpr uint32_t kLargeChunkBytes = 1 << 20;

// What ranks send each other, and how long they think before.
struct Traffic {
  std::atomic<uint64_t> sent_bytes = 0;
  absl::Duration delay;
};

class WatchedGroup final : public ForwardingGroup {
 public:
  WatchedGroup(ProcessGroup& base, Traffic& traffic) : ForwardingGroup(base), traffic_(traffic) {}
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    traffic_.sent_bytes += data.size();
    return ForwardingGroup::StartSend(data, destination);
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    return std::make_unique<Message>(ForwardingGroup::StartReceive(data, source), *this, source);
  }

 private:
  struct Message final : PendingMessage {
    Message(std::unique_ptr<PendingMessage> base, WatchedGroup& group, int source)
        : base(std::move(base)), group(group), source(source), number(group.started_[source]++) {}
    absl::Status Wait(absl::Duration timeout) override {
      EXPECT_EQ(group.awaited_[source]++, number) << "from rank " << source;
      const absl::Status status = base->Wait(timeout);
      if (group.rank() == 1) absl::SleepFor(group.traffic_.delay);
      return status;
    }
    const std::unique_ptr<PendingMessage> base;
    WatchedGroup& group;
    const int source, number;
  };

  Traffic& traffic_;
  std::map<int, int> started_, awaited_;  // receives, by source: a group may match them late
};

// With, and without, memory that the ranks of a host share.
class SharedLoadTest : public testing::TestWithParam<bool> {
 protected:
  SharedLoadTest() : faulty_(storage_) { AllowHostMemory(GetParam()); }
  ~SharedLoadTest() override { AllowHostMemory(true); }

  // Saved by two ranks, each with half of the rows of each tensor.
  void SaveTensors(std::vector<WholeTensor> tensors, uint32_t chunk_bytes = kChunkBytes) {
    tensors_ = std::move(tensors);
    SaveOptions options;
    options.checksum_chunk_bytes = chunk_bytes;
    RunRanks(2, [&](ProcessGroup& group) {
      LocalState state;
      for (const WholeTensor& tensor : tensors_) {
        Box rows = WholeBox(tensor.shape);
        const int64_t half = rows.shape[0] / 2;
        rows.global_offset[0] = group.rank() == 0 ? 0 : half;
        rows.shape[0] = group.rank() == 0 ? half : rows.shape[0] - half;
        state.Add(tensor, {rows}, true);
      }
      ASSERT_OK_AND_ASSIGN(const auto report,
                           CheckpointFolder(storage_).Save(1, state.dict, On(group, options)));
      if (group.rank() == 0) directory_ = report.directory;
    });
  }

  struct Outcome {
    std::vector<std::unique_ptr<LocalState>> states;
    std::vector<absl::StatusOr<LoadReport>> reports;
    uint64_t Sum(uint64_t LoadReport::*field) const {
      uint64_t sum = 0;
      for (const auto& report : reports) sum += report.value().*field;
      return sum;
    }
  };

  // boxes_of(rank, tensor): the boxes of a tensor that a rank wants.
  template <typename BoxesOf>
  Outcome LoadOn(int ranks, const BoxesOf& boxes_of, const LoadOptions& options = {}) {
    Outcome outcome;
    for (int r = 0; r < ranks; ++r) {
      outcome.states.push_back(std::make_unique<LocalState>());
      outcome.reports.push_back(absl::UnknownError("did not run"));
      for (const WholeTensor& tensor : tensors_) {
        outcome.states.back()->Add(tensor, boxes_of(r, tensor), false);
      }
    }
    std::vector<Checkpoint> opened;
    for (int r = 0; r < ranks; ++r) {
      absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(faulty_, directory_);
      if (!checkpoint.ok()) {
        outcome.reports.assign(ranks, checkpoint.status());
        return outcome;
      }
      opened.push_back(*std::move(checkpoint));
    }
    traffic_.sent_bytes = 0;
    RunRanks(ranks, [&](ProcessGroup& base) {
      WatchedGroup group(base, traffic_);
      const int rank = group.rank();
      outcome.reports[rank] = opened[rank].Load(outcome.states[rank]->dict, On(group, options));
    });
    return outcome;
  }

  void ExpectAllHeld(const Outcome& outcome) {
    for (size_t r = 0; r < outcome.states.size(); ++r) {
      ASSERT_OK(outcome.reports[r]);
      for (size_t t = 0; t < tensors_.size(); ++t) {
        for (const Shard& shard : outcome.states[r]->dict.tensors[t].shards) {
          EXPECT_TRUE(LocalState::Holds(shard, tensors_[t]))
              << "rank " << r << " " << tensors_[t].name << " " << ToString(shard.box);
        }
      }
    }
  }

  // Number of bytes of data files that were read; fails if any was read twice.
  uint64_t BytesReadOnce() {
    std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>> reads;
    uint64_t bytes = 0;
    for (const Operation& operation : faulty_.operations()) {
      if (operation.kind != OperationKind::kReadAt ||
          operation.path.find(".safetensors") == std::string::npos) {
        continue;
      }
      reads[operation.path].push_back({operation.offset_bytes, operation.size_bytes});
      bytes += operation.size_bytes;
    }
    for (auto& [path, ranges] : reads) {
      std::ranges::sort(ranges);
      for (size_t i = 1; i < ranges.size(); ++i) {
        EXPECT_LE(ranges[i - 1].first + ranges[i - 1].second, ranges[i].first) << path;
      }
    }
    return bytes;
  }

  // The naive way: every wanted element marks its chunk.
  uint64_t BytesNeededByAnybody(const Outcome& outcome) {
    const Manifest manifest = *ReadManifest(storage_, directory_);
    std::set<std::pair<uint32_t, uint64_t>> chunks;  // file and number
    for (const LogicalTensor& tensor : manifest.tensors()) {
      for (int64_t s = 0; s < ShardCount(tensor); ++s) {
        const Box saved = ShardBox(tensor, s);
        uint64_t at = tensor.shards().file_offset(s);
        ForEachIndex(saved, [&](const std::vector<int64_t>& index) {
          if (Wanted(outcome, tensor.name(), {index, Shape(index.size(), 1)})) {
            chunks.insert({tensor.shards().file_index(s), at / kChunkBytes});
          }
          at += ElementSize(FromProto(tensor.dtype()));
        });
      }
    }
    uint64_t bytes = 0;
    for (const auto& [file, chunk] : chunks) {
      bytes +=
          std::min<uint64_t>(kChunkBytes, manifest.files(file).size_bytes() - chunk * kChunkBytes);
    }
    return bytes;
  }

  static bool Wanted(const Outcome& outcome, const std::string& name, const Box& element) {
    for (const auto& state : outcome.states) {
      for (const ShardedTensor& tensor : state->dict.tensors) {
        if (tensor.name != name) continue;
        for (const Shard& shard : tensor.shards) {
          if (Contains(shard.box, element)) return true;
        }
      }
    }
    return false;
  }

  MemoryStorage storage_;
  FaultInjectingStorage faulty_;
  Traffic traffic_;
  std::vector<WholeTensor> tensors_;
  std::string directory_;
};

std::vector<WholeTensor> TwoTensors() {
  std::mt19937_64 random(3);
  return {RandomTensor("w", TensorRole::kWeight, DType::kF32, {64, 96}, random),
          RandomTensor("m", TensorRole::kOptimizerState, DType::kF32, {64, 96}, random)};
}

TEST_P(SharedLoadTest, ReplicasReadAnEqualPartEach) {
  SaveTensors(TwoTensors());
  LoadOptions options;
  options.staging_bytes = 16 * kChunkBytes;
  const Outcome outcome = LoadOn(
      4, [](int, const WholeTensor& t) { return std::vector{WholeBox(t.shape)}; }, options);
  ExpectAllHeld(outcome);
  const uint64_t read = BytesReadOnce();
  EXPECT_EQ(outcome.Sum(&LoadReport::bytes_read), read);
  for (const auto& report : outcome.reports) {
    EXPECT_EQ(report->bytes_needed, read);
    EXPECT_EQ(report->bytes_read + report->bytes_received, read);
    EXPECT_LE(report->bytes_read, read / 4 + kChunkBytes);
    EXPECT_GE(report->bytes_read, read / 4 - kChunkBytes);
  }
  EXPECT_EQ(outcome.Sum(&LoadReport::bytes_sent), outcome.Sum(&LoadReport::bytes_received));
}

TEST_P(SharedLoadTest, ColumnsTravelWithoutTheOthers) {
  // Tensor parallel 4 over the columns: every rank needs a quarter of every row, and every chunk.
  SaveTensors(TwoTensors());
  const Outcome outcome = LoadOn(4, [](int rank, const WholeTensor&) {
    return std::vector{Box{{0, 24 * rank}, {64, 24}}};
  });
  ExpectAllHeld(outcome);
  EXPECT_EQ(outcome.Sum(&LoadReport::bytes_read), BytesReadOnce());
  // At most three quarters of the wanted bytes were read by another rank, and no byte was sent that
  // its receiver does not want.
  const uint64_t wanted = 2 * 64 * 96 * 4;
  EXPECT_LE(outcome.Sum(&LoadReport::bytes_received), wanted * 3 / 4);
  EXPECT_GE(outcome.Sum(&LoadReport::bytes_received), wanted / 2);
}

TEST_P(SharedLoadTest, RanksOfOneHostTakeContentsFromWhereTheyWereRead) {
  SaveTensors(TwoTensors());
  const Outcome outcome =
      LoadOn(3, [](int, const WholeTensor& t) { return std::vector{WholeBox(t.shape)}; });
  ExpectAllHeld(outcome);
  const uint64_t received = outcome.Sum(&LoadReport::bytes_received);
  EXPECT_GE(received, 2 * 64 * 96 * 4);
  if (GetParam()) {
    EXPECT_LT(traffic_.sent_bytes, received / 4);
  } else {
    EXPECT_GE(traffic_.sent_bytes, received);
  }
}

// Its buffers are not used again before.
TEST_P(SharedLoadTest, AReaderWaitsForASlowRankToPlaceThePieces) {
  SaveTensors(TwoTensors());
  traffic_.delay = absl::Milliseconds(1);
  LoadOptions options;
  options.io_threads = 2;
  for (const uint64_t staging : {1, 16 << 10, 64 << 10}) {
    options.staging_bytes = staging;
    ExpectAllHeld(LoadOn(
        2, [](int, const WholeTensor& t) { return std::vector{WholeBox(t.shape)}; }, options));
  }
}

TEST(HostMemoryTest, IsSeenThroughItsOfferAlone) {
  const absl::StatusOr<HostMemory> memory = HostMemory::Create(9 << 20);
  if (!memory.ok()) GTEST_SKIP() << memory.status() << " (needs: shared_huge_pages)";
  ASSERT_OK_AND_ASSIGN(HostMemory owned, HostMemory::Create(10'000));
  const std::optional<HostMemory> small = std::move(owned);
  const MemoryOffer offer = HostMemory::OfferOf(small);
  ASSERT_OK_AND_ASSIGN(const HostMemory mapped, HostMemory::Map(offer));
  small->data()[9'999] = std::byte(7);
  EXPECT_EQ(mapped.data()[9'999], std::byte(7));
  MemoryOffer other = offer;
  other.set_mark(std::string(HostMemory::kMarkBytes, 'x'));
  EXPECT_TRUE(absl::IsUnavailable(HostMemory::Map(other).status()));
  other = offer;
  other.set_size_bytes(offer.size_bytes() * 2);
  EXPECT_TRUE(absl::IsUnavailable(HostMemory::Map(other).status()));
  for (const int descriptor : {0, 100'000}) {
    other = offer;
    other.set_fd(descriptor);
    EXPECT_TRUE(absl::IsUnavailable(HostMemory::Map(other).status())) << descriptor;
  }
  other = offer;
  other.set_process(1);
  EXPECT_TRUE(absl::IsUnavailable(HostMemory::Map(other).status()));
  EXPECT_TRUE(absl::IsUnavailable(HostMemory::Map(HostMemory::OfferOf(std::nullopt)).status()));
}

TEST(HostMemoryTest, OffersReachTheRanksOfTheSameHostAndMapsTheirOwners) {
  const auto offer = [](const std::string& host, uint64_t bytes) {
    MemoryOffer offer;
    offer.set_host(host);
    offer.set_size_bytes(bytes);
    return offer.SerializeAsString();
  };
  ASSERT_OK_AND_ASSIGN(const auto answers,
                       OffersByHost({offer("a", 1), offer("b", 2), offer("a", 3), offer("a", 0)}));
  std::vector<std::vector<uint32_t>> seen;
  for (const std::string& answer : answers) {
    MemoryOffers offers;
    ASSERT_TRUE(offers.ParseFromString(answer));
    seen.emplace_back();
    for (const MemoryOffer& one : offers.offers()) seen.back().push_back(one.rank());
  }
  EXPECT_EQ(seen, (std::vector<std::vector<uint32_t>>{{2}, {}, {0}, {0, 2}}));
  RankSet owners;
  owners.add_rank(2);
  ASSERT_OK_AND_ASSIGN(const auto mappers,
                       WhoMapped({owners.SerializeAsString(), "", owners.SerializeAsString()}));
  RankSet of_two;
  ASSERT_TRUE(of_two.ParseFromString(mappers[2]));
  EXPECT_EQ(of_two.rank_size(), 2);
  EXPECT_EQ(mappers[0], "");
  owners.add_rank(3);
  EXPECT_FALSE(WhoMapped({owners.SerializeAsString()}).ok());
}

TEST_P(SharedLoadTest, NothingIsExchangedWhereNothingIsShared) {
  SaveTensors(TwoTensors());
  const Outcome outcome = LoadOn(2, [](int rank, const WholeTensor&) {
    return std::vector{Box{{32 * rank, 0}, {32, 96}}};
  });
  ExpectAllHeld(outcome);
  for (const auto& report : outcome.reports) {
    EXPECT_EQ(report->bytes_received + report->bytes_sent + report->buffer_bytes, 0);
    EXPECT_EQ(report->bytes_read, report->bytes_needed);
  }
}

TEST_P(SharedLoadTest, BuffersAreBounded) {
  SaveTensors(TwoTensors());
  for (const uint64_t staging : {uint64_t{1}, uint64_t{64} << 10, uint64_t{256} << 10}) {
    LoadOptions options;
    options.staging_bytes = staging;
    options.io_threads = 8;
    const Outcome outcome = LoadOn(
        3,
        [](int rank, const WholeTensor& t) {
          return std::vector{Box{{0, 16 * rank}, {t.shape[0], 64}}};
        },
        options);
    ExpectAllHeld(outcome);
    for (const auto& report : outcome.reports) {
      EXPECT_GT(report->buffer_bytes, 0);
      // Seven chunks, each in whole pages with space for a mark.
      EXPECT_LE(report->buffer_bytes, std::max<uint64_t>(staging, 7 * 4096)) << staging;
    }
  }
}

TEST_P(SharedLoadTest, AReadThatFailsAnywhereHangsNobody) {
  SaveTensors(TwoTensors());
  const auto wanted = [](int rank, const WholeTensor& t) {
    return rank < 2 ? std::vector{WholeBox(t.shape)} : std::vector{Box{{0, 24 * rank}, {64, 24}}};
  };
  LoadOptions options;
  options.staging_bytes = 8 * kChunkBytes;
  options.timeout = absl::Seconds(30);
  const int64_t before = faulty_.operation_count();
  ExpectAllHeld(LoadOn(4, wanted, options));
  const int64_t operations = faulty_.operation_count() - before;
  ASSERT_GT(operations, 20);
  // A dozen of them, from where the seed says.
  const int64_t stride = 1 + operations / 12;
  for (auto i = static_cast<int64_t>(TestSeed() % stride); i < operations; i += stride) {
    std::atomic<int64_t> left = i;
    faulty_.FailWhere([&](const Operation&) { return left-- == 0; },
                      absl::UnavailableError("the disk is gone"));
    const Outcome outcome = LoadOn(4, wanted, options);
    faulty_.ClearFaults();
    for (const auto& report : outcome.reports) {
      EXPECT_FALSE(report.ok()) << i;
      EXPECT_THAT(std::string(report.status().message()), testing::HasSubstr("the disk is gone"));
      EXPECT_EQ(report.status(), outcome.reports[0].status());
    }
  }
}

TEST_P(SharedLoadTest, PiecesOfManyMessages) {
  std::mt19937_64 random(5);
  SaveTensors({RandomTensor("w", TensorRole::kWeight, DType::kF32, {1101, 1000}, random),
               RandomTensor("b", TensorRole::kWeight, DType::kBF16, {77}, random)},
              kLargeChunkBytes);
  // Some ranks need everything, others columns of it.
  const auto wanted = [](int rank, const WholeTensor& t) {
    if (rank < 2 || t.shape.size() == 1) return std::vector{WholeBox(t.shape)};
    return std::vector{Box{{0, 300 * (rank - 2)}, {t.shape[0], 400}}};
  };
  ExpectAllHeld(LoadOn(4, wanted));
  const Manifest manifest = *ReadManifest(storage_, directory_);
  const std::string path = absl::StrCat(directory_, "/", manifest.files(1).path());
  faulty_.CorruptReads(path, (kLargeChunkBytes + 5) | 1, std::byte{1});
  const Outcome outcome = LoadOn(4, wanted);
  for (const auto& report : outcome.reports) {
    EXPECT_TRUE(absl::IsDataLoss(report.status())) << report.status();
    EXPECT_EQ(report.status(), outcome.reports[0].status());
  }
  // Data that no rank could verify was not placed anywhere.
  for (const auto& state : outcome.states) {
    EXPECT_FALSE(LocalState::Holds(state->dict.tensors[0].shards[0], tensors_[0]));
  }
}

TEST_P(SharedLoadTest, RandomWishesOfRandomRanks) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " round ", round));
    std::vector<WholeTensor> tensors;
    for (int t = 0; t < 3; ++t) {
      tensors.push_back(RandomTensor(
          absl::StrCat("t", t), TensorRole::kWeight, t == 0 ? DType::kBF16 : DType::kF64,
          {static_cast<int64_t>(2 + random() % 40), static_cast<int64_t>(1 + random() % 80)},
          random));
    }
    storage_.DeleteTree("step-00000001").IgnoreError();
    SaveTensors(tensors);
    const int ranks = 1 + static_cast<int>(random() % 6);
    // Some ranks want the same, some want parts of what others want, some nothing.
    std::vector<std::vector<std::vector<Box>>> wishes(ranks);
    for (int r = 0; r < ranks; ++r) {
      for (const WholeTensor& tensor : tensors_) {
        if (r > 0 && random() % 3 == 0) {
          wishes[r].push_back(wishes[r - 1][wishes[r].size()]);
          continue;
        }
        std::vector<Box> boxes = RandomCut(tensor.shape, 1 + random() % 4, random);
        std::erase_if(boxes, [&](const Box&) { return random() % 2 == 0; });
        wishes[r].push_back(std::move(boxes));
      }
    }
    LoadOptions options;
    options.allow_unexpected = true;
    options.io_threads = 1 + random() % 3;
    options.staging_bytes = 1 << (random() % 16);
    const int64_t first_operation = faulty_.operation_count();
    const Outcome outcome = LoadOn(
        ranks, [&](int rank, const WholeTensor& t) { return wishes[rank][&t - tensors_.data()]; },
        options);
    ExpectAllHeld(outcome);
    if (HasFailure()) return;
    uint64_t read = 0;
    const std::vector<Operation> operations = faulty_.operations();
    for (size_t i = first_operation; i < operations.size(); ++i) {
      if (operations[i].kind == OperationKind::kReadAt && operations[i].path.ends_with("tensors")) {
        read += operations[i].size_bytes;
      }
    }
    EXPECT_EQ(outcome.Sum(&LoadReport::bytes_read), read);
    EXPECT_EQ(read, BytesNeededByAnybody(outcome));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, SharedLoadTest, testing::Bool());

}  // namespace
}  // namespace tessera::ckpt
