// Tests of power loss. What MemoryStorage shares with every storage is in storage_conformance.cc.

#include "checkpoint/storage/memory_storage.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using Names = std::vector<std::string>;
constexpr uint64_t kSeeds = 200;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}

std::string Get(Storage& storage, std::string_view path) {
  absl::StatusOr<std::string> contents = ReadAll(storage, path, 1 << 20);
  return contents.ok() ? *contents : "(" + contents.status().ToString() + ")";
}

void WriteUnsynced(Storage& storage, std::string_view path, std::string_view contents) {
  auto file = storage.Create(path, contents.size());
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(0, Bytes(contents)).ok());
  ASSERT_TRUE((*file)->Close().ok());
}

void WriteDurably(Storage& storage, std::string_view path, std::string_view contents) {
  ASSERT_TRUE(WriteAll(storage, path, contents).ok());
  const size_t slash = path.rfind('/');
  const std::string_view directory =
      slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  ASSERT_TRUE(storage.SyncDirectory(directory).ok());
}

TEST(MemoryStorageTest, NamesNeedASyncedDirectory) {
  MemoryStorage storage;
  ASSERT_TRUE(storage.MakeDirectory("d").ok());
  ASSERT_TRUE(WriteAll(storage, "d/file", "x").ok());
  ASSERT_TRUE(storage.SyncDirectory("").ok());  // not the one that holds the file
  storage.SimulatePowerLoss();
  EXPECT_EQ(*storage.List(""), Names({"d/"}));
  EXPECT_EQ(*storage.List("d"), Names());
  WriteDurably(storage, "d/file", "y");
  storage.SimulatePowerLoss();
  EXPECT_EQ(Get(storage, "d/file"), "y");
}

TEST(MemoryStorageTest, ContentsNeedASyncedFile) {
  MemoryStorage storage;
  WriteUnsynced(storage, "file", "x");
  ASSERT_TRUE(storage.SyncDirectory("").ok());
  EXPECT_EQ(Get(storage, "file"), "x");
  storage.SimulatePowerLoss();
  EXPECT_EQ(Get(storage, "file"), "");
}

TEST(MemoryStorageTest, WritesAfterASyncAreLost) {
  MemoryStorage storage;
  auto file = storage.Create("file", 0);
  ASSERT_TRUE(storage.SyncDirectory("").ok());
  ASSERT_TRUE((*file)->WriteAt(0, Bytes("kept")).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->WriteAt(2, Bytes("lost")).ok());
  EXPECT_EQ(Get(storage, "file"), "kelost");
  storage.SimulatePowerLoss();
  EXPECT_EQ(Get(storage, "file"), "kept");
}

TEST(MemoryStorageTest, MadeDirectoriesAreDurable) {
  MemoryStorage storage;
  ASSERT_TRUE(storage.MakeDirectory("a/b/c").ok());
  storage.SimulatePowerLoss();
  EXPECT_EQ(*storage.List("a/b"), Names({"c/"}));
}

TEST(MemoryStorageTest, AReplacedFileComesBackUntilTheDirectoryIsSynced) {
  MemoryStorage storage;
  WriteDurably(storage, "file", "old");
  ASSERT_TRUE(WriteAll(storage, "file", "new").ok());
  storage.SimulatePowerLoss();
  EXPECT_EQ(Get(storage, "file"), "old");
  WriteDurably(storage, "file", "new");
  storage.SimulatePowerLoss();
  EXPECT_EQ(Get(storage, "file"), "new");
}

TEST(MemoryStorageTest, RenamesAndDeletionsNeedASyncedDirectory) {
  MemoryStorage storage;
  ASSERT_TRUE(storage.MakeDirectory("tree").ok());
  WriteDurably(storage, "a", "a");
  WriteDurably(storage, "b", "b");
  WriteDurably(storage, "tree/c", "c");
  ASSERT_TRUE(storage.Rename("a", "renamed").ok());
  ASSERT_TRUE(storage.Delete("b").ok());
  ASSERT_TRUE(storage.DeleteTree("tree").ok());
  EXPECT_EQ(*storage.List(""), Names({"renamed"}));
  storage.SimulatePowerLoss();
  EXPECT_EQ(*storage.List(""), Names({"a", "b", "tree/"}));
  EXPECT_EQ(Get(storage, "tree/c"), "c");

  ASSERT_TRUE(storage.Rename("a", "renamed").ok());
  ASSERT_TRUE(storage.Delete("b").ok());
  ASSERT_TRUE(storage.DeleteTree("tree").ok());
  ASSERT_TRUE(storage.SyncDirectory("").ok());
  storage.SimulatePowerLoss();
  EXPECT_EQ(*storage.List(""), Names({"renamed"}));
  EXPECT_EQ(Get(storage, "renamed"), "a");
}

TEST(MemoryStorageTest, ARenameBetweenDirectoriesNeedsBoth) {
  for (const std::vector<std::string>& synced :
       {std::vector<std::string>{}, {"from"}, {"to"}, {"from", "to"}, {"to", "from"}}) {
    MemoryStorage storage;
    ASSERT_TRUE(storage.MakeDirectory("from").ok());
    ASSERT_TRUE(storage.MakeDirectory("to").ok());
    WriteDurably(storage, "from/file", "x");
    ASSERT_TRUE(storage.Rename("from/file", "to/file").ok());
    for (const std::string& directory : synced) {
      ASSERT_TRUE(storage.SyncDirectory(directory).ok());
    }
    storage.SimulatePowerLoss();
    EXPECT_EQ(Get(storage, synced.size() == 2 ? "to/file" : "from/file"), "x");
    EXPECT_EQ(storage.List("from")->size() + storage.List("to")->size(), 1);
  }
}

TEST(MemoryStorageTest, ALateSyncDoesNotUndoNewerChanges) {
  MemoryStorage storage;
  ASSERT_TRUE(storage.MakeDirectory("a").ok());
  ASSERT_TRUE(storage.MakeDirectory("b").ok());
  WriteDurably(storage, "a/file", "older");
  ASSERT_TRUE(storage.Rename("a/file", "b/file").ok());
  WriteDurably(storage, "b/file", "newer");  // syncs b: the rename still waits for a
  ASSERT_TRUE(storage.SyncDirectory("a").ok());
  storage.SimulatePowerLoss();
  EXPECT_EQ(Get(storage, "b/file"), "newer");
  EXPECT_EQ(*storage.List("a"), Names());
}

TEST(MemoryStorageTest, OpenFilesDieWithThePower) {
  MemoryStorage storage;
  WriteDurably(storage, "file", "x");
  auto reader = storage.Open("file");
  auto writer = storage.Create("other", 0);
  storage.SimulatePowerLoss();
  std::byte out[1];
  for (const absl::Status& status : {(*reader)->ReadAt(0, out), (*writer)->WriteAt(0, Bytes("x")),
                                     (*writer)->Sync(), (*writer)->Close()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_EQ(Get(storage, "file"), "x");
  EXPECT_EQ(*storage.List(""), Names({"file"}));
}

TEST(MemoryStorageTest, FilesMayOutliveTheStorage) {
  std::unique_ptr<WritableFile> file;
  {
    MemoryStorage storage;
    file = *storage.Create("file", 0);
  }
  EXPECT_TRUE(file->WriteAt(0, Bytes("x")).ok());
}

// Contents of "file" after a power loss at the end of `change`, over many seeds; "none" where there
// is no such file.
template <typename Change>
std::set<std::string> Outcomes(const Change& change) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MemoryStorage storage;
    change(storage);
    storage.SimulatePowerLoss(seed);
    outcomes.insert(storage.Open("file").ok() ? Get(storage, "file") : "none");
  }
  return outcomes;
}

TEST(MemoryStorageTest, SeededLossKeepsTheCorrectProtocolWhole) {
  EXPECT_EQ(Outcomes([](Storage& storage) {
              ASSERT_TRUE(WriteAll(storage, "tmp", "new").ok());
              ASSERT_TRUE(storage.Rename("tmp", "file").ok());
            }),
            std::set<std::string>({"none", "new"}));
  EXPECT_EQ(Outcomes([](Storage& storage) {
              ASSERT_TRUE(WriteAll(storage, "tmp", "new").ok());
              ASSERT_TRUE(storage.Rename("tmp", "file").ok());
              ASSERT_TRUE(storage.SyncDirectory("").ok());
            }),
            std::set<std::string>({"new"}));
}

TEST(MemoryStorageTest, SeededLossExposesAMissingSync) {
  const std::set<std::string> outcomes = Outcomes([](Storage& storage) {
    WriteUnsynced(storage, "tmp", "new");
    ASSERT_TRUE(storage.Rename("tmp", "file").ok());
    ASSERT_TRUE(storage.SyncDirectory("").ok());
  });
  EXPECT_EQ(outcomes, std::set<std::string>({"", "new", std::string(3, '\0')}));
}

TEST(MemoryStorageTest, SeededLossTearsFilesAtSectors) {
  const std::string contents(5'000, 'n');
  bool torn = false;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MemoryStorage storage;
    WriteUnsynced(storage, "file", contents);
    ASSERT_TRUE(storage.SyncDirectory("").ok());
    storage.SimulatePowerLoss(seed);
    const std::string found = Get(storage, "file");
    ASSERT_TRUE(found.empty() || found.size() == contents.size());
    for (size_t at = 0; at < found.size(); at += 512) {
      const std::string sector = found.substr(at, 512);
      ASSERT_TRUE(sector == std::string(sector.size(), 'n') ||
                  sector == std::string(sector.size(), '\0'));
      torn |= sector[0] != found[0];
    }
  }
  EXPECT_TRUE(torn);
}

TEST(MemoryStorageTest, SeededLossHalvesADeletion) {
  bool half = false;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MemoryStorage storage;
    ASSERT_TRUE(storage.MakeDirectory("tree").ok());
    WriteDurably(storage, "tree/1", "1");
    WriteDurably(storage, "tree/2", "2");
    ASSERT_TRUE(storage.DeleteTree("tree").ok());
    storage.SimulatePowerLoss(seed);
    const auto left = storage.List("tree");
    half |= left.ok() && left->size() == 1;
  }
  EXPECT_TRUE(half);
}

TEST(MemoryStorageTest, TheSameSeedLosesTheSame) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::string found[2];
    for (std::string& contents : found) {
      MemoryStorage storage;
      WriteUnsynced(storage, "file", std::string(20'000, 'x'));
      ASSERT_TRUE(storage.SyncDirectory("").ok());
      storage.SimulatePowerLoss(seed);
      contents = Get(storage, "file");
    }
    EXPECT_EQ(found[0], found[1]);
  }
}

}  // namespace
}  // namespace tessera::ckpt
