// LoadOptions::verify_digests: a bit that changes before it is placed is detected, and in memory
// that is digested in place, one that changes later; on any rank, and without false alarms.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Calls a hook after every broadcast of rank 0: at the last one before the
// check, all ranks have loaded everything.
class HookedGroup final : public ForwardingGroup {
 public:
  HookedGroup(ProcessGroup& base, std::function<void()> hook)
      : ForwardingGroup(base), hook_(std::move(hook)) {}
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    auto reply = ForwardingGroup::Broadcast(from_rank_0, timeout);
    hook_();
    return reply;
  }

 private:
  const std::function<void()> hook_;
};

class VerifyLoadedTest : public testing::Test {
 protected:
  VerifyLoadedTest() {
    options_.verify_digests = true;
    tensors_ = {RandomTensor("a", TensorRole::kWeight, DType::kF32, {12, 10}, random_),
                RandomTensor("b", TensorRole::kOptimizerState, DType::kBF16, {6, 5, 4}, random_),
                RandomTensor("c", TensorRole::kBuffer, DType::kI64, {}, random_)};
  }

  void SaveTensors() {
    RunRanks(2, [&](ProcessGroup& group) {
      const LocalState state = RowsOf(tensors_, group.rank(), 2);
      ASSERT_OK(CheckpointFolder(storage_).Save(1, state.dict, {.group = &group}));
    });
  }

  // A tensor's shard on a rank, one bit of which flips as soon as it is loaded. Its memory has a
  // gap after each element, so that it is digested afterwards.
  struct Flip {
    int rank;
    size_t tensor;
    size_t shard = 0;
  };

  // boxes_of(rank, tensor): the boxes of a tensor that a rank wants.
  template <typename BoxesOf>
  std::vector<absl::StatusOr<LoadReport>> LoadOn(int ranks, const BoxesOf& boxes_of,
                                                 const std::vector<Flip>& flips = {},
                                                 std::mt19937_64* gaps = nullptr) {
    std::vector<LocalState> states(ranks);
    std::vector<absl::StatusOr<LoadReport>> reports(ranks, absl::UnknownError("did not run"));
    for (int r = 0; r < ranks; ++r) {
      for (const WholeTensor& tensor : tensors_) {
        states[r].Add(tensor, boxes_of(r, tensor), false, gaps);
      }
    }
    std::deque<std::string> sparse;
    for (const Flip& flip : flips) {
      Shard& shard = states[flip.rank].dict.tensors[flip.tensor].shards[flip.shard];
      shard.strides = ContiguousStrides(shard.box.shape);
      for (int64_t& stride : shard.strides) stride *= 2;
      shard.data = sparse
                       .emplace_back(2 * ElementCount(shard.box.shape) *
                                         ElementSize(tensors_[flip.tensor].dtype),
                                     '\0')
                       .data();
    }
    RunRanks(ranks, [&](ProcessGroup& base) {
      std::vector<Flip> mine;
      for (const Flip& flip : flips) {
        if (flip.rank == base.rank()) mine.push_back(flip);
      }
      StateDict& dict = states[base.rank()].dict;
      HookedGroup group(base, [&] {
        std::erase_if(mine, [&](const Flip& flip) {
          const Shard& shard = dict.tensors[flip.tensor].shards[flip.shard];
          if (!LocalState::Holds(shard, tensors_[flip.tensor])) return false;
          static_cast<char*>(shard.data)[1] ^= 0x10;
          return true;
        });
      });
      reports[base.rank()] = LoadCheckpoint(storage_, "step-00000001", dict, On(group, options_));
      EXPECT_TRUE(mine.empty()) << "rank " << base.rank() << " flipped nothing";
    });
    return reports;
  }

  // All ranks return the same error.
  static std::string ErrorOf(const std::vector<absl::StatusOr<LoadReport>>& reports) {
    for (const auto& report : reports) {
      EXPECT_TRUE(absl::IsDataLoss(report.status())) << report.status();
      EXPECT_EQ(report.status(), reports[0].status());
    }
    return std::string(reports[0].status().message());
  }

  std::mt19937_64 random_{TestSeed()};
  MemoryStorage storage_;
  LoadOptions options_;
  std::vector<WholeTensor> tensors_;
};

// Forwards everything, and flips bits of received messages.
class FlippingGroup final : public ForwardingGroup {
 public:
  FlippingGroup(ProcessGroup& base, std::string_view where)
      : ForwardingGroup(base), where_(where) {}
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    return std::make_unique<Receive>(ForwardingGroup::StartReceive(data, source), data, where_);
  }

 private:
  struct Receive final : PendingMessage {
    Receive(std::unique_ptr<PendingMessage> base, std::span<std::byte> data, std::string_view where)
        : base(std::move(base)), data(data), where(where) {}
    absl::Status Wait(absl::Duration timeout) override {
      const absl::Status status = base->Wait(timeout);
      auto* const begin = reinterpret_cast<char*>(data.data());
      const auto at = std::search(begin, begin + data.size(), where.begin(), where.end());
      if (at != begin + data.size()) *at ^= 4;
      return status;
    }
    const std::unique_ptr<PendingMessage> base;
    const std::span<std::byte> data;
    const std::string_view where;
  };

  const std::string_view where_;
};

std::vector<Box> Whole(int, const WholeTensor& tensor) { return {WholeBox(tensor.shape)}; }

// Columns of matrices over three ranks, scalars on every rank.
std::vector<Box> Columns(int rank, const WholeTensor& tensor) {
  Box box = WholeBox(tensor.shape);
  if (box.shape.empty()) return {box};
  const int64_t n = box.shape[1];
  box.global_offset[1] = n * rank / 3;
  box.shape[1] = n * (rank + 1) / 3 - n * rank / 3;
  return {box};
}

// Rows [2r, 2r + 5): neighbours overlap.
std::vector<Box> Overlapping(int rank, const WholeTensor& tensor) {
  Box box = WholeBox(tensor.shape);
  if (box.shape.empty()) return {box};
  const int64_t n = box.shape[0];
  box.global_offset[0] = n * rank / 4;
  box.shape[0] = std::min(n, n * (rank + 2) / 4) - box.global_offset[0];
  return {box};
}

TEST_F(VerifyLoadedTest, NothingIsReadTwiceAndNothingIsFound) {
  SaveTensors();
  for (const int ranks : {1, 2, 3}) {
    for (const auto& report : LoadOn(ranks, Whole)) {
      ASSERT_OK(report);
      EXPECT_EQ(report->digests_verified, 3);
      EXPECT_THAT(report->digests_unverified, ElementsAre());
      EXPECT_GT(report->verify_duration, absl::ZeroDuration());
    }
  }
  options_.verify_digests = false;
  const auto reports = LoadOn(1, Whole);
  ASSERT_OK(reports[0]);
  EXPECT_EQ(reports[0]->digests_verified, 0);
}

TEST_F(VerifyLoadedTest, AnyShardingIsVerified) {
  for (int round = 0; round < 60; ++round) {
    tensors_.clear();
    for (int t = 0; t < 4; ++t) {
      Shape shape(random_() % 4);
      for (int64_t& extent : shape) extent = random_() % 7;
      const DType dtype =
          std::vector<DType>{DType::kF32, DType::kBF16, DType::kU8, DType::kF64}[random_() % 4];
      tensors_.push_back(
          RandomTensor("t" + std::to_string(t), TensorRole::kWeight, dtype, shape, random_));
    }
    storage_.DeleteTree("step-00000001").IgnoreError();
    LocalState source;
    size_t with_elements = 0;
    for (const WholeTensor& tensor : tensors_) {
      source.Add(tensor, RandomCut(tensor.shape, 1 + random_() % 4, random_), true);
      with_elements += tensor.bytes.empty() ? 0 : 1;
    }
    SingleProcessGroup alone;
    ASSERT_OK(CheckpointFolder(storage_).Save(1, source.dict));
    // Every rank holds the whole tensor, split at different places: replicas that overlap in part.
    const int ranks = 1 + static_cast<int>(random_() % 3);
    const auto cut = [&](int, const WholeTensor& tensor) {
      return RandomCut(tensor.shape, 1 + random_() % 4, random_);
    };
    for (const auto& report : LoadOn(ranks, cut, {}, &random_)) {
      ASSERT_OK(report) << "round " << round;
      EXPECT_EQ(report->digests_verified, with_elements) << "round " << round;
      EXPECT_THAT(report->digests_unverified, ElementsAre());
    }
  }
}

TEST_F(VerifyLoadedTest, AFlippedBitNamesItsTensor) {
  SaveTensors();
  for (const size_t t : {0, 1}) {
    const std::string error = ErrorOf(LoadOn(1, Whole, {{0, t}}));
    EXPECT_THAT(error, AllOf(HasSubstr("tensor " + tensors_[t].name + " on rank 0"),
                             HasSubstr("expected "), HasSubstr("found ")));
    for (size_t other = 0; other < tensors_.size(); ++other) {
      if (other != t) EXPECT_THAT(error, Not(HasSubstr("tensor " + tensors_[other].name)));
    }
  }
}

TEST_F(VerifyLoadedTest, OfShardsTheTensorIsNamedAndItsHolders) {
  SaveTensors();
  const std::string error = ErrorOf(LoadOn(3, Columns, {{1, 0}}));
  EXPECT_THAT(error, AllOf(HasSubstr("tensor a on ranks 0, 1, 2"), Not(HasSubstr("tensor b"))));
  EXPECT_THAT(ErrorOf(LoadOn(3, Columns, {{1, 0}, {2, 1}})),
              AllOf(HasSubstr("tensor a"), HasSubstr("tensor b")));
}

TEST_F(VerifyLoadedTest, OfReplicasTheRankIsNamed) {
  SaveTensors();
  EXPECT_THAT(ErrorOf(LoadOn(3, Whole, {{2, 1}})),
              HasSubstr("tensor b: box [0:6,0:5,0:4] is wrong on rank 2 and right on ranks 0, 1"));
  EXPECT_THAT(ErrorOf(LoadOn(3, Whole, {{0, 0}})), HasSubstr("wrong on rank 0"));
  EXPECT_THAT(ErrorOf(LoadOn(2, Whole, {{0, 1}, {1, 1}})), HasSubstr("tensor b on ranks 0, 1"));
}

TEST_F(VerifyLoadedTest, WhatIsReadWrongIsNotPlacedUnnoticed) {
  SaveTensors();
  options_.verify_checksums = false;
  const Manifest manifest = *ReadManifest(storage_, "step-00000001");
  for (const LogicalTensor& tensor : manifest.tensors()) {
    FaultInjectingStorage faulty(storage_);
    faulty.CorruptReads("step-00000001/" + manifest.files(tensor.shards().file_index(0)).path(),
                        tensor.shards().file_offset(0), std::byte{2});
    LocalState state;
    for (const WholeTensor& whole : tensors_) state.Add(whole, Whole(0, whole), false);
    SingleProcessGroup alone;
    const absl::Status status =
        LoadCheckpoint(faulty, "step-00000001", state.dict, options_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    for (const WholeTensor& whole : tensors_) {
      EXPECT_EQ(status.message().find("tensor " + whole.name) != absl::string_view::npos,
                whole.name == tensor.name())
          << status;
    }
  }
}

TEST_F(VerifyLoadedTest, WhatChangesBetweenRanksNamesTheReceiver) {
  SaveTensors();
  std::vector<LocalState> states(3);
  std::vector<absl::StatusOr<LoadReport>> reports(3, absl::UnknownError("did not run"));
  for (LocalState& state : states) {
    for (const WholeTensor& whole : tensors_) state.Add(whole, Whole(0, whole), false);
  }
  // Contents that are placed from where they were read do not travel.
  AllowHostMemory(false);
  RunRanks(3, [&](ProcessGroup& base) {
    FlippingGroup group(base, std::string_view(tensors_[0].bytes).substr(40, 16));
    reports[base.rank()] =
        LoadCheckpoint(storage_, "step-00000001", states[base.rank()].dict, On(group, options_));
  });
  AllowHostMemory(true);
  // The rank that read the piece has the right value.
  EXPECT_THAT(ErrorOf(reports), AllOf(HasSubstr("tensor a: box [0:12,0:10] is wrong on ranks "),
                                      HasSubstr(" and right on rank ")));
}

TEST_F(VerifyLoadedTest, BoxesThatOverlapInPart) {
  SaveTensors();
  for (const auto& report : LoadOn(4, Overlapping)) {
    ASSERT_OK(report);
    EXPECT_EQ(report->digests_verified, 3);
  }
  // The first element of rank 1's box is also in rank 0's.
  EXPECT_THAT(ErrorOf(LoadOn(4, Overlapping, {{1, 0}})),
              HasSubstr("tensor a: box [3:6,0:10] is wrong on rank 1 and right on rank 0"));
}

TEST_F(VerifyLoadedTest, WhatCannotBeVerifiedIsSaid) {
  SaveTensors();
  tensors_[0].dtype = DType::kBF16;  // wanted: converted
  tensors_[0].bytes.resize(tensors_[0].bytes.size() / 2);
  const auto part = [](int, const WholeTensor& tensor) {
    Box box = WholeBox(tensor.shape);
    if (tensor.name == "b") box.shape[0] = 2;
    return std::vector<Box>{box};
  };
  const auto reports = LoadOn(2, part);
  ASSERT_OK(reports[1]);
  EXPECT_EQ(reports[1]->digests_verified, 1);
  EXPECT_THAT(reports[1]->digests_unverified,
              ElementsAre("b: loaded in part", "a: converted to another dtype"));
  // Replicas can still be compared.
  EXPECT_THAT(ErrorOf(LoadOn(2, part, {{1, 1}})),
              HasSubstr("tensor b: box [0:2,0:5,0:4] is not the same on rank 0 and rank 1"));
}

TEST_F(VerifyLoadedTest, WithoutASavedDigestATensorIsNotVerified) {
  SaveTensors();
  Manifest manifest = *ReadManifest(storage_, "step-00000001");
  manifest.mutable_tensors(0)->clear_digest();
  ASSERT_OK(WriteAll(storage_, "step-00000001/manifest.pb", *EncodeManifest(manifest)));
  const auto reports = LoadOn(2, Whole);
  ASSERT_OK(reports[0]);
  EXPECT_EQ(reports[0]->digests_verified, 2);
  EXPECT_THAT(reports[0]->digests_unverified, ElementsAre("a: saved without a digest"));
}

TEST_F(VerifyLoadedTest, TooManyOverlapsAreNotComputed) {
  tensors_ = {RandomTensor("a", TensorRole::kWeight, DType::kU8, {4096}, random_)};
  SaveTensors();
  const auto reports = LoadOn(2, [](int rank, const WholeTensor& tensor) {
    std::vector<Box> boxes;
    for (int64_t i = 0; i < 4096; ++i) boxes.push_back({{i}, {1}});
    return rank == 0 ? Whole(rank, tensor) : boxes;
  });
  ASSERT_OK(reports[0]);
  EXPECT_EQ(reports[0]->digests_verified, 0);
  EXPECT_THAT(reports[0]->digests_unverified, ElementsAre("a: too many overlaps"));
}

TEST_F(VerifyLoadedTest, OfManyRanksEightAreNamed) {
  SaveTensors();
  const std::string nine = ErrorOf(LoadOn(9, Whole, {{8, 0}}));
  EXPECT_THAT(nine, AllOf(HasSubstr("is wrong on rank 8 and right on ranks 0, 1, 2, 3, 4, 5, 6, 7"),
                          Not(HasSubstr(" more"))));
  EXPECT_THAT(ErrorOf(LoadOn(11, Whole, {{10, 0}})),
              HasSubstr("wrong on rank 10 and right on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"));
}

// The digest of the whole does not tell which of them are right.
TEST_F(VerifyLoadedTest, OfSeveralBoxesThatDifferTheLastIsNamed) {
  SaveTensors();
  const auto halves = [](int, const WholeTensor& tensor) {
    if (tensor.shape.empty()) return std::vector{WholeBox(tensor.shape)};
    Box first = WholeBox(tensor.shape), second = first;
    first.shape[0] /= 2;
    second.global_offset[0] = first.shape[0];
    second.shape[0] -= first.shape[0];
    return std::vector{first, second};
  };
  EXPECT_THAT(ErrorOf(LoadOn(2, halves, {{0, 0, 1}})),
              HasSubstr("box [6:12,0:10] is wrong on rank 0 and right on rank 1"));
  EXPECT_THAT(ErrorOf(LoadOn(2, halves, {{0, 0, 0}, {1, 0, 1}})),
              HasSubstr("tensor a: box [6:12,0:10] is not the same on rank 0 and rank 1"));
}

TEST(LoadOptionsTest, OptionsThatCountForAllRanksAreTheSameOnAllOfThem) {
  MemoryStorage storage;
  std::vector<float> weight(64);
  ASSERT_OK(CheckpointFolder(storage).Save(1, OneTensor(weight)));
  for (const auto& [option, text] : std::vector<std::pair<bool LoadOptions::*, std::string>>{
           {&LoadOptions::verify_checksums,
            "rank 0 loads with verify_checksums, rank 2 without it"},
           {&LoadOptions::verify_digests, "rank 2 loads with verify_digests, rank 0 without it"},
           {&LoadOptions::allow_unexpected,
            "rank 2 loads with allow_unexpected, rank 0 without it"}}) {
    RunRanks(3, [&, option = option, text = text](ProcessGroup& group) {
      std::vector<float> loaded(64);
      LoadOptions options;
      if (group.rank() == 2) options.*option = !(options.*option);
      const absl::Status status =
          LoadCheckpoint(storage, StepDirectoryName(1), OneTensor(loaded), On(group, options))
              .status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    });
  }
}

}  // namespace
}  // namespace tessera::ckpt
