// Fails, or dies, at each I/O operation of a save in turn, with and without a loss of power: afterwards the old checkpoint or the
// new one is there, bit for bit, and never a mix.

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/engine/checkpoint.h"
#include "checkpoint/engine/test_state.h"
#include "checkpoint/engine/thread_process_group.h"
#include "checkpoint/storage/fault_storage.h"
#include "checkpoint/storage/memory_storage.h"
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
  options.staging_bytes = 2048;
  options.deadline = absl::Seconds(20);
  return options;
}

Metadata MetadataOfStep(int64_t step) {
  Metadata metadata;
  metadata.mutable_trainer()->set_step(step);
  metadata.mutable_trainer()->set_last_loss(1.0 / (1 + step));
  return metadata;
}

// The same tensors with other contents for each version.
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

std::vector<absl::Status> SaveVersion(Storage& storage, uint64_t version, int64_t step) {
  const std::vector<WholeTensor> tensors = Tensors(version);
  std::vector<absl::Status> statuses(kRanks);
  RunRanks(kRanks, [&](ProcessGroup& group) {
    LocalState state = StateOf(tensors, group.rank(), true);
    statuses[group.rank()] =
        Save(storage, "run", MetadataOfStep(step), state.dict, group, SmallFiles()).status();
  });
  return statuses;
}

bool LoadsAs(Storage& storage, const std::string& directory, uint64_t version, int64_t step) {
  const auto manifest = ReadManifest(storage, directory);
  if (!manifest.ok() || manifest->trainer().step() != step) return false;
  const auto verified = Verify(storage, directory, true, 1, nullptr);
  if (!verified.ok() || !verified->damage.empty()) return false;
  const std::vector<WholeTensor> tensors = Tensors(version);
  LocalState state;
  for (const WholeTensor& tensor : tensors) state.Add(tensor, {WholeBox(tensor.shape)}, false);
  SingleProcessGroup group;
  if (!Load(storage, directory, state.dict, group, {}).ok()) return false;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!LocalState::Holds(state.dict.tensors[t].shards[0], tensors[t])) return false;
  }
  return true;
}

enum class Fault { kFail, kDie, kLosePower, kLosePowerHalfway };
constexpr Fault kFaults[] = {Fault::kFail, Fault::kDie, Fault::kLosePower,
                             Fault::kLosePowerHalfway};

// What is already there when the save begins.
void PrepareRoot(Storage& storage, bool half_written) {
  for (const absl::Status& status : SaveVersion(storage, 1, kOldStep)) ASSERT_TRUE(status.ok());
  if (!half_written) return;
  FaultInjectingStorage faulty(
      storage);  // a save of the new step that died while it wrote its data
  const int64_t before = faulty.operation_count();
  faulty.DieAt(before + 14);
  for (const absl::Status& status : SaveVersion(faulty, 9, kNewStep)) ASSERT_FALSE(status.ok());
}

// Returns false once `operation` is beyond the save's last.
bool TryFault(Fault fault, int64_t operation, bool half_written) {
  SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), " at operation ", operation,
                            half_written ? " over a half-written directory" : ""));
  MemoryStorage storage;
  PrepareRoot(storage, half_written);
  FaultInjectingStorage faulty(storage);
  if (fault == Fault::kFail) {
    faulty.FailAt(operation, absl::UnavailableError("injected"), operation % 3 * 100);
  } else {
    faulty.DieAt(operation, operation % 3 * 100);
  }
  const std::vector<absl::Status> statuses = SaveVersion(faulty, 2, kNewStep);
  const bool reached = faulty.operation_count() > operation;
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  if (fault == Fault::kLosePower) storage.SimulatePowerLoss();
  if (fault == Fault::kLosePowerHalfway) storage.SimulatePowerLoss(operation);

  const auto list = List(storage, "run");
  EXPECT_TRUE(list.ok()) << list.status();
  if (!list.ok() || list->empty()) {
    ADD_FAILURE() << "the old checkpoint is gone";
    return reached;
  }
  EXPECT_EQ(list->front().step, kOldStep);
  EXPECT_TRUE(LoadsAs(storage, "run/" + list->front().directory, 1, kOldStep));
  if (list->size() > 1) {
    EXPECT_EQ(list->back().step, kNewStep);
    EXPECT_TRUE(LoadsAs(storage, "run/" + list->back().directory, 2, kNewStep));
  } else {
    EXPECT_FALSE(statuses[0].ok()) << "a save that was reported is lost";
  }
  // Life goes on: the same step can be saved (or is there), and nothing half-written remains after pruning.
  const std::vector<absl::Status> again = SaveVersion(storage, 2, kNewStep);
  EXPECT_TRUE(again[0].ok() || (absl::IsAlreadyExists(again[0]) && list->size() > 1)) << again[0];
  EXPECT_TRUE(LoadsAs(storage, "run/" + StepDirectoryName(kNewStep), 2, kNewStep));
  EXPECT_TRUE(Prune(storage, "run", 1).ok());
  const auto names = storage.List("run");
  EXPECT_TRUE(names.ok() && names->size() == 1 &&
              names->front() == StepDirectoryName(kNewStep) + "/");
  return reached;
}

TEST(CrashTest, EveryOperationOfASave) {
  for (const Fault fault : kFaults) {
    for (const bool half_written : {false, true}) {
      int64_t operation = 0;
      while (TryFault(fault, operation, half_written)) {
        ++operation;
        if (HasFailure()) return;
      }
      EXPECT_GT(operation, 25) << "the save has more operations than that";
    }
  }
}

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
        EXPECT_TRUE(LoadsAs(storage, "run/" + info.directory, info.step, info.step));
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
      statuses[group.rank()] = Load(faulty, directory, state.dict, group, options).status();
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
