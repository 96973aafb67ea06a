#include "checkpoint/storage/storage_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/aligned_buffer.h"

namespace tessera::ckpt {
namespace {

using Names = std::vector<std::string>;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}

std::span<std::byte> Bytes(std::string& text) {
  return std::as_writable_bytes(std::span<char>(text));
}

// Values at any two offsets a sector or a block apart differ.
std::string Pattern(size_t size_bytes, uint64_t seed) {
  std::string text(size_bytes, '\0');
  for (size_t i = 0; i < size_bytes; ++i) {
    text[i] = static_cast<char>((i + seed) * 0x9E3779B97F4A7C15u >> 56);
  }
  return text;
}

void Put(Storage& storage, std::string_view path, std::string_view contents) {
  const absl::Status status = WriteAll(storage, path, contents);
  ASSERT_TRUE(status.ok()) << status;
}

std::string Get(Storage& storage, std::string_view path) {
  absl::StatusOr<std::string> contents = ReadAll(storage, path, uint64_t{1} << 30);
  EXPECT_TRUE(contents.ok()) << contents.status();
  return contents.ok() ? *contents : "(unreadable)";
}

// Expects an error with the right code that names the operation and the path.
void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& operation,
                 const std::string& path) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find(operation), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find(path), std::string::npos) << status;
}

// Does not use EXPECT_EQ, which would print megabytes.
void ExpectSameBytes(std::string_view found, std::string_view expected, const std::string& what) {
  if (found == expected) return;
  ASSERT_EQ(found.size(), expected.size()) << what;
  const auto f = std::mismatch(found.begin(), found.end(), expected.begin()).first;
  FAIL() << what << ": first difference at " << (f - found.begin());
}

TEST_P(StorageConformance, WrittenBytesComeBack) {
  for (size_t size : {1, 511, 512, 4095, 4096, 4097, 65536, 100'000, 1 << 20, (1 << 20) + 1}) {
    const std::string contents = Pattern(size, size);
    Put(*storage_, "file", contents);
    ExpectSameBytes(Get(*storage_, "file"), contents, std::to_string(size));
  }
}

TEST_P(StorageConformance, EmptyFile) {
  Put(*storage_, "empty", "");
  auto file = storage_->Open("empty");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), 0);
  EXPECT_TRUE((*file)->ReadAt(0, {}).ok());
  EXPECT_EQ(Get(*storage_, "empty"), "");
}

TEST_P(StorageConformance, TheHintDoesNotDetermineTheLength) {
  for (uint64_t hint : {0, 1, 5000, 1'000'000}) {
    for (bool sync : {false, true}) {
      const std::string contents = Pattern(70'001, hint);
      auto file = storage_->Create("file", hint);
      ASSERT_TRUE(file.ok()) << file.status();
      ASSERT_TRUE((*file)->WriteAt(0, Bytes(std::string_view(contents))).ok());
      if (sync) {
        ASSERT_TRUE((*file)->Sync().ok());
        const absl::Status changed = (*file)->WriteAt(70'001, Bytes("tail"));
        EXPECT_EQ(changed.code(), traits().files_change_after_sync
                                      ? absl::StatusCode::kOk
                                      : absl::StatusCode::kFailedPrecondition)
            << changed;
      }
      ASSERT_TRUE((*file)->Close().ok());
      const bool has_tail = sync && traits().files_change_after_sync;
      ExpectSameBytes(Get(*storage_, "file"), contents + (has_tail ? "tail" : ""),
                      std::to_string(hint));
    }
  }
}

TEST_P(StorageConformance, PartsNeverWrittenAreZeros) {
  const std::string piece = Pattern(10'000, 3);
  auto file = storage_->Create("holes", 300'000);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteAt(200'001, Bytes(std::string_view(piece))).ok());
  ASSERT_TRUE((*file)->WriteAt(5'000, Bytes(std::string_view(piece))).ok());
  ASSERT_TRUE((*file)->Close().ok());
  std::string expected(210'001, '\0');
  expected.replace(200'001, piece.size(), piece).replace(5'000, piece.size(), piece);
  ExpectSameBytes(Get(*storage_, "holes"), expected, "holes");
}

TEST_P(StorageConformance, AnEmptyWriteDoesNotLengthen) {
  auto file = storage_->Create("file", 0);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->WriteAt(1'000, {}).ok());
  EXPECT_TRUE((*file)->WriteAt(0, Bytes("abc")).ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ(Get(*storage_, "file"), "abc");
}

TEST_P(StorageConformance, AlignedBuffersMoveAtAnyOffset) {
  AlignedBuffer out = *AlignedBuffer::Allocate(300'000), in = *AlignedBuffer::Allocate(300'000);
  const std::string contents = Pattern(300'000, 11);
  std::copy_n(Bytes(std::string_view(contents)).begin(), contents.size(), out.data());
  for (uint64_t offset : {0, 1, 512, 4095, 4096, 8192, 12'289}) {
    for (size_t size : {size_t{65'536}, size_t{131'072}, size_t{131'073}, size_t{300'000}}) {
      auto writer = storage_->Create("file", offset + size);
      ASSERT_TRUE(writer.ok()) << writer.status();
      ASSERT_TRUE((*writer)->WriteAt(offset, out.span().first(size)).ok());
      ASSERT_TRUE((*writer)->Close().ok());
      auto reader = storage_->Open("file");
      ASSERT_TRUE(reader.ok()) << reader.status();
      ASSERT_EQ((*reader)->size_bytes(), offset + size);
      std::fill_n(in.data(), in.size_bytes(), std::byte{0xAA});
      ASSERT_TRUE((*reader)->ReadAt(offset, in.span().first(size)).ok());
      EXPECT_TRUE(std::equal(in.data(), in.data() + size, out.data())) << offset << " " << size;
    }
  }
}

TEST_P(StorageConformance, ReadsAtEveryAlignment) {
  const std::string contents = Pattern(400'003, 5);
  Put(*storage_, "file", contents);
  auto file = storage_->Open("file");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string out(contents.size() + 64, '\0');
  for (uint64_t offset : {0, 1, 511, 4096, 4097, 65'536, 399'999}) {
    for (size_t shift : {0, 1, 16}) {
      for (size_t size : {1, 4096, 65'536, 70'000, 200'000, 400'003}) {
        const size_t n = std::min(size, contents.size() - offset);
        ASSERT_TRUE((*file)->ReadAt(offset, Bytes(out).subspan(shift, n)).ok());
        ExpectSameBytes(std::string_view(out).substr(shift, n),
                        std::string_view(contents).substr(offset, n), std::to_string(offset));
      }
    }
  }
}

TEST_P(StorageConformance, ReadsPastTheEndAreDataLoss) {
  Put(*storage_, "file", Pattern(100'000, 1));
  auto file = storage_->Open("file");
  ASSERT_TRUE(file.ok()) << file.status();
  std::string out(100'001, '\0');
  struct Case {
    uint64_t offset, size, found;
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (const Case& c : {Case{0, 100'001, 100'000}, Case{99'999, 2, 1}, Case{100'000, 1, 0},
                        Case{4096, 100'000, 95'904}, Case{1 << 30, 1, 0}, Case{kMax, 1, 0},
                        Case{kMax - 10, 100'001, 0}}) {
    const absl::Status status = (*file)->ReadAt(c.offset, Bytes(out).first(c.size));
    ExpectError(status, absl::StatusCode::kDataLoss, "ReadAt", storage_->Describe("file"));
    const std::string message(status.message());
    for (uint64_t number : {c.offset, c.size, c.found, uint64_t{100'000}}) {
      EXPECT_NE(message.find(std::to_string(number)), std::string::npos)
          << number << ": " << message;
    }
  }
  EXPECT_TRUE((*file)->ReadAt(100'000, {}).ok());
}

TEST_P(StorageConformance, ImpossibleOffsetsAreRefused) {
  auto file = storage_->Create("file", 0);
  ASSERT_TRUE(file.ok()) << file.status();
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (uint64_t offset : {kMax, kMax / 2, kMax - 2}) {
    ExpectError((*file)->WriteAt(offset, Bytes("abc")), absl::StatusCode::kResourceExhausted,
                "WriteAt", storage_->Describe("file"));
  }
  EXPECT_TRUE((*file)->WriteAt(0, Bytes("abc")).ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ(Get(*storage_, "file"), "abc");
}

TEST_P(StorageConformance, AClosedFileRefusesEverything) {
  auto file = storage_->Create("file", 0);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Close().ok());
  const std::string where = storage_->Describe("file");
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  ExpectError((*file)->WriteAt(0, Bytes("abc")), kCode, "WriteAt", where);
  ExpectError((*file)->Sync(), kCode, "Sync", where);
  ExpectError((*file)->Close(), kCode, "Close", where);
}

TEST_P(StorageConformance, CreateReplacesAndOldReadersKeepWhatTheyHave) {
  Put(*storage_, "file", "the old, longer contents");
  auto old_reader = storage_->Open("file");
  ASSERT_TRUE(old_reader.ok()) << old_reader.status();
  Put(*storage_, "file", "new");
  EXPECT_EQ(Get(*storage_, "file"), "new");
  std::string out((*old_reader)->size_bytes(), '\0');
  const absl::Status read = (*old_reader)->ReadAt(0, Bytes(out));
  if (!traits().readers_keep_replaced_files) {
    ExpectError(read, absl::StatusCode::kUnavailable, "ReadAt", storage_->Describe("file"));
    return;
  }
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_EQ(out, "the old, longer contents");
}

TEST_P(StorageConformance, MissingThingsAreNotFound) {
  constexpr auto kCode = absl::StatusCode::kNotFound;
  const std::string where = storage_->Describe("no/such");
  EXPECT_NE(where.find("no/such"), std::string::npos);
  ExpectError(storage_->Open("no/such").status(), kCode, "Open", where);
  ExpectError(storage_->List("no/such").status(), kCode, "List", where);
  ExpectError(storage_->Delete("no/such"), kCode, "Delete", where);
  ExpectError(storage_->DeleteTree("no/such"), kCode, "DeleteTree", where);
  ExpectError(storage_->Rename("no/such", "b"), kCode, "Rename", where);
  Put(*storage_, "a", "a");
  if (traits().has_directories) {
    ExpectError(storage_->Create("no/such", 0).status(), kCode, "Create", where);
    ExpectError(storage_->Create("no/such", 100'000).status(), kCode, "Create", where);
    ExpectError(storage_->SyncDirectory("no/such"), kCode, "SyncDirectory", where);
    ExpectError(storage_->Rename("a", "no/such"), kCode, "Rename", where);
  }
  // A file is not a directory.
  ExpectError(storage_->Open("a/b").status(), kCode, "Open", storage_->Describe("a/b"));
  ExpectError(storage_->List("a").status(), kCode, "List", storage_->Describe("a"));
  EXPECT_EQ(Get(*storage_, "a"), "a");
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
  Put(*storage_, "good", "x");
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
                     std::string(5000, 'y')};
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
  // The root is a directory, and cannot be replaced.
  EXPECT_EQ(storage_->Open("").status().code(), kCode);
  EXPECT_EQ(storage_->Create("", 0).status().code(), kCode);
  EXPECT_EQ(storage_->Rename("", "b").code(), kCode);
  EXPECT_EQ(storage_->Rename("good", "").code(), kCode);
  EXPECT_EQ(storage_->Delete("").code(), kCode);
  EXPECT_EQ(storage_->DeleteTree("").code(), kCode);
  EXPECT_TRUE(storage_->MakeDirectory("").ok());
  EXPECT_TRUE(storage_->SyncDirectory("").ok());
  EXPECT_EQ(*storage_->List(""), Names({"good"}));
}

TEST_P(StorageConformance, NamesMayHoldAnythingElse) {
  const Names names = {" ",       "...", ".hidden", "a\nb", "model-00001-of-00002.safetensors",
                       "\xc3\xa9"};
  for (const std::string& name : names) Put(*storage_, name, name);
  for (const std::string& name : names) EXPECT_EQ(Get(*storage_, name), name);
  Names sorted = names;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(*storage_->List(""), sorted);
}

TEST_P(StorageConformance, ListsSortedWithDirectoriesMarked) {
  EXPECT_EQ(*storage_->List(""), Names());
  Mkdir("b/inner");
  Mkdir("empty");
  Put(*storage_, "c", "");
  Put(*storage_, "a", "");
  Put(*storage_, "b/file", "");
  EXPECT_EQ(*storage_->List(""), Names({"a", "b/", "c", "empty/"}));
  EXPECT_EQ(*storage_->List("b"), Names({"file", "inner/"}));
  EXPECT_EQ(*storage_->List("empty"), traits().has_directories ? Names() : Names({".kept"}));
}

TEST_P(StorageConformance, MakeDirectoryMakesParentsAndIsIdempotent) {
  ASSERT_TRUE(storage_->MakeDirectory("a/b/c").ok());
  ASSERT_TRUE(storage_->MakeDirectory("a/b/c").ok());
  ASSERT_TRUE(storage_->MakeDirectory("a").ok());
  ASSERT_TRUE(storage_->MakeDirectory("a/b/d").ok());
  Put(*storage_, "a/file", "x");
  if (!traits().has_directories) return;
  EXPECT_EQ(*storage_->List("a/b"), Names({"c/", "d/"}));
  ExpectError(storage_->MakeDirectory("a/file"), absl::StatusCode::kAlreadyExists, "MakeDirectory",
              storage_->Describe("a/file"));
  EXPECT_FALSE(storage_->MakeDirectory("a/file/below").ok());
  EXPECT_EQ(Get(*storage_, "a/file"), "x");
}

TEST_P(StorageConformance, RenameNeverReplacesFiles) {
  ASSERT_TRUE(storage_->MakeDirectory("d").ok());
  Put(*storage_, "from", "new");
  Put(*storage_, "d/to", "old");
  ExpectError(storage_->Rename("from", "d/to"), absl::StatusCode::kAlreadyExists, "Rename",
              storage_->Describe("d/to"));
  EXPECT_EQ(Get(*storage_, "d/to"), "old");
  EXPECT_EQ(Get(*storage_, "from"), "new");
  ASSERT_TRUE(storage_->Delete("d/to").ok());
  ASSERT_TRUE(storage_->Rename("from", "d/to").ok());
  EXPECT_EQ(Get(*storage_, "d/to"), "new");
  EXPECT_EQ(*storage_->List(""), Names({"d/"}));
  ASSERT_TRUE(storage_->Rename("d/to", "d/fresh").ok());
  EXPECT_EQ(*storage_->List("d"), Names({"fresh"}));
  ASSERT_TRUE(storage_->SyncDirectory("d").ok());
  ASSERT_TRUE(storage_->SyncDirectory("").ok());
}

TEST_P(StorageConformance, RenameNeverReplacesDirectories) {
  Mkdir("d");
  Mkdir("empty");
  Put(*storage_, "d/file", "x");
  Put(*storage_, "file", "y");
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
  ASSERT_TRUE(storage_->Rename("d", "empty/moved").ok());
  EXPECT_EQ(Get(*storage_, "empty/moved/file"), "x");
  EXPECT_EQ(*storage_->List(""), Names({"empty/", "file"}));
}

TEST_P(StorageConformance, PublishesAFileUnlessItsNameIsTaken) {
  ASSERT_TRUE(storage_->MakeDirectory("d").ok());
  bool called = false;
  ASSERT_TRUE(storage_
                  ->Publish("d/file", "first",
                            [&] {
                              called = true;
                              EXPECT_FALSE(storage_->Open("d/file").ok());
                              return absl::OkStatus();
                            })
                  .ok());
  EXPECT_TRUE(called);
  EXPECT_EQ(Get(*storage_, "d/file"), "first");
  EXPECT_EQ(storage_->Publish("d/file", "second", nullptr).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Get(*storage_, "d/file"), "first");
  EXPECT_EQ(*storage_->List("d"), Names({"file"}));
}

TEST_P(StorageConformance, PublishesNothingThatIsNotReady) {
  ASSERT_TRUE(storage_->MakeDirectory("d").ok());
  const absl::Status refused = absl::AbortedError("not yet");
  EXPECT_EQ(storage_->Publish("d/file", "x", [&] { return refused; }), refused);
  EXPECT_EQ(storage_->Open("d/file").status().code(), absl::StatusCode::kNotFound);
  if (traits().has_directories) {
    EXPECT_EQ(*storage_->List("d"), Names());
  }
}

TEST_P(StorageConformance, ExchangesOnlyExpectedContentsWhereDirectoriesCannotBeRenamed) {
  ASSERT_TRUE(storage_->MakeDirectory("d").ok());
  ASSERT_TRUE(storage_->Publish("d/file", "first", nullptr).ok());
  if (storage_->RenamesDirectories()) {
    EXPECT_EQ(storage_->Exchange("d/file", "first", "second", nullptr).code(),
              absl::StatusCode::kUnimplemented);
    EXPECT_EQ(Get(*storage_, "d/file"), "first");
    return;
  }
  const absl::Status refused = absl::AbortedError("not yet");
  EXPECT_EQ(storage_->Exchange("d/file", "first", "second", [&] { return refused; }).code(),
            refused.code());
  EXPECT_EQ(storage_->Exchange("d/file", "other", "second", nullptr).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(storage_->Exchange("d/none", "", "second", nullptr).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Get(*storage_, "d/file"), "first");
  ASSERT_TRUE(storage_->Exchange("d/file", "first", "second", nullptr).ok());
  EXPECT_EQ(Get(*storage_, "d/file"), "second");
  EXPECT_EQ(*storage_->List("d"), Names({"file"}));
}

TEST_P(StorageConformance, DeletesTheNamedFilesOfADirectory) {
  ASSERT_TRUE(storage_->MakeDirectory("d").ok());
  for (const char* name : {"d/a", "d/b", "d/c"}) Put(*storage_, name, "x");
  ASSERT_TRUE(storage_->DeleteFiles("d", {"a", "gone", "c"}).ok());
  EXPECT_EQ(*storage_->List("d"), Names({"b"}));
  ASSERT_TRUE(storage_->DeleteFiles("d", {}).ok());
  Put(*storage_, "top", "x");
  ASSERT_TRUE(storage_->DeleteFiles("", {"top"}).ok());
  EXPECT_EQ(*storage_->List(""), Names({"d/"}));
}

// Of any number of writers at the same time, exactly one succeeds, and its contents are there.
TEST_P(StorageConformance, PublishesOneOfManyAtTheSameTime) {
  constexpr int kWriters = 8;
  std::vector<absl::Status> results(kWriters);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      results[w] = storage_->Publish("file", std::string(100, static_cast<char>('a' + w)), nullptr);
    });
  }
  for (std::thread& writer : writers) writer.join();
  int winners = 0;
  for (int w = 0; w < kWriters; ++w) {
    if (!results[w].ok()) {
      EXPECT_EQ(results[w].code(), absl::StatusCode::kAlreadyExists) << results[w];
      continue;
    }
    ++winners;
    EXPECT_EQ(Get(*storage_, "file"), std::string(100, static_cast<char>('a' + w)));
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(*storage_->List(""), Names({"file"}));
}

TEST_P(StorageConformance, DeleteLeavesADirectoryWithContentsAlone) {
  ASSERT_TRUE(storage_->MakeDirectory("d").ok());
  Put(*storage_, "d/file", "x");
  ExpectError(storage_->Delete("d"), absl::StatusCode::kAlreadyExists, "Delete",
              storage_->Describe("d"));
  EXPECT_EQ(Get(*storage_, "d/file"), "x");
  ASSERT_TRUE(storage_->Delete("d/file").ok());
  if (traits().has_directories) {
    ASSERT_TRUE(storage_->Delete("d").ok());
  }
  EXPECT_EQ(*storage_->List(""), Names());
}

TEST_P(StorageConformance, DeletesFilesAndTrees) {
  Mkdir("tree/a/b");
  Mkdir("tree/empty");
  Mkdir("trees");
  for (const char* path : {"tree/1", "tree/a/2", "tree/a/b/3", "trees/4", "5"}) {
    Put(*storage_, path, path);
  }
  ASSERT_TRUE(storage_->Delete("tree/1").ok());
  EXPECT_EQ(*storage_->List("tree"), Names({"a/", "empty/"}));
  ASSERT_TRUE(storage_->DeleteTree("tree").ok());
  EXPECT_EQ(*storage_->List(""), Names({"5", "trees/"}));
  EXPECT_EQ(storage_->Open("tree/a/2").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(storage_->DeleteTree("5").ok());
  EXPECT_EQ(*storage_->List(""), Names({"trees/"}));
  EXPECT_EQ(Get(*storage_, "trees/4"), "trees/4");
}

TEST_P(StorageConformance, NothingIsDeletedThroughALink) {
  EXPECT_FALSE(storage_->IsLink("none"));
  ASSERT_TRUE(storage_->MakeDirectory("archive/step").ok());
  Put(*storage_, "archive/step/file", "precious");
  Put(*storage_, "other", "other");
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
    EXPECT_EQ(Get(*storage_, path), "precious") << "links are followed to read";
    ExpectError(storage_->Delete(path), kRefused, "Delete", where);
    ExpectError(storage_->DeleteTree(path), kRefused, "DeleteTree", where);
    ExpectError(storage_->Create(path, 0).status(), kRefused, "Create", where);
    ExpectError(storage_->Rename("other", path), absl::StatusCode::kAlreadyExists, "Rename", where);
    EXPECT_EQ(Get(*storage_, "archive/step/file"), "precious");
  }
  ExpectError(storage_->DeleteTree("above/step"), kRefused, "DeleteTree",
              storage_->Describe("above/step"));
  // A new file replaces nothing.
  Put(*storage_, "link/new", "new");
  ASSERT_TRUE(storage_->Rename("other", "above/step/renamed").ok());
  EXPECT_EQ(*storage_->List("archive/step"), Names({"file", "new", "renamed"}));
  // The links themselves can be deleted.
  ASSERT_TRUE(storage_->Delete("above").ok());
  ASSERT_TRUE(storage_->DeleteTree("link").ok());
  EXPECT_EQ(*storage_->List(""), Names({"archive/"}));
  EXPECT_EQ(*storage_->List("archive/step"), Names({"file", "new", "renamed"}));
}

TEST_P(StorageConformance, ReadAllIsBounded) {
  Put(*storage_, "file", "12345");
  EXPECT_EQ(*ReadAll(*storage_, "file", 5), "12345");
  const absl::Status status = ReadAll(*storage_, "file", 4).status();
  ExpectError(status, absl::StatusCode::kResourceExhausted, "5 bytes", storage_->Describe("file"));
}

TEST_P(StorageConformance, FreeBytesIsANumberOrUnimplemented) {
  const absl::StatusOr<uint64_t> free_bytes = storage_->FreeBytes();
  if (free_bytes.ok()) {
    EXPECT_GT(*free_bytes, 0);
  } else {
    EXPECT_EQ(free_bytes.status().code(), absl::StatusCode::kUnimplemented);
  }
}

TEST_P(StorageConformance, ThreadsWriteAndReadOneFile) {
  constexpr int kThreads = 4;
  constexpr size_t kPiece = 100'003;  // not aligned: neighbours share blocks
  constexpr int kPieces = 24;
  const std::string contents = Pattern(kPiece * kPieces, 77);
  auto file = storage_->Create("file", contents.size());
  ASSERT_TRUE(file.ok()) << file.status();
  std::atomic<int> next = 0, failures = 0;
  const auto run = [&](const std::function<bool(size_t offset)>& piece) {
    next = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = next++; i < kPieces; i = next++) failures += !piece(i * kPiece);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  run([&](size_t offset) {
    return (*file)->WriteAt(offset, Bytes(std::string_view(contents).substr(offset, kPiece))).ok();
  });
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  auto reader = storage_->Open("file");
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string found(contents.size(), '\0');
  run([&](size_t offset) {
    return (*reader)->ReadAt(offset, Bytes(found).subspan(offset, kPiece)).ok();
  });
  EXPECT_EQ(failures, 0);
  ExpectSameBytes(found, contents, "threads");
}

TEST_P(StorageConformance, ThreadsWorkOnTheirOwnFiles) {
  for (int t = 0; t < 4; ++t) Mkdir("shared/" + std::to_string(t));
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string directory = "shared/" + std::to_string(t);
      for (int i = 0; i < 10; ++i) {
        const std::string contents = Pattern(10'000 + i, t);
        const bool ok = storage_->MakeDirectory(directory).ok() &&
                        WriteAll(*storage_, directory + "/tmp", contents).ok() &&
                        storage_->Rename(directory + "/tmp", directory + "/file").ok() &&
                        ReadAll(*storage_, directory + "/file", 1 << 20).value() == contents &&
                        storage_->Delete(directory + "/file").ok() && storage_->List("shared").ok();
        failures += !ok;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(*storage_->List("shared"), Names({"0/", "1/", "2/", "3/"}));
}

// Compared with a string: sequential overlapping writes of any size at any offset.
TEST_P(StorageConformance, RandomWritesAgreeWithAString) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t n) { return random() % n; };
  AlignedBuffer aligned = *AlignedBuffer::Allocate(400'000);
  for (int round = 0; round < 4; ++round) {
    std::string expected;
    auto file = storage_->Create("file", below(2) * below(1'000'000));
    ASSERT_TRUE(file.ok()) << file.status();
    for (int write = 0; write < 20; ++write) {
      const uint64_t unit = below(2) == 0 ? 1 : 4096;
      const uint64_t offset = below(600'000) / unit * unit;
      const size_t size = (below(3) == 0 ? below(300'000) : below(9'000)) / unit * unit;
      const size_t shift = below(2) * below(64);
      const std::string piece = Pattern(size, random());
      std::copy_n(Bytes(std::string_view(piece)).begin(), size, aligned.data() + shift);
      ASSERT_TRUE((*file)->WriteAt(offset, aligned.span().subspan(shift, size)).ok());
      if (size > 0) {
        expected.resize(std::max(expected.size(), offset + size));
        expected.replace(offset, size, piece);
      }
      if (below(10) == 0 && traits().files_change_after_sync) {
        ASSERT_TRUE((*file)->Sync().ok());
      }
    }
    ASSERT_TRUE((*file)->Close().ok());
    ExpectSameBytes(Get(*storage_, "file"), expected, "whole, round " + std::to_string(round));
    auto reader = storage_->Open("file");
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (int read = 0; read < 20; ++read) {
      const uint64_t offset = below(expected.size() + 1);
      const size_t size = below(std::min<uint64_t>(expected.size() - offset, 390'000) + 1);
      const size_t shift = below(64);
      ASSERT_TRUE((*reader)->ReadAt(offset, aligned.span().subspan(shift, size)).ok());
      const auto* found = reinterpret_cast<const char*>(aligned.data() + shift);
      ExpectSameBytes({found, size}, std::string_view(expected).substr(offset, size), "part");
    }
  }
}

}  // namespace
}  // namespace tessera::ckpt
