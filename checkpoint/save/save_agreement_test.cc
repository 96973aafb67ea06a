// Plans are kept between saves, and any change on any rank leads to a new plan on all ranks.

#include "checkpoint/save/save_agreement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

constexpr int kRanks = 4;

// Rows of two tensors, a quarter on each rank, and one tensor that all ranks hold.
RankState Describe(int rank) {
  RankState state;
  for (const char* name : {"a", "b"}) {
    LogicalTensor& tensor = *state.add_tensors();
    tensor.set_name(name);
    tensor.set_role(ToProto(TensorRole::kWeight));
    tensor.set_dtype(ToProto(DType::kF32));
    tensor.add_global_shape(8);
    tensor.add_global_shape(6);
    AddShard({{2 * rank, 0}, {2, 6}}, 0, 0, tensor);
  }
  LogicalTensor& shared = *state.add_tensors();
  shared.set_name("shared");
  shared.set_role(ToProto(TensorRole::kBuffer));
  shared.set_dtype(ToProto(DType::kF32));
  AddShard({}, 0, 0, shared);
  return state;
}

// Changes of tensor "shared": an error on one rank, a new plan on all.
const std::pair<const char*, void (*)(LogicalTensor&)> kChangesOfShared[] = {
    {"role", [](LogicalTensor& t) { t.set_role(ToProto(TensorRole::kWeight)); }},
    {"dtype", [](LogicalTensor& t) { t.set_dtype(ToProto(DType::kBF16)); }},
    {"shape",
     [](LogicalTensor& t) {
       t.add_global_shape(1);
       t.clear_shards();
       AddShard(WholeBox({1}), 0, 0, t);
     }},
    {"padded shape", [](LogicalTensor& t) { t.add_padded_shape(2); }},
    {"alias",
     [](LogicalTensor& t) {
       t.set_alias_of("a");
       t.clear_shards();
     }},
};

struct Round {
  std::vector<RankState> states;
  Metadata metadata[kRanks];
  SavePlanOptions options[kRanks];
  int64_t step[kRanks] = {7, 7, 7, 7};
  bool overwrite[kRanks] = {};
  absl::Status error[kRanks];
  absl::Status prepare_error;
  uint64_t max_entries_bytes = 1000;

  Round() {
    for (int r = 0; r < kRanks; ++r) states.push_back(Describe(r));
  }
};

struct Result {
  std::vector<absl::StatusOr<SaveTask>> tasks;
  int prepared_new = 0, prepared_again = 0;
  int messages[kRanks] = {};
  uint64_t sent_bytes[kRanks] = {};
  std::string manifest;
  std::map<std::string, std::string> merged;

  bool ok() const { return StatusIn(*this).ok(); }
  // The first error, for ASSERT_OK().
  friend absl::Status StatusIn(const Result& result) {
    for (const auto& task : result.tasks) {
      if (!task.ok()) return task.status();
    }
    return absl::OkStatus();
  }
  bool from_cache() const {
    for (const auto& task : tasks) EXPECT_EQ(task->from_cache, tasks[0]->from_cache);
    return tasks[0]->from_cache;
  }
};

class SaveAgreementTest : public testing::Test {
 protected:
  Result Run(const Round& round) {
    Result result;
    result.tasks.resize(kRanks, absl::UnknownError("did not run"));
    RunRanks(kRanks, [&](ProcessGroup& base) {
      CountingGroup group(base);
      const int r = group.rank();
      const absl::StatusOr<RankState> local =
          round.error[r].ok() ? absl::StatusOr<RankState>(round.states[r]) : round.error[r];
      const auto prepare = [&](const PlannedManifest& planned) -> absl::StatusOr<SaveTarget> {
        ++(planned.is_new ? result.prepared_new : result.prepared_again);
        result.manifest = planned.layout.SerializeAsString();
        result.merged = planned.merged;
        if (!round.prepare_error.ok()) return round.prepare_error;
        return SaveTarget{.directory = "directory", .attempt = "attempt"};
      };
      result.tasks[r] = AgreeOnSave(local, {.group = group,
                                            .step = round.step[r],
                                            .overwrite = round.overwrite[r],
                                            .options = round.options[r],
                                            .metadata = round.metadata[r],
                                            .cache = caches_[r],
                                            .prepare = prepare,
                                            .timeout = absl::Seconds(20),
                                            .max_entries_bytes = round.max_entries_bytes});
      result.messages[r] = group.messages;
      result.sent_bytes[r] = group.sent_bytes;
    });
    return result;
  }

  PlanCache caches_[kRanks];
};

TEST_F(SaveAgreementTest, ASecondSavePlansNothingAndSendsNoDescription) {
  const Result first = Run(Round());
  ASSERT_OK(first);
  EXPECT_FALSE(first.from_cache());
  EXPECT_EQ(first.prepared_new, 1);
  EXPECT_LT(first.sent_bytes[1], 2 * Round().states[1].ByteSizeLong()) << "described once";
  for (int save = 0; save < 3; ++save) {
    Round round;
    for (int64_t& step : round.step) step = 8 + save;  // progress does not change the structure
    const Result again = Run(round);
    ASSERT_OK(again);
    EXPECT_TRUE(again.from_cache());
    EXPECT_EQ(again.prepared_again, 1);
    EXPECT_EQ(again.prepared_new, 0);
    EXPECT_EQ(again.manifest, first.manifest);
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(again.tasks[r]->directory, "directory");
      EXPECT_EQ(again.messages[r], 1);
      EXPECT_LT(again.sent_bytes[r], first.sent_bytes[r] / 4);  // no description
      EXPECT_EQ(again.tasks[r]->plan.SerializeAsString(), first.tasks[r]->plan.SerializeAsString());
    }
  }
}

TEST_F(SaveAgreementTest, AnyChangeOfOneRankIsAMissOnAll) {
  using Change = std::function<void(Round&, int rank)>;
  std::vector<std::pair<const char*, Change>> changes = {
      {"name", [](Round& r, int k) { r.states[k].mutable_tensors(2)->set_name("other"); }},
      {"box",
       [](Round& r, int k) {  // one rank holds all of it
         LogicalTensor& t = *r.states[k].mutable_tensors(0);
         t.clear_shards();
         AddShard(WholeBox({8, 6}), 0, 0, t);
       }},
      {"one box more",
       [](Round& r, int k) {
         AddShard({{2 * ((k + 1) % kRanks), 0}, {2, 6}}, 0, 0, *r.states[k].mutable_tensors(1));
       }},
      {"order", [](Round& r, int k) { r.states[k].mutable_tensors()->SwapElements(0, 1); }},
      {"one tensor less", [](Round& r, int k) { r.states[k].mutable_tensors()->RemoveLast(); }},
      {"file size",
       [](Round& r, int) {
         for (auto& o : r.options) o.max_file_bytes = 40;
       }},
      {"split size", [](Round& r, int k) { r.options[k].min_split_bytes = 8; }},
      {"chunk size",
       [](Round& r, int) {
         for (auto& o : r.options) o.checksum_chunk_bytes = 64;
       }},
  };
  for (const auto& [what, change] : kChangesOfShared) {
    changes.push_back({what, [change = change](Round& r, int) {
                         for (RankState& state : r.states) change(*state.mutable_tensors(2));
                       }});
  }
  for (const auto& [what, change] : changes) {
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(absl::StrCat(what, " on rank ", rank));
      ASSERT_OK(Run(Round()));
      ASSERT_TRUE(Run(Round()).from_cache());
      Round changed;
      change(changed, rank);
      const Result result = Run(changed);
      ASSERT_OK(result);
      EXPECT_FALSE(result.from_cache());
      EXPECT_EQ(result.prepared_new, 1);
      // The part in use is the one that a save without any cache would use.
      std::vector<std::string> descriptions;
      for (const RankState& state : changed.states) {
        descriptions.push_back(state.SerializeAsString());
      }
      ASSERT_OK_AND_ASSIGN(const auto fresh, PlanSave(descriptions, changed.options[0]));
      EXPECT_EQ(result.manifest, fresh.manifest.SerializeAsString());
      for (int r = 0; r < kRanks; ++r) {
        RankPlan expected = fresh.ranks[r];
        for (FilePlan& file : *expected.mutable_files()) {
          file.set_path(DataFileName(file.path(), "attempt"));
        }
        EXPECT_EQ(result.tasks[r]->plan.SerializeAsString(), expected.SerializeAsString());
      }
      EXPECT_TRUE(Run(changed).from_cache());
    }
  }
}

TEST_F(SaveAgreementTest, WhatOneRankAloneSaysDifferentlyIsNoticed) {
  for (const auto& [what, change] : kChangesOfShared) {
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(absl::StrCat(what, " on rank ", rank));
      ASSERT_OK(Run(Round()));
      Round changed;
      change(*changed.states[rank].mutable_tensors(2));
      for (const auto& task : Run(changed).tasks) {
        EXPECT_TRUE(absl::IsInvalidArgument(task.status()));
        EXPECT_THAT(std::string(task.status().message()), testing::HasSubstr("tensor shared: "));
      }
      EXPECT_TRUE(Run(Round()).from_cache());  // no plan was made, so none was dropped
    }
  }
}

TEST_F(SaveAgreementTest, OtherSizesOfChunksAndFilesAreRefusedWhateverIsCached) {
  for (const bool cached : {false, true}) {
    SCOPED_TRACE(cached);
    if (cached) ASSERT_OK(Run(Round()));
    Round chunks, files, files_of_first;
    chunks.options[2].checksum_chunk_bytes = 64;
    files.options[2].max_file_bytes = 40;
    files_of_first.options[0].max_file_bytes = 40;
    const std::pair<const Round&, const char*> refused[] = {
        {chunks, "checksum_chunk_bytes is 1048576 on rank 0, 64 on rank 2"},
        {files, "max_file_bytes is 4294967296 on rank 0, 40 on rank 2"},
        {files_of_first, "max_file_bytes is 40 on rank 0, 4294967296 on rank 1"}};
    for (const auto& [round, message] : refused) {
      for (const auto& task : Run(round).tasks) {
        EXPECT_TRUE(absl::IsInvalidArgument(task.status())) << task.status();
        EXPECT_THAT(std::string(task.status().message()), testing::HasSubstr(message));
      }
    }
  }
}

// A plan belongs to one rank of a group of one size, whatever the rank describes.
TEST_F(SaveAgreementTest, AnotherMeshIsAMiss) {
  const auto save = [](ProcessGroup& group, int described, PlanCache& cache) {
    const auto prepare = [](const PlannedManifest&) { return SaveTarget(); };
    const auto task = AgreeOnSave(Describe(described), {.group = group,
                                                        .step = 7,
                                                        .metadata = {},
                                                        .cache = cache,
                                                        .prepare = prepare,
                                                        .timeout = absl::Seconds(20)});
    EXPECT_OK(task);
    return task.ok() && task->from_cache;
  };
  PlanCache of_the_last;
  ASSERT_OK(Run(Round()));
  RunRanks(kRanks + 1, [&](ProcessGroup& larger) {
    const int r = larger.rank();
    EXPECT_FALSE(save(larger, r % kRanks, r < kRanks ? caches_[r] : of_the_last));
  });
  ASSERT_OK(Run(Round()));
  RunRanks(kRanks, [&](ProcessGroup& group) {
    const int other = (group.rank() + 1) % kRanks;
    EXPECT_FALSE(save(group, other, caches_[other]));
  });
  ASSERT_OK(Run(Round()));
  RunRanks(kRanks, [&](ProcessGroup& group) {
    EXPECT_TRUE(save(group, group.rank(), caches_[group.rank()])) << "the same mesh";
  });
}

// Every rank has an entry "v", which becomes a list of the ranks' different ones.
Round WithEntries(const std::vector<std::string>& by_rank) {
  Round round;
  for (int r = 0; r < kRanks; ++r) {
    if (!by_rank[r].empty()) round.metadata[r].entries["v"] = by_rank[r];
    round.metadata[r].merge["v"] =
        [](const std::map<int, std::string>& entries) -> absl::StatusOr<std::string> {
      std::string list;
      for (const auto& [rank, bytes] : entries) absl::StrAppend(&list, rank, ":", bytes, " ");
      return list;
    };
  }
  return round;
}

TEST_F(SaveAgreementTest, EntriesThatDifferAreMergedWhateverIsCached) {
  using Merged = std::map<std::string, std::string>;
  for (const char* cached : {"nothing", "everything", "a part"}) {
    SCOPED_TRACE(cached);
    if (cached == std::string("a part")) caches_[2] = PlanCache();
    const Result result = Run(WithEntries({"a", "a", "b", ""}));
    ASSERT_OK(result);
    EXPECT_EQ(result.merged, (Merged{{"v", "0:a 2:b 3: "}}));
    EXPECT_EQ(result.from_cache(), cached == std::string("everything"));
  }
  const Result equal = Run(WithEntries({"a", "a", "a", "a"}));
  ASSERT_OK(equal);
  EXPECT_EQ(equal.merged, Merged());
  const Result only = Run(WithEntries({"", "", "", "x"}));
  ASSERT_OK(only);
  EXPECT_EQ(only.merged, (Merged{{"v", "0: 3:x "}}));
}

// In silence, the rank's entry would be missing in the checkpoint.
TEST_F(SaveAgreementTest, AnEntryTooLargeToSendEndsTheSaveOnEveryRank) {
  Round round = WithEntries({"a", "a", "0123456789", "a"});
  round.max_entries_bytes = 11;
  const Result fits = Run(round);
  ASSERT_OK(fits);
  EXPECT_EQ(fits.merged.at("v"), "0:a 2:0123456789 ");
  round.max_entries_bytes = 10;
  for (const auto& task : Run(round).tasks) {
    EXPECT_TRUE(absl::IsInvalidArgument(task.status())) << task.status();
    EXPECT_EQ(task.status().message(),
              "rank 2: the entry v has 10 bytes; all entries that a rank sends to be merged may "
              "have at most 10");
  }
}

TEST_F(SaveAgreementTest, EntriesThatCannotBeMergedEndTheSave) {
  Round refused = WithEntries({"a", "b", "a", "a"});
  refused.metadata[0].merge["v"] = [](const auto&) { return absl::AbortedError("no union"); };
  Round unknown = WithEntries({"a", "a", "b", "a"});
  unknown.metadata[0].merge.clear();
  for (const Round& round : {refused, unknown}) {
    const Result result = Run(round);
    EXPECT_EQ(result.prepared_new + result.prepared_again, 0);
    for (const auto& task : result.tasks) {
      EXPECT_EQ(task.status(), result.tasks[0].status());
      EXPECT_THAT(task.status().message(),
                  testing::AnyOf(testing::HasSubstr("no union"),
                                 testing::HasSubstr("merged on other ranks than rank 0")));
    }
  }
}

TEST_F(SaveAgreementTest, ARankThatLostItsCacheMakesAllPlanAgain) {
  for (PlanCache& cache : caches_) {
    ASSERT_OK(Run(Round()));
    cache = PlanCache();
    const Result result = Run(Round());
    ASSERT_OK(result);
    EXPECT_FALSE(result.from_cache());
  }
}

TEST_F(SaveAgreementTest, PartsOfDifferentPlansAreNeverMixed) {
  ASSERT_OK(Run(Round()));
  const PlanCache old = caches_[3];
  Round other;
  for (RankState& state : other.states) state.mutable_tensors(2)->set_name("other");
  ASSERT_OK(Run(other));
  ASSERT_OK(Run(Round()));
  caches_[3] = old;  // the same structure, planned at another time
  const Result result = Run(Round());
  ASSERT_OK(result);
  EXPECT_FALSE(result.from_cache());
}

TEST_F(SaveAgreementTest, ErrorsReachAllAndLeaveTheCacheUsable) {
  ASSERT_OK(Run(Round()));
  for (int rank = 0; rank < kRanks; ++rank) {
    Round round;
    round.error[rank] = absl::InvalidArgumentError("no");
    for (const auto& task : Run(round).tasks) {
      EXPECT_EQ(task.status(), absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": no")));
    }
  }
  Round steps;
  steps.step[2] = 8;
  for (const auto& task : Run(steps).tasks) EXPECT_TRUE(absl::IsInvalidArgument(task.status()));
  Round overwrite;
  for (const bool others : {false, true}) {
    std::ranges::fill(overwrite.overwrite, others);
    overwrite.overwrite[2] = !others;
    for (const auto& task : Run(overwrite).tasks) {
      EXPECT_TRUE(absl::IsInvalidArgument(task.status()));
      EXPECT_THAT(std::string(task.status().message()),
                  testing::HasSubstr(others ? "rank 0 overwrites" : "rank 2 overwrites"));
    }
  }
  Round prepare;
  prepare.prepare_error = absl::AlreadyExistsError("committed");
  for (const auto& task : Run(prepare).tasks) EXPECT_TRUE(absl::IsAlreadyExists(task.status()));
  EXPECT_TRUE(Run(Round()).from_cache());
  prepare.states[1].mutable_tensors(2)->set_name("other");  // a new plan
  for (const auto& task : Run(prepare).tasks) EXPECT_TRUE(absl::IsAlreadyExists(task.status()));
  Round gap;
  gap.states[1].mutable_tensors(0)->mutable_shards()->set_shape(0, 1);
  for (const auto& task : Run(gap).tasks) {
    EXPECT_THAT(std::string(task.status().message()),
                testing::AllOf(testing::HasSubstr("tensor a [8,6]"), testing::HasSubstr("[3,0]")));
  }
  EXPECT_OK(Run(Round()));
}

}  // namespace
}  // namespace tessera::ckpt
