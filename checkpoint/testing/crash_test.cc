// Fails, or dies, at each I/O operation of a save in turn, with and without a power loss, on all
// ranks or on one, synchronously or asynchronously: afterwards the old checkpoint or the new one
// exists, bit for bit, and never a mixture.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/collective/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/storage/fault_storage.h"
#include "checkpoint/storage/memory_storage.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kOldStep = 999999, kNewStep = 1000000;

SaveOptions SmallFiles() {
  SaveOptions options;
  options.checksum_chunk_bytes = 256;
  options.max_file_bytes = 600;
  options.io_threads = 2;
  options.staging_bytes = 16384;
  options.deadline = absl::Seconds(20);
  return options;
}

Manifest MetadataOfStep(int64_t step) {
  Manifest metadata;
  metadata.mutable_trainer()->set_step(step);
  metadata.mutable_trainer()->set_last_loss(1.0 / (1 + step));
  return metadata;
}

// The same tensors with different contents for each version.
std::vector<WholeTensor> Tensors(uint64_t version) {
  std::mt19937_64 random(version);
  std::vector<WholeTensor> tensors;
  tensors.push_back(RandomTensor("w", WEIGHT, F32, {10, 20}, random));
  tensors.push_back(RandomTensor("b", WEIGHT, BF16, {33}, random));
  tensors.push_back(RandomTensor("m", OPTIMIZER_STATE, F32, {10, 20}, random));
  return tensors;
}

// Each rank holds half the rows; "b" is replicated.
LocalState StateOf(const std::vector<WholeTensor>& tensors, int rank, bool fill) {
  LocalState state;
  for (const WholeTensor& tensor : tensors) {
    Box box = WholeBox(tensor.shape);
    if (tensor.shape.size() == 2) {
      box.shape[0] = tensor.shape[0] / kRanks;
      box.global_offset[0] = rank * box.shape[0];
    }
    state.Add(tensor, {box}, fill);
  }
  return state;
}

enum class Mode { kSync, kAsync };

// Overwrites each tensor as soon as the saver allows it.
absl::Status SaveInBackground(Storage& storage, int64_t step, const StateDict& state,
                              ProcessGroup& group, const SaveOptions& options) {
  AsyncSaver saver(storage, "run", {.save = On(group, options)});
  saver.Start(step, state, ToMetadata(MetadataOfStep(step)));
  for (const ShardedTensor& tensor : state.tensors) {
    for (const Shard& shard : tensor.shards) {
      const size_t size = ElementCount(shard.box.shape) * ElementBytes(tensor.dtype);
      saver.WaitUntilCopied(shard.data, size);
      std::memset(shard.data, 0xEE, size);
    }
  }
  const std::vector<SaveOutcome> outcomes = saver.Finish();
  EXPECT_EQ(outcomes.size(), 1);
  EXPECT_EQ(outcomes[0].step, step);
  return outcomes[0].report.status();
}

// Each rank uses its own storage, which may all be the same one.
std::vector<absl::Status> SaveVersion(const std::vector<Storage*>& storages, Mode mode,
                                      uint64_t version, int64_t step) {
  const std::vector<WholeTensor> tensors = Tensors(version);
  std::vector<absl::Status> statuses(kRanks);
  RunRanks(kRanks, [&](ProcessGroup& group) {
    LocalState state = StateOf(tensors, group.rank(), true);
    Storage& storage = *storages[group.rank()];
    absl::Status& status = statuses[group.rank()];
    if (mode == Mode::kSync) {
      status =
          Save(storage, "run", step, state.dict, With(MetadataOfStep(step), SmallFiles(), &group))
              .status();
    } else {
      status = SaveInBackground(storage, step, state.dict, group, SmallFiles());
    }
  });
  return statuses;
}

std::vector<absl::Status> SaveVersion(Storage& storage, uint64_t version, int64_t step) {
  return SaveVersion(std::vector<Storage*>(kRanks, &storage), Mode::kSync, version, step);
}

bool LoadsAs(Storage& storage, const std::string& directory, uint64_t version, int64_t step) {
  const auto manifest = ReadManifest(storage, directory);
  if (!manifest.ok() || manifest->trainer().step() != step) return false;
  const auto verified = Verify(storage, directory, {.digests = true, .io_threads = 1});
  if (!verified.ok() || !verified->damage.empty()) return false;
  const std::vector<WholeTensor> tensors = Tensors(version);
  LocalState state;
  for (const WholeTensor& tensor : tensors) state.Add(tensor, {WholeBox(tensor.shape)}, false);
  if (!Load(storage, directory, state.dict).ok()) return false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!LocalState::Holds(state.dict.tensors[t].shards[0], tensors[t])) return false;
  }
  return true;
}

enum class Fault { kFail, kDie, kLosePower, kLosePowerHalfway };
constexpr Fault kFaults[] = {Fault::kFail, Fault::kDie, Fault::kLosePower,
                             Fault::kLosePowerHalfway};

// Prepares what exists when the save begins.
void PrepareRoot(Storage& storage, bool half_written) {
  for (const absl::Status& status : SaveVersion(storage, 1, kOldStep)) ASSERT_TRUE(status.ok());
  if (!half_written) return;
  FaultInjectingStorage faulty(
      storage);  // a save of the new step that died while it wrote its data
  const int64_t before = faulty.operation_count();
  faulty.DieAt(before + 14);
  for (const absl::Status& status : SaveVersion(faulty, 9, kNewStep)) ASSERT_FALSE(status.ok());
}

// The fault: one operation, of any rank or of a specific one.
struct Attempt {
  Mode mode;
  Fault fault;
  bool half_written;  // an incomplete directory of the step exists
  int rank;           // whose operations are counted and broken; -1: those of all
};

// Expects the old checkpoint and, if `saved`, the new one; all existing checkpoints load.
void ExpectOldOrNew(MemoryStorage& storage, bool saved) {
  const auto list = List(storage, "run");
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_FALSE(list->empty()) << "the old checkpoint is gone";
  EXPECT_EQ(list->front().step, kOldStep);
  EXPECT_TRUE(LoadsAs(storage, list->front().directory, 1, kOldStep));
  if (list->size() > 1) {
    EXPECT_EQ(list->back().step, kNewStep);
    EXPECT_TRUE(LoadsAs(storage, list->back().directory, 2, kNewStep));
  } else {
    EXPECT_FALSE(saved) << "a save that was reported is lost";
  }
}

// Expects that the same step can be saved (or exists), and that pruning removes everything
// incomplete.
void ExpectLifeGoesOn(MemoryStorage& storage) {
  const bool is_there = List(storage, "run")->size() > 1;
  const std::vector<absl::Status> again = SaveVersion(storage, 2, kNewStep);
  EXPECT_TRUE(again[0].ok() || (absl::IsAlreadyExists(again[0]) && is_there)) << again[0];
  EXPECT_TRUE(LoadsAs(storage, "run/" + StepDirectoryName(kNewStep), 2, kNewStep));
  EXPECT_TRUE(Prune(storage, "run", 1).ok());
  const auto names = storage.List("run");
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, testing::ElementsAre(StepDirectoryName(kNewStep) + "/"));
}

// Returns false once `operation` is beyond the save's last one.
bool TryFault(const Attempt& attempt, int64_t operation) {
  const Fault fault = attempt.fault;
  SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at operation ", operation,
                            " of rank ", attempt.rank,
                            attempt.mode == Mode::kAsync ? " in the background" : "",
                            attempt.half_written ? " over a half-written directory" : ""));
  MemoryStorage storage;
  PrepareRoot(storage, attempt.half_written);
  FaultInjectingStorage faulty(storage);
  if (fault == Fault::kFail) {
    faulty.FailAt(operation, absl::UnavailableError("injected"), operation % 3 * 100);
  } else {
    faulty.DieAt(operation, operation % 3 * 100);
  }
  std::vector<Storage*> storages(kRanks, &faulty);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (attempt.rank >= 0 && rank != attempt.rank) storages[rank] = &storage;
  }
  const std::vector<absl::Status> statuses = SaveVersion(storages, attempt.mode, 2, kNewStep);
  const bool reached = faulty.operation_count() > operation;
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  if (fault == Fault::kLosePower) storage.SimulatePowerLoss();
  if (fault == Fault::kLosePowerHalfway) storage.SimulatePowerLoss(operation);
  ExpectOldOrNew(storage, statuses[0].ok());
  if (!testing::Test::HasFailure()) ExpectLifeGoesOn(storage);
  return reached;
}

// Tries every operation in turn.
void TryEveryOperation(const Attempt& attempt, int64_t least_operations) {
  int64_t operation = 0;
  while (TryFault(attempt, operation)) {
    ++operation;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(operation, least_operations);
}

class CrashInSaveTest : public testing::TestWithParam<Mode> {};

TEST_P(CrashInSaveTest, EveryOperation) {
  for (const Fault fault : kFaults) {
    for (const bool half_written : {false, true}) {
      TryEveryOperation({GetParam(), fault, half_written, -1}, 25);
    }
  }
}

TEST_P(CrashInSaveTest, EveryOperationOfOneRank) {
  for (const Fault fault : {Fault::kFail, Fault::kDie}) {
    TryEveryOperation({GetParam(), fault, false, 0}, 15);
    TryEveryOperation({GetParam(), fault, false, 1}, 7);
  }
}

// A rank whose messages stop at one of its operations: it is gone for the others, and they are for
// it.
class VanishingGroup final : public ProcessGroup {
 public:
  VanishingGroup(ProcessGroup& base, int operations) : base_(base), operations_(operations) {}
  int rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  bool vanished() const { return operations_ < 0; }
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration deadline) override {
    if (--operations_ < 0) return Gone();
    return base_.Gather(mine, deadline);
  }
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration deadline) override {
    if (--operations_ < 0) return Gone();
    return base_.Broadcast(from_rank_0, deadline);
  }
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    if (--operations_ < 0) return std::make_unique<NoMessage>();
    return base_.StartSend(data, destination);
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    if (--operations_ < 0) return std::make_unique<NoMessage>();
    return base_.StartReceive(data, source);
  }

 private:
  static absl::Status Gone() { return absl::UnavailableError("the connection is gone"); }
  struct NoMessage final : PendingMessage {
    absl::Status Wait(absl::Duration) override { return Gone(); }
  };

  ProcessGroup& base_;
  int operations_;
};

// Returns false if no rank vanished.
bool TryVanishing(Mode mode, int vanishing_rank, int operations) {
  SCOPED_TRACE(
      absl::StrCat("rank ", vanishing_rank, " vanishes after ", operations, " operations"));
  MemoryStorage storage;
  PrepareRoot(storage, false);
  const std::vector<WholeTensor> tensors = Tensors(2);
  std::vector<absl::Status> statuses(kRanks);
  std::atomic<bool> vanished = false;
  RunRanks(kRanks, [&](ProcessGroup& base) {
    VanishingGroup group(base, base.rank() == vanishing_rank ? operations : 1000);
    LocalState state = StateOf(tensors, base.rank(), true);
    SaveOptions options = SmallFiles();
    options.deadline = absl::Milliseconds(150);
    statuses[base.rank()] = mode == Mode::kSync
                                ? Save(storage, "run", kNewStep, state.dict,
                                       With(MetadataOfStep(kNewStep), options, &group))
                                      .status()
                                : SaveInBackground(storage, kNewStep, state.dict, group, options);
    if (group.vanished()) vanished = true;
  });
  ExpectOldOrNew(storage, statuses[0].ok());
  for (int rank = 0; rank < kRanks && vanished; ++rank) {
    // Rank 0's last message may not be received; its content is then still true.
    EXPECT_TRUE(!statuses[rank].ok() || rank == 0) << rank;
  }
  if (!testing::Test::HasFailure()) ExpectLifeGoesOn(storage);
  return vanished;
}

TEST_P(CrashInSaveTest, APeerThatVanishesAtEveryMessage) {
  for (int rank = 0; rank < kRanks; ++rank) {
    int operations = 0;
    while (TryVanishing(GetParam(), rank, operations)) {
      ++operations;
      if (HasFailure()) return;
    }
    EXPECT_GT(operations, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CrashInSaveTest, testing::Values(Mode::kSync, Mode::kAsync),
                         [](const auto& mode) {
                           return mode.param == Mode::kSync ? "Waiting" : "InTheBackground";
                         });

TEST(CrashTest, EveryOperationOfPruning) {
  for (const Fault fault : kFaults) {
    for (int64_t operation = 0;; ++operation) {
      SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at operation ", operation));
      MemoryStorage storage;
      for (int64_t step = 1; step <= 3; ++step) {
        for (const absl::Status& status : SaveVersion(storage, step, step))
          ASSERT_TRUE(status.ok());
      }
      FaultInjectingStorage faulty(storage);
      if (fault == Fault::kFail) {
        faulty.FailAt(operation, absl::UnavailableError("injected"));
      } else {
        faulty.DieAt(operation);
      }
      const absl::Status pruned = Prune(faulty, "run", 2);
      if (fault == Fault::kLosePower) storage.SimulatePowerLoss();
      if (fault == Fault::kLosePowerHalfway) storage.SimulatePowerLoss(operation);
      const auto list = List(storage, "run");
      ASSERT_TRUE(list.ok() && list->size() >= 2);
      for (const CheckpointInfo& info : *list) {
        EXPECT_TRUE(LoadsAs(storage, info.directory, info.step, info.step));
      }
      if (faulty.operation_count() <= operation) {
        EXPECT_TRUE(pruned.ok());
        EXPECT_EQ(list->size(), 2);
        break;
      }
    }
  }
}

TEST(CrashTest, EveryOperationOfALoadIsReported) {
  MemoryStorage storage;
  for (const absl::Status& status : SaveVersion(storage, 1, 1)) ASSERT_TRUE(status.ok());
  const std::string directory = "run/" + StepDirectoryName(1);
  for (int64_t operation = 0;; ++operation) {
    SCOPED_TRACE(operation);
    FaultInjectingStorage faulty(storage);
    faulty.FailAt(operation, absl::UnavailableError("injected"));
    std::vector<absl::Status> statuses(kRanks);
    const std::vector<WholeTensor> tensors = Tensors(1);
    RunRanks(kRanks, [&](ProcessGroup& group) {
      LocalState state = StateOf(tensors, group.rank(), false);
      LoadOptions options;
      options.deadline = absl::Seconds(20);
      statuses[group.rank()] = Load(faulty, directory, state.dict, On(group, options)).status();
    });
    EXPECT_EQ(statuses[0], statuses[1]);
    if (faulty.operation_count() <= operation) {
      EXPECT_TRUE(statuses[0].ok()) << statuses[0];
      EXPECT_GT(operation, 4);
      break;
    }
    EXPECT_FALSE(statuses[0].ok());
  }
}

}  // namespace
}  // namespace tessera::ckpt
