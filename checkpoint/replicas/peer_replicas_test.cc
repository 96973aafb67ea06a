// After the loss of a host, a job finds its newest state in the memory of other hosts, or is told
// that the state is lost.

#include "checkpoint/include/peer_replicas.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/testing/test_state.h"
#include "storage/lock/folder_lock.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Enough for several blocks of an exchange in each rank's file.
constexpr int64_t kRows = 12;
constexpr int64_t kColumns = 300000;

// Jobs of threads on simulated hosts, each of which has a folder below one of the test's own.
class PeerReplicasTest : public ::testing::Test {
 protected:
  struct Rank {
    ProcessGroup& group;
    ProcessGroup& background;
    PeerReplicas& replicas;
  };

  fs::path Host(int host) const { return fs::path(root_.path()) / absl::StrCat("host", host); }

  // One rank on each of these hosts.
  void Job(const std::vector<int>& hosts, const std::function<void(Rank)>& body) {
    ThreadGroupHub background_hub(static_cast<int>(hosts.size()));
    RunRanks(static_cast<int>(hosts.size()), [&](ProcessGroup& group) {
      ThreadProcessGroup background(background_hub, group.rank());
      const int host = hosts[group.rank()];
      ASSERT_OK_AND_ASSIGN(const auto replicas,
                           PeerReplicas::Open({.folder = Host(host).string(),
                                               .host = absl::StrCat("host", host),
                                               .store = job_store_,
                                               .group = &group,
                                               .timeout = absl::Seconds(30),
                                               .lock_wait = absl::ZeroDuration()}));
      body({group, background, *replicas});
    });
  }

  // This rank's rows of a tensor, and a tensor that all ranks have.
  struct State {
    explicit State(const ProcessGroup& group)
        : begin(group.rank() * kRows / group.size()),
          end((group.rank() + 1) * kRows / group.size()),
          own((end - begin) * kColumns),
          common(1000) {}
    StateDict dict() {
      ShardedTensor rows = {.name = "rows", .global_shape = {kRows, kColumns}};
      rows.shards = {
          Shard::Of(own, {.global_offset = {begin, 0}, .shape = {end - begin, kColumns}})};
      ShardedTensor all = {.name = "all", .global_shape = {1000}};
      all.shards = {Shard::Of(common, {.global_offset = {0}, .shape = {1000}})};
      return {{rows, all}};
    }
    void Fill(int64_t step) {
      for (size_t i = 0; i < own.size(); ++i) own[i] = Element(step, begin * kColumns + i);
      for (size_t i = 0; i < common.size(); ++i) common[i] = Element(step, i) + 1;
    }
    bool Is(int64_t step) const {
      State other(*this);
      other.Fill(step);
      return own == other.own && common == other.common;
    }
    static float Element(int64_t step, int64_t i) {
      return static_cast<float>(step * 1000 + i % 997);
    }
    int64_t begin, end;
    std::vector<float> own, common;
  };

  static void Replicate(Rank rank, const std::vector<int64_t>& steps, bool resumed = false) {
    State state(rank.group);
    AsyncSaveOptions background;
    background.save.group = &rank.background;
    background.save.timeout = absl::Seconds(30);
    background.save.max_file_bytes = 6 << 20;
    ASSERT_EQ(rank.replicas.Begin(state.dict(), background, resumed), absl::OkStatus());
    for (const int64_t step : steps) {
      rank.replicas.WaitUntilAllCopied();
      state.Fill(step);
      rank.replicas.Start({.step = step}, state.dict());
    }
    for (const SaveOutcome& outcome : rank.replicas.Finish()) EXPECT_OK(outcome.report);
  }

  // A job on these hosts that finds a replica, and loads it; returns its step and the note; -1
  // without a replica.
  struct Restart {
    int64_t step = -1;
    std::string note, where;
  };
  Restart RestartOn(const std::vector<int>& hosts) {
    Restart restart;
    Job(hosts, [&](Rank rank) {
      ASSERT_OK_AND_ASSIGN(const FoundReplica found, rank.replicas.FindLatest());
      if (rank.group.rank() == 0) restart.note = found.note;
      if (!found.checkpoint.has_value()) return;
      State state(rank.group);
      ASSERT_OK(found.checkpoint->Load(
          state.dict(),
          {.group = &rank.group, .timeout = absl::Seconds(30), .verify_digests = true}));
      EXPECT_TRUE(state.Is(found.checkpoint->step())) << "rank " << rank.group.rank();
      if (rank.group.rank() != 0) return;
      restart.step = found.checkpoint->step();
      restart.where = found.checkpoint->storage().Describe(found.checkpoint->directory());
    });
    return restart;
  }

  // The directories of replicas on a host.
  std::vector<fs::path> Replicas(int host) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(Host(host))) {
      if (entry.path().filename().string().starts_with("step-")) found.push_back(entry.path());
    }
    return found;
  }
  static std::vector<fs::path> Data(const fs::path& replica) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(replica)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    return files;
  }
  void Copy(const std::string& from, const std::string& to) const {
    fs::copy(fs::path(root_.path()) / from, fs::path(root_.path()) / to,
             fs::copy_options::recursive);
  }

  TestFolder root_;
  MemoryStorage store_;
  Storage* job_store_ = &store_;  // as jobs see it
};

TEST_F(PeerReplicasTest, ALostHostCostsNothingOnAnyOtherRanks) {
  Job({0, 1, 2, 3}, [](Rank rank) { Replicate(rank, {10, 20}); });
  // One replica is kept, and each part of it twice.
  for (int host = 0; host < 4; ++host) {
    ASSERT_EQ(Replicas(host).size(), 1) << host;
    EXPECT_EQ(Replicas(host)[0].filename(), "step-00000020");
    struct stat folder = {};
    ASSERT_EQ(stat(Host(host).c_str(), &folder), 0);
    EXPECT_EQ(folder.st_mode & 0777, 0700);
  }
  EXPECT_EQ(RestartOn({0, 1, 2, 3}).step, 20);
  fs::remove_all(Host(1));
  Restart restart = RestartOn({0, 1, 2, 3});
  EXPECT_EQ(restart.step, 20);
  EXPECT_THAT(restart.note, IsEmpty());
  EXPECT_EQ(restart.where, "step-00000020 in the memory of host0, host2, host3");
  // Hosts that are not neighbours, other hosts in their place, more ranks on a host, fewer.
  fs::remove_all(Host(3));
  EXPECT_EQ(RestartOn({4, 2, 0}).step, 20);
  EXPECT_EQ(RestartOn({0, 0, 2, 2, 5, 5}).step, 20);
  EXPECT_EQ(RestartOn({2, 0}).step, 20);
}

TEST_F(PeerReplicasTest, HostsWhoseRanksWriteNoFileTakePart) {
  const auto dict = [](std::vector<float>& values, bool holds) {
    ShardedTensor small = {.name = "small", .dtype = DType::kF32, .global_shape = {1000}};
    if (holds) small.shards = {Shard::Of(values, WholeBox({1000}))};
    return StateDict{{small}};
  };
  for (const int writer : {0, 2}) {
    Job({0, 1, 2}, [&](Rank rank) {
      std::vector<float> values(1000, 7);
      const StateDict state = dict(values, writer == 0 || rank.group.rank() == writer);
      AsyncSaveOptions background;
      background.save.group = &rank.background;
      ASSERT_OK(rank.replicas.Begin(state, background, /*resumed=*/false));
      rank.replicas.Start({.step = 10}, state);
      ASSERT_OK(rank.replicas.Finish().at(0).report);
    });
    EXPECT_THAT(Data(Replicas((writer + 2) % 3).at(0)), IsEmpty());
    fs::remove_all(Host(writer));
    Job({0, 1, 2}, [&](Rank rank) {
      std::vector<float> values(1000);
      ASSERT_OK_AND_ASSIGN(const FoundReplica found, rank.replicas.FindLatest());
      ASSERT_TRUE(found.checkpoint.has_value()) << found.note;
      ASSERT_OK(found.checkpoint->Load(dict(values, /*holds=*/true), {.group = &rank.group}));
      EXPECT_EQ(values, std::vector<float>(1000, 7));
    });
  }
}

TEST_F(PeerReplicasTest, TwoLostNeighboursCostTheReplicaAndItIsSaid) {
  Job({0, 1, 2}, [](Rank rank) { Replicate(rank, {10}); });
  fs::remove_all(Host(1));
  fs::remove_all(Host(2));
  const Restart restart = RestartOn({0, 1, 2});
  EXPECT_EQ(restart.step, -1);
  EXPECT_THAT(restart.note,
              HasSubstr("step-00000010 is lost: no host has an intact copy of model-"));
}

TEST_F(PeerReplicasTest, ADamagedCopyIsNotUsed) {
  Job({0, 1}, [](Rank rank) { Replicate(rank, {10}); });
  const std::vector<fs::path> files = Data(Replicas(0)[0]);
  ASSERT_GE(files.size(), 4);
  const auto flip = [](const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-1000, std::ios::end);
    const char byte = static_cast<char>(stream.get());
    stream.seekp(-1000, std::ios::end);
    stream.put(static_cast<char>(byte ^ 1));
  };
  for (const fs::path& file : files) flip(file);
  const Restart restart = RestartOn({0, 1});
  EXPECT_EQ(restart.step, 10);
  EXPECT_EQ(restart.where, "step-00000010 in the memory of host1");
  EXPECT_THAT(restart.note, HasSubstr("damaged copies are not used: model-"));
  flip(Replicas(1)[0] / files[0].filename());
  EXPECT_EQ(RestartOn({0, 1}).step, -1);
}

TEST_F(PeerReplicasTest, AReplicaThatWasNotCompletedLeavesTheOneBefore) {
  Job({0, 1}, [&](Rank rank) {
    Replicate(rank, {10});
    const absl::StatusOr<std::string> all = rank.group.Broadcast("", absl::Seconds(30));
  });
  Copy("host0", "kept0");
  Copy("host1", "kept1");
  // The same incarnation goes on to step 20, and dies before host 1's file has arrived on host 0.
  const std::string record = *ReadAll(store_, ".replicas", 1000);
  Job({0, 1}, [&](Rank rank) { Replicate(rank, {20}); });
  const fs::path run = Replicas(0)[0].parent_path();
  for (int host = 0; host < 2; ++host) {
    const fs::path before = fs::path(root_.path()) / absl::StrCat("kept", host);
    for (const auto& entry : fs::directory_iterator(before)) {
      if (!entry.is_directory()) continue;
      fs::copy(entry.path() / "step-00000010", Host(host) / run.filename() / "step-00000010",
               fs::copy_options::recursive);
    }
  }
  EXPECT_EQ(RestartOn({0, 1}).step, 20);
  for (int host = 0; host < 2; ++host) {
    for (const fs::path& file : Data(Host(host) / run.filename() / "step-00000020")) {
      if (file.filename().string().starts_with("model-00001")) fs::resize_file(file, 4096);
    }
  }
  Restart restart = RestartOn({0, 1});
  EXPECT_EQ(restart.step, 10);
  EXPECT_THAT(restart.note, HasSubstr("step-00000020 is lost"));
  // Nor is one without a manifest taken.
  for (int host = 0; host < 2; ++host) {
    fs::remove(Host(host) / run.filename() / "step-00000020" / "manifest.pb");
  }
  restart = RestartOn({0, 1});
  EXPECT_EQ(restart.step, 10);
  EXPECT_THAT(restart.note, HasSubstr("step-00000020 is lost: it was never complete"));
}

TEST_F(PeerReplicasTest, OnlyThePresentIncarnationsReplicasAreTaken) {
  Job({0, 1}, [](Rank rank) { Replicate(rank, {10}); });
  Copy("host0", "old0");
  Copy("host1", "old1");
  // A job that goes on from elsewhere, and dies before its first replica: what was there is gone,
  // and is not taken where it turns up again.
  Job({0, 1}, [](Rank rank) { Replicate(rank, {}); });
  EXPECT_THAT(Replicas(0), IsEmpty());
  fs::remove_all(Host(0));
  fs::remove_all(Host(1));
  Copy("old0", "host0");
  Copy("old1", "host1");
  Restart restart = RestartOn({0, 1});
  EXPECT_EQ(restart.step, -1);
  EXPECT_THAT(restart.note,
              HasSubstr("none of this job's in the memory of host0, host1: it made none, or "));
}

TEST_F(PeerReplicasTest, TheOneResumedFromIsKeptUntilTheNextIsComplete) {
  Job({0, 1}, [](Rank rank) { Replicate(rank, {10}); });
  for (int deaths = 0; deaths < 2; ++deaths) {
    Job({0, 1}, [](Rank rank) {
      ASSERT_TRUE(rank.replicas.FindLatest()->checkpoint.has_value());
      Replicate(rank, {}, /*resumed=*/true);
    });
    EXPECT_EQ(RestartOn({0, 1}).step, 10);
  }
  Job({0, 1}, [](Rank rank) {
    ASSERT_TRUE(rank.replicas.FindLatest()->checkpoint.has_value());
    Replicate(rank, {20}, /*resumed=*/true);
  });
  EXPECT_EQ(Replicas(0).size(), 1);
  EXPECT_EQ(RestartOn({0, 1}).step, 20);
  // A job that saves without replicating gives them up.
  ASSERT_OK(PeerReplicas::Disown(store_));
  const Restart restart = RestartOn({0, 1});
  EXPECT_EQ(restart.step, -1);
  EXPECT_THAT(restart.note, IsEmpty());
}

TEST_F(PeerReplicasTest, TheOneResumedFromIsKeptByAJobThatDiesWhileItSaysSo) {
  Job({0, 1}, [](Rank rank) { Replicate(rank, {10}); });
  int64_t operations = 0;
  for (bool died = true; died; ++operations) {
    FaultInjectingStorage dying(store_);
    job_store_ = &dying;
    died = false;
    Job({0, 1}, [&](Rank rank) {
      ASSERT_TRUE(rank.replicas.FindLatest()->checkpoint.has_value());
      if (rank.group.rank() == 0) dying.DieAt(dying.operation_count() + operations);
      State state(rank.group);
      AsyncSaveOptions background;
      background.save.group = &rank.background;
      const absl::Status begun = rank.replicas.Begin(state.dict(), background, /*resumed=*/true);
      if (rank.group.rank() == 0) died = !begun.ok();
    });
    job_store_ = &store_;
  }
  EXPECT_GT(operations, 4);
  EXPECT_EQ(RestartOn({0, 1}).step, 10);
}

// Flips a bit of every large message that is sent.
class NoisyGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    if (data.size() < 100000) return ForwardingGroup::StartSend(data, destination);
    sent_.assign(data.begin(), data.end());
    sent_.back() ^= std::byte{1};
    return base_.StartSend(sent_, destination);
  }

 private:
  std::vector<std::byte> sent_;
};

TEST_F(PeerReplicasTest, ACopyThatWasDamagedOnItsWayLeavesTheReplicaBefore) {
  Job({0, 1}, [](Rank rank) { Replicate(rank, {10}); });
  Job({0, 1}, [](Rank rank) {
    ASSERT_TRUE(rank.replicas.FindLatest()->checkpoint.has_value());
    NoisyGroup noisy(rank.background);
    State state(rank.group);
    state.Fill(20);
    AsyncSaveOptions background;
    background.save.group = &noisy;
    ASSERT_OK(rank.replicas.Begin(state.dict(), background, /*resumed=*/true));
    rank.replicas.Start({.step = 20}, state.dict());
    const std::vector<SaveOutcome> outcomes = rank.replicas.Finish();
    ASSERT_EQ(outcomes.size(), 1);
    EXPECT_EQ(outcomes[0].report.status().code(), absl::StatusCode::kDataLoss)
        << outcomes[0].report.status();
  });
  EXPECT_EQ(Replicas(0).size(), 2);
  // What every rank wrote itself is still a complete replica, without copies.
  EXPECT_EQ(RestartOn({0, 1}).step, 20);
  fs::remove_all(Host(1));
  EXPECT_EQ(RestartOn({0, 1}).step, 10);
}

// As where its lock file was deleted, and the folder is on a file system that locks no folders.
TEST_F(PeerReplicasTest, AJobThatHasLostAFolderNeitherCommitsNorDeletesThere) {
  for (const int lost : {0, 1}) {
    int other = -1;
    Job({0, 1}, [&](Rank rank) {
      State state(rank.group);
      int saves = 0;
      AsyncSaveOptions background;
      background.save.group = &rank.background;
      background.save.before_commit = [&] {
        if (++saves < 2 || rank.group.rank() != lost) return absl::OkStatus();
        fs::remove(Host(lost) / FolderLock::kFileName);
        other =
            open((Host(lost) / FolderLock::kFileName).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        EXPECT_EQ(flock(other, LOCK_EX), 0);
        return absl::OkStatus();
      };
      ASSERT_OK(rank.replicas.Begin(state.dict(), background, /*resumed=*/false));
      std::vector<SaveOutcome> outcomes;
      for (const int64_t step : {10, 20}) {
        state.Fill(step);
        rank.replicas.Start({.step = step}, state.dict());
        for (SaveOutcome& outcome : rank.replicas.Finish()) outcomes.push_back(std::move(outcome));
      }
      ASSERT_EQ(outcomes.size(), 2);
      EXPECT_OK(outcomes[0].report);
      EXPECT_TRUE(absl::IsFailedPrecondition(outcomes[1].report.status()))
          << outcomes[1].report.status();
    });
    close(other);
    std::vector<std::string> committed;
    for (const fs::path& replica : Replicas(lost)) {
      if (fs::exists(replica / "manifest.pb")) committed.push_back(replica.filename());
    }
    std::ranges::sort(committed);
    EXPECT_EQ(committed.front(), "step-00000010");
    EXPECT_EQ(committed.size(), lost == 0 ? 1 : 2) << "the others commit on rank 0";
  }
}

TEST_F(PeerReplicasTest, OneHostKeepsWhatItsProcessesLose) {
  Job({0, 0}, [](Rank rank) {
    EXPECT_EQ(rank.replicas.DescribeHosts(), "1 host (host0): no copies");
    Replicate(rank, {10});
  });
  EXPECT_EQ(RestartOn({0, 0, 0}).step, 10);
}

TEST_F(PeerReplicasTest, WhatOthersHaveInTheFolderStays) {
  const fs::path folder = Host(0), theirs = folder / "theirs", file = theirs / "data";
  fs::create_directories(theirs);
  std::ofstream(file) << "data";
  fs::permissions(folder, fs::perms::all);
  const auto open = [&] {
    return PeerReplicas::Open({.folder = folder.string(), .store = job_store_}).status();
  };
  const absl::Status refused = open();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("holds theirs/"));
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::all);
  // A folder of this user alone, in which something else is.
  fs::permissions(folder, fs::perms::owner_all);
  Job({0}, [&](Rank rank) {
    State state(rank.group);
    ASSERT_OK(rank.replicas.Begin(state.dict(), {}, /*resumed=*/false));
    ASSERT_OK(rank.replicas.Remove());
  });
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(PeerReplicasTest, AnotherJobInTheSameFolderIsRefused) {
  Job({0, 1}, [&](Rank rank) {
    if (rank.group.rank() != 0) {
      ASSERT_OK(rank.group.Broadcast("", absl::Seconds(30)));
      return;
    }
    const auto other = PeerReplicas::Open(
        {.folder = Host(1).string(), .store = &store_, .lock_wait = absl::ZeroDuration()});
    EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition) << other.status();
    ASSERT_OK(rank.group.Broadcast("", absl::Seconds(30)));
  });
}

TEST_F(PeerReplicasTest, MemoryThatIsTooSmallIsSaidBeforehand) {
  constexpr size_t kBytes = size_t{1} << 42;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Job({0, 1}, [&](Rank rank) {
    ShardedTensor large = {.name = "large", .global_shape = {kBytes / 4}};
    large.shards = {Shard::Of(std::span(static_cast<const float*>(memory), kBytes / 4),
                              {.global_offset = {0}, .shape = {kBytes / 4}})};
    AsyncSaveOptions background;
    background.save.group = &rank.background;
    const absl::Status begun = rank.replicas.Begin({{large}}, background, /*resumed=*/false);
    EXPECT_EQ(begun.code(), absl::StatusCode::kResourceExhausted) << begun;
    EXPECT_THAT(std::string(begun.message()), HasSubstr("replicas need "));
    EXPECT_THAT(std::string(begun.message()), HasSubstr(" in the memory of host host0 (two of "));
  });
  munmap(memory, kBytes);
}

TEST_F(PeerReplicasTest, RemoveLeavesNothing) {
  Job({0, 1}, [](Rank rank) {
    Replicate(rank, {10});
    EXPECT_OK(rank.replicas.Remove());
  });
  EXPECT_FALSE(fs::exists(Host(0)));
  EXPECT_FALSE(fs::exists(Host(1)));
  EXPECT_FALSE(store_.Open(".replicas").ok());
}

}  // namespace
}  // namespace tessera::ckpt
