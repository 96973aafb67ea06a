// Simulates a power loss at any moment of a save, a rewrite and a removal on the real file system,
// based on the syncs that were actually made. Whatever looks committed is complete, and everything
// promised exists. Omitting any single sync breaks that, so that none is superfluous and none can
// be removed unnoticed.

#include "tests/worlds/power/power_loss.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/reshard/rewrite.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/forwarding_storage.h"
#include "storage/posix_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 2;

// The real storage as seen by one of several machines that share a file system: its syncs of a
// directory need not include changes by others.
class MachineStorage final : public ForwardingStorage {
 private:
  // Recorded before the call, so that no other machine's sync comes between, and again if there was
  // no directory yet.
  template <typename Function>
  auto Change(const std::vector<std::string_view>& paths, const Function& function) {
    const ScopedMachine scoped(machine_);
    const auto note = [&] {
      for (const std::string_view path : paths) NoteChange(prefix_ + std::string(path));
    };
    note();
    auto result = function();
    note();
    return result;
  }

 public:
  // `prefix`: the path of the storage's root below that of the scenario; empty, or ending in '/'.
  MachineStorage(Storage& base, int machine, std::string prefix)
      : ForwardingStorage(base), machine_(machine), prefix_(std::move(prefix)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    return Change({path}, [&] { return base().Create(path, size_hint_bytes); });
  }
  absl::Status Rename(std::string_view from, std::string_view to) override {
    return Change({from, to}, [&] { return base().Rename(from, to); });
  }
  absl::Status Replace(std::string_view from, std::string_view to) override {
    return Change({from, to}, [&] { return base().Replace(from, to); });
  }
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    return Storage::Write(path, contents, condition);
  }
  absl::Status MakeDirectory(std::string_view path) override {
    return Change({path.substr(0, path.find('/')), path},
                  [&] { return base().MakeDirectory(path); });
  }
  absl::Status SyncDirectory(std::string_view path) override {
    return Change({}, [&] { return base().SyncDirectory(path); });
  }
  absl::Status Delete(std::string_view path) override {
    return Change({path}, [&] { return base().Delete(path); });
  }
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override {
    return Storage::DeleteFiles(directory, names);
  }
  absl::Status DeleteTree(std::string_view path) override {
    return Change({path}, [&] { return base().DeleteTree(path); });
  }

 private:
  const int machine_;
  const std::string prefix_;
};

std::vector<WholeTensor> Tensors() {
  std::mt19937_64 random(1);
  std::vector<WholeTensor> tensors;
  tensors.push_back(RandomTensor("w", TensorRole::kWeight, DType::kF32, {10, 20}, random));
  tensors.push_back(RandomTensor("m", TensorRole::kOptimizerState, DType::kF32, {10, 20}, random));
  return tensors;
}

SaveOptions SmallFiles() {
  SaveOptions options;
  options.checksum_chunk_bytes = 256;
  options.io_threads = 2;
  options.staging_bytes = 16384;
  options.timeout = absl::Minutes(5);
  return options;
}

enum class Mode { kForeground, kBackground };

absl::Status SaveByAll(const std::string& root, int64_t step, Mode mode, bool overwrite = false) {
  const std::vector<WholeTensor> tensors = Tensors();
  std::vector<absl::Status> statuses(kRanks);
  SaveOptions options = SmallFiles();
  options.overwrite = overwrite;
  RunRanks(kRanks, [&](ProcessGroup& group) {
    const auto posix = *OpenPosixStorage(root);
    MachineStorage storage(*posix, group.rank(), "");
    const LocalState state = RowsOf(tensors, group.rank(), kRanks);
    absl::Status& status = statuses[group.rank()];
    if (mode == Mode::kForeground) {
      status = SaveNow(storage, {.step = step, .metadata = {.program = overwrite ? "new" : "old"}},
                       state.dict, On(group, options), {.choose_root = In("run")})
                   .status();
    } else {
      const std::unique_ptr<AsyncSaver> saver =
          MakeAsyncSaver(storage, {.save = On(group, options)}, {.choose_root = In("run")});
      saver->Start(step, state.dict);
      status = saver->Finish()[0].report.status();
    }
  });
  statuses[0].Update(statuses[1]);
  return statuses[0];
}

absl::Status SaveAlone(const std::string& root, int64_t step) {
  const LocalState state = RowsOf(Tensors());
  return CheckpointFolder(**OpenPosixStorage(root)).Save(step, state.dict, SmallFiles()).status();
}

void Fill(const FileImage& image, Storage& storage) {
  for (const auto& [path, contents] : image) {
    ASSERT_EQ(path.ends_with('/') ? storage.MakeDirectory(path.substr(0, path.size() - 1))
                                  : WriteAll(storage, path, contents),
              absl::OkStatus());
  }
}

// Whether everything that looks committed is complete, and whether everything that must be
// committed is.
std::string Check(Storage& storage, const std::string& folder, const std::vector<int64_t>& steps) {
  const auto found = ListStepDirectories(storage, folder);
  if (!found.ok()) return found.status().ToString();
  std::vector<int64_t> missing = steps;
  for (const CheckpointInfo& info : *found) {
    if (!info.committed) continue;
    std::erase(missing, info.step);
    const std::string path = info.directory;
    const auto verified = VerifyCheckpoint(storage, path, {.digests = true, .io_threads = 1});
    if (!verified.ok()) return verified.status().ToString();
    if (!verified->damage.empty()) {
      return absl::StrCat(path, ": ", verified->damage[0].file, ": ", verified->damage[0].message);
    }
  }
  return missing.empty() ? "" : absl::StrCat("step ", missing[0], " is gone");
}

class PowerLossTest : public testing::Test {
 protected:
  std::vector<std::string> EverySync(const PowerLossScenario& scenario) {
    std::vector<std::string> syncs;
    EXPECT_EQ(CheckEverySync(scenario, directory_.path() + "/root", &syncs), "");
    return syncs;
  }

  const TestFolder directory_;
};

TEST_F(PowerLossTest, ASaveByTwoMachines) {
  for (const Mode mode : {Mode::kForeground, Mode::kBackground}) {
    PowerLossScenario scenario;
    scenario.run = [mode](const std::string& root) { return SaveByAll(root, 1, mode); };
    scenario.check = [](const FileImage& image, bool finished) -> std::string {
      MemoryStorage storage;
      Fill(image, storage);
      return Check(storage, "run", finished ? std::vector<int64_t>{1} : std::vector<int64_t>{});
    };
    EXPECT_THAT(EverySync(scenario),
                ElementsAre("",                     // rank 0: the name of the folder
                            "run",                  // that of the checkpoint
                            "run/step-00000001",    // each rank: those of its files
                            "run/step-00000001#2",  //
                            "run/step-00000001#3",  // rank 0: the commit
                            "run/step-00000001/manifest.pb.tmp",
                            "run/step-00000001/model-00001-of-00002.safetensors",
                            "run/step-00000001/model-00002-of-00002.safetensors",
                            "run/step-00000001/optimizer-00001-of-00002.safetensors",
                            "run/step-00000001/optimizer-00002-of-00002.safetensors"));
  }
}

TEST_F(PowerLossTest, ASaveOverAnotherByTwoMachines) {
  PowerLossScenario scenario;
  scenario.prepare = [](const std::string& root) {
    ASSERT_OK(SaveByAll(root, 1, Mode::kForeground));
  };
  scenario.run = [](const std::string& root) {
    return SaveByAll(root, 1, Mode::kForeground, /*overwrite=*/true);
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    MemoryStorage storage;
    Fill(image, storage);
    const std::string problem = Check(storage, "run", {1});
    if (!problem.empty() || !finished) return problem;
    return ReadManifest(storage, "run/step-00000001")->producer().program() == "new"
               ? ""
               : "the old checkpoint is back";
  };
  std::vector<std::string> syncs;
  // The names of the directories are durable already, which a save cannot know.
  EXPECT_EQ(CheckEverySync(scenario, directory_.path() + "/root", &syncs),
            "nothing is wrong without the sync of \"\"\n"
            "nothing is wrong without the sync of \"run\"\n");
  EXPECT_THAT(syncs, ElementsAre("", "run",
                                 "run/step-00000001",    // each rank: the names of its files
                                 "run/step-00000001#2",  //
                                 "run/step-00000001#3",  // rank 0: the commit
                                 "run/step-00000001/manifest.pb.tmp",
                                 "run/step-00000001/model-00001-of-00002.safetensors",
                                 "run/step-00000001/model-00002-of-00002.safetensors",
                                 "run/step-00000001/optimizer-00001-of-00002.safetensors",
                                 "run/step-00000001/optimizer-00002-of-00002.safetensors"));
}

// The leftovers of a save that died are replaced, and never mixed with the new files.
TEST_F(PowerLossTest, ASaveInThePlaceOfOneThatDied) {
  PowerLossScenario scenario;
  scenario.prepare = [](const std::string& root) {
    ASSERT_OK(SaveAlone(root, 1));
    ASSERT_OK(SaveAlone(root, 2));
    std::filesystem::rename(root + "/step-00000002/manifest.pb",
                            root + "/step-00000002/manifest.pb.tmp");
  };
  scenario.run = [](const std::string& root) { return SaveAlone(root, 2); };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    MemoryStorage storage;
    Fill(image, storage);
    return Check(storage, "", finished ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1});
  };
  EXPECT_THAT(EverySync(scenario),
              ElementsAre("", "step-00000002", "step-00000002#2", "step-00000002/manifest.pb.tmp",
                          "step-00000002/model-00001-of-00001.safetensors",
                          "step-00000002/optimizer-00001-of-00001.safetensors"));
}

absl::Status RewriteForTwo(const std::string& root) {
  const auto source = *OpenPosixStorage(root + "/old");
  TESSERA_ASSIGN_OR_RETURN(const auto target,
                           OpenPosixStorage(root + "/new", {.create_root = true}));
  const Checkpoint saved = *Checkpoint::Open(*source, "step-00000001");
  std::vector<std::string> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(DescribeState(RowsOf(Tensors(), rank, 2).dict).SerializeAsString());
  }
  SavePlanOptions options;
  options.checksum_chunk_bytes = 256;
  TESSERA_ASSIGN_OR_RETURN(const auto plan, PlanSave(ranks, options));
  Manifest metadata;
  metadata.mutable_trainer()->set_step(1);
  return Rewrite(
             saved, {ranks, plan}, *target, "", metadata,
             {.memory_bytes = LeastRewriteMemory(saved.manifest(), plan.manifest), .io_threads = 2})
      .status();
}

TEST_F(PowerLossTest, ARewrite) {
  PowerLossScenario scenario;
  scenario.prepare = [](const std::string& root) {
    std::filesystem::create_directory(root + "/old");
    ASSERT_OK(SaveAlone(root + "/old", 1));
  };
  scenario.run = RewriteForTwo;
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    MemoryStorage storage;
    Fill(image, storage);
    const std::string old = Check(storage, "old", {1});
    if (!old.empty()) return old;
    return Check(storage, "new", finished ? std::vector<int64_t>{1} : std::vector<int64_t>{});
  };
  EXPECT_THAT(EverySync(scenario),
              ElementsAre("", "new", "new/step-00000001", "new/step-00000001#2",
                          "new/step-00000001/manifest.pb.tmp",
                          "new/step-00000001/model-00001-of-00002.safetensors",
                          "new/step-00000001/model-00002-of-00002.safetensors",
                          "new/step-00000001/optimizer-00001-of-00002.safetensors",
                          "new/step-00000001/optimizer-00002-of-00002.safetensors"));
}

TEST_F(PowerLossTest, ARemoval) {
  PowerLossScenario scenario;
  scenario.prepare = [](const std::string& root) {
    for (const int64_t step : {1, 2, 3}) ASSERT_OK(SaveAlone(root, step));
  };
  scenario.run = [](const std::string& root) {
    return CheckpointFolder(**OpenPosixStorage(root)).Prune(/*keep=*/1);
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    MemoryStorage storage;
    Fill(image, storage);
    const std::string problem = Check(storage, "", {3});
    if (!problem.empty() || !finished) return problem;
    return storage.List("")->size() == 1 ? "" : "a removed directory is back";
  };
  // Each stops being a checkpoint before any of its files is deleted; in the end none exists.
  EXPECT_THAT(EverySync(scenario),
              ElementsAre("", "step-00000001.discarded", "step-00000002.discarded"));
}

// "a" was created without a sync.
TEST_F(PowerLossTest, DirectoriesAndRoots) {
  PowerLossScenario scenario;
  scenario.run = [](const std::string& root) -> absl::Status {
    mkdir((root + "/a").c_str(), 0777);
    TESSERA_ASSIGN_OR_RETURN(const auto storage,
                             OpenPosixStorage(root + "/a/b", {.create_root = true}));
    mkdir((root + "/a/b/c").c_str(), 0777);
    return storage->MakeDirectory("c/d");
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    return image.contains("a/b/c/d/") || !finished ? "" : "a/b/c/d is gone";
  };
  EXPECT_THAT(EverySync(scenario), ElementsAre("", "a", "a/b", "a/b/c"));
}

}  // namespace
}  // namespace tessera::ckpt
