// Rewriting a checkpoint into another layout: all data arrives, and after any failure nothing is
// committed and the source is unchanged.

#include "checkpoint/reshard/rewrite.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDirectory[] = "step-00000005";

class RewriteTest : public testing::Test {
 protected:
  RewriteTest() : faulty_source_(source_), faulty_(storage_) {}

  // Returns a second name of the first tensor.
  ShardedTensor Alias() const {
    return {.name = "alias",
            .role = tensors_[0].role,
            .dtype = tensors_[0].dtype,
            .global_shape = tensors_[0].shape,
            .alias_of = "t0"};
  }

  void SaveRandom(int count, int64_t max_extent) {
    tensors_.clear();
    LocalState state;
    for (int t = 0; t < count; ++t) {
      Shape shape(random_() % 4);
      for (int64_t& extent : shape) extent = static_cast<int64_t>(random_() % max_extent);
      const DType dtype =
          std::vector<DType>{DType::kF32, DType::kBF16, DType::kU8, DType::kF64}[random_() % 4];
      const TensorRole role =
          random_() % 2 == 0 ? TensorRole::kWeight : TensorRole::kOptimizerState;
      tensors_.push_back(RandomTensor("t" + std::to_string(t), role, dtype, shape, random_));
      state.Add(tensors_.back(), RandomCut(shape, 1 + random_() % 5, random_), true);
    }
    state.dict.tensors.push_back(Alias());
    Manifest metadata;
    metadata.mutable_trainer()->set_best_loss(2.5);
    SaveOptions options;
    options.checksum_chunk_bytes = 128;
    ASSERT_OK(CheckpointFolder(source_).Save({.step = 5, .metadata = ToMetadata(metadata)},
                                             state.dict, options));
    saved_ = *ReadManifest(source_, kDirectory);
  }

  // A plan for `ranks` ranks, each of which holds part of every tensor, some parts twice.
  void PlanRandom(int ranks) {
    std::vector<LocalState> states(ranks);
    for (const WholeTensor& tensor : tensors_) {
      std::vector<std::vector<Box>> boxes(ranks);
      for (const Box& box : RandomCut(tensor.shape, ranks, random_)) {
        const size_t rank = random_() % ranks;
        boxes[rank].push_back(box);
        if (random_() % 3 == 0 && ranks > 1) boxes[(rank + 1) % ranks].push_back(box);
      }
      for (int r = 0; r < ranks; ++r) states[r].Add(tensor, boxes[r], false);
    }
    ranks_.clear();
    for (LocalState& state : states) {
      state.dict.tensors.push_back(Alias());
      ranks_.push_back(DescribeState(state.dict).SerializeAsString());
    }
    SavePlanOptions options;
    options.checksum_chunk_bytes = 256;
    options.max_file_bytes = 2000;
    ASSERT_OK_AND_ASSIGN(plan_, PlanSave(ranks_, options));
  }

  absl::StatusOr<RewriteReport> Run(uint64_t more_memory_bytes = 0) {
    Manifest metadata = saved_;
    metadata.clear_tensors();
    metadata.clear_files();
    return Rewrite(CheckpointOfManifest(faulty_source_, kDirectory, saved_), {ranks_, plan_},
                   faulty_, "", metadata,
                   {.memory_bytes = LeastRewriteMemory(saved_, plan_.manifest) + more_memory_bytes,
                    .io_threads = 2});
  }

  // Expects that all data arrived in the new checkpoint.
  void ExpectArrived() {
    ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(storage_, kDirectory));
    EXPECT_EQ(manifest.trainer().best_loss(), 2.5);
    const auto verified =
        VerifyCheckpoint(storage_, kDirectory, {.digests = true, .io_threads = 1});
    ASSERT_TRUE(verified.ok() && verified->damage.empty())
        << (verified.ok() ? verified->damage[0].message : verified.status().ToString());
    LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
    ASSERT_OK_AND_ASSIGN(const auto loaded, LoadCheckpoint(storage_, kDirectory, state.dict));
    for (size_t t = 0; t < tensors_.size(); ++t) {
      EXPECT_TRUE(LocalState::Holds(state.dict.tensors[t].shards[0], tensors_[t])) << t;
    }
  }

  std::vector<std::string> Left() { return *storage_.List(""); }

  void ExpectSourceUntouched() {
    for (const Operation& operation : faulty_source_.operations()) {
      EXPECT_TRUE(operation.kind == OperationKind::kOpen ||
                  operation.kind == OperationKind::kReadAt)
          << operation;
    }
  }

  std::mt19937_64 random_{TestSeed()};
  MemoryStorage source_, storage_;
  FaultInjectingStorage faulty_source_, faulty_;
  std::vector<WholeTensor> tensors_;
  Manifest saved_;
  std::vector<std::string> ranks_;
  SavePlan plan_;
};

TEST_F(RewriteTest, EverythingArrives) {
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    source_.DeleteTree(kDirectory).IgnoreError();
    storage_.DeleteTree(kDirectory).IgnoreError();
    SaveRandom(1 + static_cast<int>(random_() % 5), 30);
    PlanRandom(1 + static_cast<int>(random_() % 6));
    ASSERT_OK_AND_ASSIGN(const auto report, Run());
    EXPECT_EQ(report.directory, kDirectory);
    EXPECT_LE(report.buffer_bytes, LeastRewriteMemory(saved_, plan_.manifest));
    EXPECT_EQ(report.bytes_written, BytesOfFiles(plan_.manifest));
    ExpectArrived();
  }
  ExpectSourceUntouched();
}

TEST_F(RewriteTest, EveryOperationMayFail) {
  SaveRandom(3, 12);
  PlanRandom(3);
  const int64_t before = faulty_.operation_count();
  ASSERT_OK(Run());
  const int64_t operations = faulty_.operation_count() - before;
  ASSERT_GT(operations, 10);
  for (int64_t o = 0; o < operations; ++o) {
    SCOPED_TRACE(o);
    storage_.DeleteTree(kDirectory).IgnoreError();
    faulty_.FailAt(faulty_.operation_count() + o, absl::ResourceExhaustedError("no space"), 3);
    const auto report = Run();
    faulty_.ClearFaults();
    if (report.ok()) continue;  // the cleanup of a missing directory may fail
    EXPECT_TRUE(absl::IsResourceExhausted(report.status())) << report.status();
    const bool committed = ReadManifest(storage_, kDirectory).ok();
    if (!committed) {
      const bool may_be_committed =
          report.status().message().find("committing") != std::string::npos;
      if (!may_be_committed) EXPECT_THAT(Left(), IsEmpty()) << report.status();
      ASSERT_OK(Run());
    }
    ExpectArrived();
  }
  ExpectSourceUntouched();
}

TEST_F(RewriteTest, MayDieAtAnyOperation) {
  SaveRandom(3, 12);
  PlanRandom(3);
  const int64_t before = faulty_.operation_count();
  ASSERT_OK(Run());
  const int64_t operations = faulty_.operation_count() - before;
  for (int64_t o = 0; o < operations; ++o) {
    SCOPED_TRACE(o);
    storage_.DeleteTree(kDirectory).IgnoreError();
    faulty_.DieAt(faulty_.operation_count() + o, 3);
    // The last one looks once more at what is committed by then.
    EXPECT_EQ(Run().ok(), o == operations - 1);
    faulty_.ClearFaults();
    if (!ReadManifest(storage_, kDirectory).ok()) {
      EXPECT_THAT(*CheckpointFolder(storage_).List(), IsEmpty());
      ASSERT_OK(Run());
    }
    ExpectArrived();
  }
  ExpectSourceUntouched();
}

TEST_F(RewriteTest, AFullDisk) {
  SaveRandom(4, 30);
  PlanRandom(3);
  const uint64_t bytes = BytesOfFiles(plan_.manifest);
  for (const uint64_t free : {uint64_t{0}, bytes / 2, bytes}) {
    faulty_.SetDiskBytes(free);
    const auto report = Run();
    EXPECT_TRUE(absl::IsResourceExhausted(report.status())) << report.status();
    EXPECT_THAT(Left(), IsEmpty());
  }
  faulty_.ClearFaults();
  ASSERT_OK(Run());
  ExpectArrived();
}

TEST_F(RewriteTest, DamageOfTheSourceIsNotCopied) {
  SaveRandom(4, 30);
  PlanRandom(3);
  int checked = 0;
  for (const LogicalTensor& tensor : saved_.tensors()) {
    for (int64_t s = 0; s < ShardCount(tensor); ++s) {
      if (ShardBytes(tensor, s) == 0) continue;
      const std::string path = saved_.files(tensor.shards().file_index(s)).path();
      faulty_source_.CorruptReads(std::string(kDirectory) + "/" + path,
                                  tensor.shards().file_offset(s), std::byte{4});
      const auto report = Run();
      faulty_source_.ClearFaults();
      ASSERT_TRUE(absl::IsDataLoss(report.status())) << report.status();
      EXPECT_THAT(std::string(report.status().message()),
                  AllOf(HasSubstr(path), HasSubstr(tensor.name())));
      EXPECT_THAT(Left(), IsEmpty());
      ++checked;
    }
  }
  EXPECT_GT(checked, 0);
  // A whole file is missing.
  ASSERT_OK(source_.Delete(std::string(kDirectory) + "/" + saved_.files(0).path()));
  EXPECT_TRUE(absl::IsNotFound(Run().status()));
  EXPECT_THAT(Left(), IsEmpty());
}

// Two shards of half a tensor have as many elements as all of it, wherever they are.
TEST_F(RewriteTest, AShardInThePlaceOfAnotherIsDamage) {
  const auto is_cut_in_half = [&] {
    const LogicalTensor& tensor = saved_.tensors(0);
    return ShardCount(tensor) == 2 && !ShardBox(tensor, 0).empty() &&
           ShardBox(tensor, 0).shape == ShardBox(tensor, 1).shape &&
           ShardCount(plan_.manifest.tensors(0)) == 1;
  };
  do {
    source_.DeleteTree(kDirectory).IgnoreError();
    SaveRandom(1, 8);
    PlanRandom(1);
  } while (!is_cut_in_half());
  LogicalTensor& tensor = *saved_.mutable_tensors(0);
  tensor.clear_digest();
  auto& offsets = *tensor.mutable_shards()->mutable_global_offset();
  const int dims = tensor.global_shape_size();
  std::copy_n(offsets.begin(), dims, offsets.begin() + dims);
  const absl::Status status = Run(uint64_t{1} << 20).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor t0: "));
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(RewriteTest, AnotherDigestIsNotCommitted) {
  do {
    source_.DeleteTree(kDirectory).IgnoreError();
    SaveRandom(4, 30);
  } while (saved_.files_size() == 0);  // no tensor has elements
  PlanRandom(3);
  for (LogicalTensor& tensor : *saved_.mutable_tensors()) {
    if (!tensor.has_digest()) continue;
    const Digest right = tensor.digest();
    tensor.mutable_digest()->set_hi(right.hi() ^ 1);
    const auto report = Run();
    ASSERT_TRUE(absl::IsDataLoss(report.status())) << report.status();
    EXPECT_THAT(std::string(report.status().message()),
                AllOf(HasSubstr("tensor " + tensor.name()), HasSubstr("expected")));
    EXPECT_THAT(Left(), IsEmpty());
    *tensor.mutable_digest() = right;
  }
  // No tensor may be an alias or a state of another.
  for (LogicalTensor& tensor : *saved_.mutable_tensors()) {
    if (!tensor.has_digest()) continue;
    tensor.clear_digest();
    break;
  }
  ASSERT_OK_AND_ASSIGN(const auto report, Run());
  EXPECT_EQ(report.digests_new, 1);
  ExpectArrived();
}

TEST_F(RewriteTest, WhatIsThereStays) {
  SaveRandom(2, 10);
  PlanRandom(2);
  ASSERT_OK(Run());
  EXPECT_TRUE(absl::IsAlreadyExists(Run().status()));
  ExpectArrived();
}

TEST_F(RewriteTest, WrongPlansAreRefused) {
  SaveRandom(2, 10);
  PlanRandom(2);
  const Manifest saved = saved_;
  saved_.mutable_tensors(0)->set_name("renamed");
  EXPECT_TRUE(absl::IsInvalidArgument(Run().status()));
  saved_ = saved;
  saved_.mutable_tensors()->RemoveLast();
  EXPECT_TRUE(absl::IsInvalidArgument(Run().status()));
  saved_ = saved;
  EXPECT_THAT(Left(), IsEmpty());
  Manifest metadata = saved_;
  metadata.clear_tensors();
  metadata.clear_files();
  const auto report = Rewrite(CheckpointOfManifest(source_, kDirectory, saved_), {ranks_, plan_},
                              storage_, "", metadata, {.memory_bytes = 100});
  EXPECT_TRUE(absl::IsInvalidArgument(report.status()));
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("100 B of memory are too little"));
}

}  // namespace
}  // namespace tessera::ckpt
