// The part of the contract that is about names: what is where, and how it comes and goes.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "base/threads.h"
#include "storage/testing/storage_conformance.h"

namespace tessera {
namespace {

using Names = std::vector<std::string>;

TEST_P(StorageConformance, MissingThingsAreNotFound) {
  constexpr auto kCode = absl::StatusCode::kNotFound;
  const std::string where = storage_->Describe("no/such");
  EXPECT_NE(where.find("no/such"), std::string::npos);
  ExpectError(storage_->Open("no/such").status(), kCode, "Open", where);
  ExpectError(storage_->List("no/such").status(), kCode, "List", where);
  ExpectError(storage_->Delete("no/such"), kCode, "Delete", where);
  ExpectError(storage_->DeleteTree("no/such"), kCode, "DeleteTree", where);
  ExpectError(storage_->Rename("no/such", "b"), kCode, "Rename", where);
  Put("a", "a");
  if (traits().has_directories) {
    ExpectError(storage_->Create("no/such", 0).status(), kCode, "Create", where);
    ExpectError(storage_->Create("no/such", 100'000).status(), kCode, "Create", where);
    ExpectError(storage_->SyncDirectory("no/such"), kCode, "SyncDirectory", where);
    ExpectError(storage_->Rename("a", "no/such"), kCode, "Rename", where);
  }
  // A file is not a directory.
  ExpectError(storage_->Open("a/b").status(), kCode, "Open", storage_->Describe("a/b"));
  ExpectError(storage_->List("a").status(), kCode, "List", storage_->Describe("a"));
  EXPECT_EQ(Get("a"), "a");
}

TEST_P(StorageConformance, DirectoriesAreNoFiles) {
  Mkdir("d");
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  const std::string where = storage_->Describe("d");
  ExpectError(storage_->Open("d").status(), kCode, "Open", where);
  if (traits().has_directories) {
    ExpectError(storage_->Create("d", 0).status(), kCode, "Create", where);
  }
  EXPECT_EQ(*storage_->List(""), Names({"d/"}));
}

TEST_P(StorageConformance, BadPathsAreRefusedByEveryOperation) {
  using std::string_literals::operator""s;
  Put("good", "x");
  std::string longest;
  while (longest.size() < 4094) longest += "x/";
  longest += "x";
  const Names bad = {"/",
                     "/a",
                     "..",
                     "../a",
                     "a/..",
                     "a/../b",
                     ".",
                     "./a",
                     "a/.",
                     "a//b",
                     "a/",
                     "a\0b"s,
                     std::string(256, 'x'),
                     "good/../good",
                     longest + "y"};
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  for (const std::string& path : bad) {
    EXPECT_EQ(storage_->Open(path).status().code(), kCode) << path;
    EXPECT_EQ(storage_->Create(path, 0).status().code(), kCode) << path;
    EXPECT_EQ(storage_->Rename(path, "b").code(), kCode) << path;
    EXPECT_EQ(storage_->Rename("good", path).code(), kCode) << path;
    EXPECT_EQ(storage_->MakeDirectory(path).code(), kCode) << path;
    EXPECT_EQ(storage_->SyncDirectory(path).code(), kCode) << path;
    EXPECT_EQ(storage_->List(path).status().code(), kCode) << path;
    EXPECT_EQ(storage_->Delete(path).code(), kCode) << path;
    EXPECT_EQ(storage_->DeleteTree(path).code(), kCode) << path;
  }
  for (const std::string& path : {std::string(255, 'x'), longest}) {
    EXPECT_EQ(storage_->Open(path).status().code(), absl::StatusCode::kNotFound) << path;
  }
  // The root is a directory, and cannot be replaced.
  EXPECT_EQ(storage_->Open("").status().code(), kCode);
  EXPECT_EQ(storage_->Create("", 0).status().code(), kCode);
  EXPECT_EQ(storage_->Rename("", "b").code(), kCode);
  EXPECT_EQ(storage_->Rename("good", "").code(), kCode);
  EXPECT_EQ(storage_->Delete("").code(), kCode);
  EXPECT_EQ(storage_->DeleteTree("").code(), kCode);
  EXPECT_OK(storage_->MakeDirectory(""));
  EXPECT_OK(storage_->SyncDirectory(""));
  EXPECT_EQ(*storage_->List(""), Names({"good"}));
}

TEST_P(StorageConformance, NamesMayHoldAnythingElse) {
  const Names names = {" ",       "...", ".hidden", "a\nb", "model-00001-of-00002.safetensors",
                       "\xc3\xa9"};
  for (const std::string& name : names) Put(name, name);
  for (const std::string& name : names) EXPECT_EQ(Get(name), name);
  Names sorted = names;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(*storage_->List(""), sorted);
}

TEST_P(StorageConformance, ListsSortedWithDirectoriesMarked) {
  EXPECT_EQ(*storage_->List(""), Names());
  Mkdir("b/inner");
  Mkdir("empty");
  Put("c", "");
  Put("a", "");
  Put("b/file", "");
  EXPECT_EQ(*storage_->List(""), Names({"a", "b/", "c", "empty/"}));
  EXPECT_EQ(*storage_->List("b"), Names({"file", "inner/"}));
  EXPECT_EQ(*storage_->List("empty"), traits().has_directories ? Names() : Names({".kept"}));
}

TEST_P(StorageConformance, MakeDirectoryMakesParentsAndIsIdempotent) {
  ASSERT_OK(storage_->MakeDirectory("a/b/c"));
  ASSERT_OK(storage_->MakeDirectory("a/b/c"));
  ASSERT_OK(storage_->MakeDirectory("a"));
  ASSERT_OK(storage_->MakeDirectory("a/b/d"));
  Put("a/file", "x");
  if (!traits().has_directories) return;
  EXPECT_EQ(*storage_->List("a/b"), Names({"c/", "d/"}));
  ExpectError(storage_->MakeDirectory("a/file"), absl::StatusCode::kAlreadyExists, "MakeDirectory",
              storage_->Describe("a/file"));
  EXPECT_FALSE(storage_->MakeDirectory("a/file/below").ok());
  EXPECT_EQ(Get("a/file"), "x");
}

TEST_P(StorageConformance, RenameNeverReplacesFiles) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  Put("from", "new");
  Put("d/to", "old");
  ExpectError(storage_->Rename("from", "d/to"), absl::StatusCode::kAlreadyExists, "Rename",
              storage_->Describe("d/to"));
  EXPECT_EQ(Get("d/to"), "old");
  EXPECT_EQ(Get("from"), "new");
  ASSERT_OK(storage_->Delete("d/to"));
  ASSERT_OK(storage_->Rename("from", "d/to"));
  EXPECT_EQ(Get("d/to"), "new");
  EXPECT_EQ(*storage_->List(""), Names({"d/"}));
  ASSERT_OK(storage_->Rename("d/to", "d/fresh"));
  EXPECT_EQ(*storage_->List("d"), Names({"fresh"}));
  ASSERT_OK(storage_->SyncDirectory("d"));
  ASSERT_OK(storage_->SyncDirectory(""));
}

TEST_P(StorageConformance, RenameNeverReplacesDirectories) {
  Mkdir("d");
  Mkdir("empty");
  Put("d/file", "x");
  Put("file", "y");
  constexpr auto kCode = absl::StatusCode::kAlreadyExists;
  ExpectError(storage_->Rename("file", "empty"), kCode, "Rename", storage_->Describe("empty"));
  EXPECT_EQ(storage_->Rename("d", "d/inside").code(), absl::StatusCode::kInvalidArgument);
  if (!traits().has_directories) {
    ExpectError(storage_->Rename("d", "other"), absl::StatusCode::kUnimplemented, "Rename",
                storage_->Describe("d"));
    EXPECT_EQ(*storage_->List(""), Names({"d/", "empty/", "file"}));
    return;
  }
  ExpectError(storage_->Rename("d", "empty"), kCode, "Rename", storage_->Describe("empty"));
  ExpectError(storage_->Rename("d", "file"), kCode, "Rename", storage_->Describe("file"));
  EXPECT_EQ(*storage_->List(""), Names({"d/", "empty/", "file"}));
  ASSERT_OK(storage_->Rename("d", "empty/moved"));
  EXPECT_EQ(Get("empty/moved/file"), "x");
  EXPECT_EQ(*storage_->List(""), Names({"empty/", "file"}));
}

TEST_P(StorageConformance, WritesAFileAsAWholeUnlessItsNameIsTaken) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  bool called = false;
  const auto ready = [&] {
    called = true;
    EXPECT_FALSE(storage_->Open("d/file").ok());
    return absl::OkStatus();
  };
  ASSERT_OK(storage_->Write("d/file", "first", {.ready = ready}));
  EXPECT_TRUE(called);
  EXPECT_EQ(Get("d/file"), "first");
  EXPECT_TRUE(absl::IsAlreadyExists(storage_->Write("d/file", "second", {}).status()));
  EXPECT_EQ(Get("d/file"), "first");
  EXPECT_EQ(*storage_->List("d"), Names({"file"}));
}

TEST_P(StorageConformance, WritesNothingThatIsNotReady) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  const absl::Status refused = absl::AbortedError("not yet");
  EXPECT_EQ(storage_->Write("d/file", "x", {.ready = [&] { return refused; }}).status(), refused);
  EXPECT_EQ(storage_->Open("d/file").status().code(), absl::StatusCode::kNotFound);
  if (traits().has_directories) EXPECT_EQ(*storage_->List("d"), Names());
}

TEST_P(StorageConformance, ReadsAFileAsAWhole) {
  Put("file", "contents");
  EXPECT_EQ(storage_->Read("file", 8)->contents, "contents");
  EXPECT_TRUE(absl::IsResourceExhausted(storage_->Read("file", 7).status()));
  EXPECT_TRUE(absl::IsNotFound(storage_->Read("none", 7).status()));
  if (storage_->Traits().replaces_versions) EXPECT_NE(storage_->Read("file", 8)->version, "");
}

TEST_P(StorageConformance, ReplacesOnlyTheVersionThatItIsGiven) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  ASSERT_OK(storage_->Write("d/file", "first", {}));
  const std::string version = storage_->Read("d/file", 100)->version;
  const bool replaces = storage_->Traits().replaces_versions;
  if (!replaces || !traits().honors_conditions) {
    const WriteCondition condition = {.version = replaces ? version : "any"};
    ExpectError(storage_->Write("d/file", "second", condition).status(),
                absl::StatusCode::kUnimplemented, "Write", "d/file");
    EXPECT_EQ(Get("d/file"), "first");
    return;
  }
  const absl::Status refused = absl::AbortedError("not yet");
  EXPECT_EQ(storage_->Write("d/file", "x", {.version = version, .ready = [&] { return refused; }})
                .status(),
            refused);
  ASSERT_OK(storage_->Write("d/other", "other", {}));
  const std::string other = storage_->Read("d/other", 100)->version;
  EXPECT_NE(other, version);
  EXPECT_TRUE(absl::IsAborted(storage_->Write("d/file", "x", {.version = other}).status()));
  EXPECT_TRUE(absl::IsAborted(storage_->Write("d/none", "x", {.version = version}).status()));
  EXPECT_EQ(Get("d/file"), "first");
  ASSERT_OK_AND_ASSIGN(const std::string second,
                       storage_->Write("d/file", "second", {.version = version}));
  EXPECT_EQ(Get("d/file"), "second");
  EXPECT_EQ(storage_->Read("d/file", 100)->version, second);
  EXPECT_TRUE(absl::IsAborted(storage_->Write("d/file", "third", {.version = version}).status()));
  EXPECT_EQ(*storage_->List("d"), Names({"file", "other"}));
  ASSERT_OK(storage_->DeleteVersion("d/file", version));
  ASSERT_OK(storage_->DeleteVersion("d/none", version));
  EXPECT_EQ(Get("d/file"), "second");
  ASSERT_OK(storage_->DeleteVersion("d/file", second));
  EXPECT_EQ(*storage_->List("d"), Names({"other"}));
}

// If several programs replace one version at the same time, exactly one succeeds.
TEST_P(StorageConformance, OneOfManyReplacesAVersion) {
  if (!storage_->Traits().replaces_versions || !traits().honors_conditions) return;
  constexpr int kWriters = 8, kRounds = 20;
  ASSERT_OK_AND_ASSIGN(std::string version, storage_->Write("file", "first", {}));
  for (int round = 0; round < kRounds; ++round) {
    std::vector<absl::StatusOr<std::string>> results(kWriters);
    const absl::Status ran = RunTasks(kWriters, kWriters, [&](int, size_t w) {
      results[w] = storage_->Write("file", absl::StrCat(round, " by ", w), {.version = version});
      return absl::OkStatus();
    });
    EXPECT_OK(ran);
    int winners = 0;
    for (int w = 0; w < kWriters; ++w) {
      if (!results[w].ok()) {
        EXPECT_TRUE(absl::IsAborted(results[w].status())) << results[w].status();
        continue;
      }
      ++winners;
      version = *results[w];
      EXPECT_EQ(Get("file"), absl::StrCat(round, " by ", w));
    }
    ASSERT_EQ(winners, 1);
    EXPECT_EQ(*storage_->List(""), Names({"file"}));
  }
}

TEST_P(StorageConformance, DeletesTheNamedFilesOfADirectory) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  for (const char* name : {"d/a", "d/b", "d/c"}) Put(name, "x");
  ASSERT_OK(storage_->DeleteFiles("d", {"a", "gone", "c"}));
  EXPECT_EQ(*storage_->List("d"), Names({"b"}));
  ASSERT_OK(storage_->DeleteFiles("d", {}));
  Put("top", "x");
  ASSERT_OK(storage_->DeleteFiles("", {"top"}));
  EXPECT_EQ(*storage_->List(""), Names({"d/"}));
}

// If several programs write one name at the same time, exactly one succeeds, with its contents.
TEST_P(StorageConformance, WritesOneOfManyAtTheSameTime) {
  constexpr int kWriters = 8;
  std::vector<absl::Status> results(kWriters);
  const absl::Status ran = RunTasks(kWriters, kWriters, [&](int, size_t w) {
    results[w] = storage_->Write("file", std::string(100, static_cast<char>('a' + w)), {}).status();
    return absl::OkStatus();
  });
  EXPECT_OK(ran);
  int winners = 0;
  for (int w = 0; w < kWriters; ++w) {
    if (!results[w].ok()) {
      EXPECT_EQ(results[w].code(), absl::StatusCode::kAlreadyExists) << results[w];
      continue;
    }
    ++winners;
    EXPECT_EQ(Get("file"), std::string(100, static_cast<char>('a' + w)));
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(*storage_->List(""), Names({"file"}));
}

TEST_P(StorageConformance, DeleteLeavesADirectoryWithContentsAlone) {
  ASSERT_OK(storage_->MakeDirectory("d"));
  Put("d/file", "x");
  ExpectError(storage_->Delete("d"), absl::StatusCode::kAlreadyExists, "Delete",
              storage_->Describe("d"));
  EXPECT_EQ(Get("d/file"), "x");
  ASSERT_OK(storage_->Delete("d/file"));
  if (traits().has_directories) ASSERT_OK(storage_->Delete("d"));
  EXPECT_EQ(*storage_->List(""), Names());
}

TEST_P(StorageConformance, DeletesFilesAndTrees) {
  Mkdir("tree/a/b");
  Mkdir("tree/empty");
  Mkdir("trees");
  for (const char* path : {"tree/1", "tree/a/2", "tree/a/b/3", "trees/4", "5"}) Put(path, path);
  ASSERT_OK(storage_->Delete("tree/1"));
  EXPECT_EQ(*storage_->List("tree"), Names({"a/", "empty/"}));
  ASSERT_OK(storage_->DeleteTree("tree"));
  EXPECT_EQ(*storage_->List(""), Names({"5", "trees/"}));
  EXPECT_EQ(storage_->Open("tree/a/2").status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK(storage_->DeleteTree("5"));
  EXPECT_EQ(*storage_->List(""), Names({"trees/"}));
  EXPECT_EQ(Get("trees/4"), "trees/4");
}

TEST_P(StorageConformance, NothingIsDeletedThroughALink) {
  EXPECT_FALSE(storage_->IsLink("none"));
  ASSERT_OK(storage_->MakeDirectory("archive/step"));
  Put("archive/step/file", "precious");
  Put("other", "other");
  EXPECT_FALSE(storage_->IsLink("archive/step"));
  EXPECT_FALSE(storage_->IsLink("archive/step/file"));
  if (GetParam().make_link == nullptr) return;
  GetParam().make_link(*storage_, "archive/step", "link");
  GetParam().make_link(*storage_, "archive", "above");
  EXPECT_TRUE(storage_->IsLink("link"));
  EXPECT_FALSE(storage_->IsLink("link/file"));

  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  for (const std::string path : {"link/file", "above/step/file"}) {
    const std::string where = storage_->Describe(path);
    EXPECT_EQ(Get(path), "precious") << "links are followed to read";
    ExpectError(storage_->Delete(path), kRefused, "Delete", where);
    ExpectError(storage_->DeleteTree(path), kRefused, "DeleteTree", where);
    ExpectError(storage_->Create(path, 0).status(), kRefused, "Create", where);
    ExpectError(storage_->Rename("other", path), absl::StatusCode::kAlreadyExists, "Rename", where);
    EXPECT_EQ(Get("archive/step/file"), "precious");
  }
  ExpectError(storage_->DeleteTree("above/step"), kRefused, "DeleteTree",
              storage_->Describe("above/step"));
  // A new file replaces nothing.
  Put("link/new", "new");
  ASSERT_OK(storage_->Rename("other", "above/step/renamed"));
  EXPECT_EQ(*storage_->List("archive/step"), Names({"file", "new", "renamed"}));
  // The links themselves can be deleted.
  ASSERT_OK(storage_->Delete("above"));
  ASSERT_OK(storage_->DeleteTree("link"));
  EXPECT_EQ(*storage_->List(""), Names({"archive/"}));
  EXPECT_EQ(*storage_->List("archive/step"), Names({"file", "new", "renamed"}));
}

TEST_P(StorageConformance, FreeBytesIsANumberOrUnimplemented) {
  const absl::StatusOr<uint64_t> free_bytes = storage_->FreeBytes();
  if (free_bytes.ok()) {
    EXPECT_GT(*free_bytes, 0);
  } else {
    EXPECT_EQ(free_bytes.status().code(), absl::StatusCode::kUnimplemented);
  }
}

TEST_P(StorageConformance, ThreadsWorkOnTheirOwnFiles) {
  for (int t = 0; t < 4; ++t) Mkdir("shared/" + std::to_string(t));
  const absl::Status ran = RunTasks(4, 4, [&](int, size_t t) -> absl::Status {
    const std::string directory = "shared/" + std::to_string(t);
    for (int i = 0; i < 10; ++i) {
      const std::string contents(10'000 + i, static_cast<char>('a' + t));
      TESSERA_RETURN_IF_ERROR(storage_->MakeDirectory(directory));
      TESSERA_RETURN_IF_ERROR(WriteAll(*storage_, directory + "/tmp", contents));
      TESSERA_RETURN_IF_ERROR(storage_->Rename(directory + "/tmp", directory + "/file"));
      TESSERA_ASSIGN_OR_RETURN(const std::string found,
                               ReadAll(*storage_, directory + "/file", 1 << 20));
      if (found != contents) return absl::DataLossError(directory);
      TESSERA_RETURN_IF_ERROR(storage_->Delete(directory + "/file"));
      TESSERA_RETURN_IF_ERROR(storage_->List("shared").status());
    }
    return absl::OkStatus();
  });
  EXPECT_OK(ran);
  EXPECT_EQ(*storage_->List("shared"), Names({"0/", "1/", "2/", "3/"}));
}

}  // namespace
}  // namespace tessera
