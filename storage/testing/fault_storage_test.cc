#include "storage/testing/fault_storage.h"

#include "base/status_macros.h"
#include "base/testing.h"
#include "base/text.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera {
namespace {

using Names = std::vector<std::string>;

class FaultStorageTest : public testing::Test {
 protected:
  // Calls one operation of each kind, except FreeBytes, up to the first error.
  absl::Status Everything() {
    absl::Status status = storage_.MakeDirectory("d");
    if (!status.ok()) return status;
    TESSERA_ASSIGN_OR_RETURN(auto writer, storage_.Create("d/tmp", 10));
    status = writer->WriteAt(0, AsBytes("0123456789"));
    if (status.ok()) status = writer->Sync();
    if (status.ok()) status = writer->Close();
    if (status.ok()) status = storage_.Rename("d/tmp", "d/file");
    if (status.ok()) status = storage_.SyncDirectory("d");
    if (status.ok()) status = storage_.List("d").status();
    if (!status.ok()) return status;
    TESSERA_ASSIGN_OR_RETURN(auto reader, storage_.Open("d/file"));
    std::byte out[4];
    status = reader->ReadAt(2, out);
    if (status.ok()) status = storage_.Delete("d/file");
    if (status.ok()) status = storage_.DeleteTree("d");
    return status;
  }

  MemoryStorage memory_;
  FaultInjectingStorage storage_{memory_};
};

const Names kEverything = {"MakeDirectory d",      "Create d/tmp",  "WriteAt d/tmp [0, 10)",
                           "Sync d/tmp",           "Close d/tmp",   "Rename d/tmp to d/file",
                           "SyncDirectory d",      "List d",        "Open d/file",
                           "ReadAt d/file [2, 6)", "Delete d/file", "DeleteTree d"};

TEST_F(FaultStorageTest, FailsEachOperationInTurnAndOnlyIt) {
  for (size_t i = 0; i < kEverything.size(); ++i) {
    storage_.FailAt(storage_.operation_count() + i, absl::PermissionDeniedError("no"));
    const absl::Status status = Everything();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_NE(status.message().find(kEverything[i]), std::string::npos) << status;
    EXPECT_NE(status.message().find("no (injected"), std::string::npos) << status;
    // The next operation finds a working storage.
    if (i > 0) EXPECT_OK(storage_.DeleteTree("d")) << i;
    EXPECT_EQ(*memory_.List(""), Names());
  }
}

TEST_F(FaultStorageTest, AfterDeathNothingHappens) {
  for (size_t i = 0; i < kEverything.size(); ++i) {
    MemoryStorage memory;
    FaultInjectingStorage storage(memory);
    storage.DieAt(i);
    absl::Status status = storage.MakeDirectory("a");
    for (size_t k = 1; k < kEverything.size(); ++k) {
      status = WriteAll(storage, "a/" + std::to_string(k), "x");
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    const Operation died = storage.operations()[i];
    EXPECT_EQ(storage.Rename("a", "b").code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(storage.List("").status().code(), absl::StatusCode::kUnavailable);
    // Four operations per file: those before the death took effect, the one at which the process
    // died did not.
    const size_t files = i == 0 ? 0 : (i - 1 + 3) / 4;
    EXPECT_EQ(i == 0 ? memory.List("")->size() : memory.List("a")->size(), files) << died;
    storage.ClearFaults();
    EXPECT_OK(storage.MakeDirectory("a"));
  }
}

TEST_F(FaultStorageTest, TornWritesLeaveAPrefix) {
  for (bool dies : {false, true}) {
    ASSERT_OK_AND_ASSIGN(auto file, storage_.Create("file", 0));
    const int64_t next = storage_.operation_count();
    if (dies) {
      storage_.DieAt(next, /*torn_bytes=*/4);
    } else {
      storage_.FailAt(next, absl::UnavailableError("torn"), /*torn_bytes=*/4);
    }
    EXPECT_EQ(file->WriteAt(0, AsBytes("0123456789")).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(*ReadAll(memory_, "file", 100), "0123");
    // Only the first write is torn, and only a process that is alive can write the rest.
    EXPECT_EQ(file->WriteAt(4, AsBytes("456789")).ok(), !dies);
    EXPECT_EQ(*ReadAll(memory_, "file", 100), dies ? "0123" : "0123456789");
  }
}

TEST_F(FaultStorageTest, TheDiskFillsUp) {
  constexpr auto kFull = absl::StatusCode::kResourceExhausted;
  ASSERT_OK(memory_.MakeDirectory("d"));
  storage_.SetDiskBytes(100);
  EXPECT_EQ(*storage_.FreeBytes(), 100);
  EXPECT_EQ(storage_.Create("file", 101).status().code(), kFull);
  EXPECT_EQ(*memory_.List(""), Names({"d/"}));
  ASSERT_OK(WriteAll(storage_, "d/first", std::string(60, 'a')));
  EXPECT_EQ(*storage_.FreeBytes(), 40);

  ASSERT_OK_AND_ASSIGN(auto file, storage_.Create("file", 10));
  EXPECT_EQ(*storage_.FreeBytes(), 30);
  ASSERT_OK(file->WriteAt(0, AsBytes(std::string(20, 'b'))));
  const absl::Status status = file->WriteAt(20, AsBytes(std::string(30, 'c')));
  EXPECT_EQ(status.code(), kFull) << status;
  EXPECT_NE(status.message().find("memory:file"), std::string::npos) << status;
  EXPECT_EQ(*ReadAll(memory_, "file", 100), std::string(20, 'b') + std::string(20, 'c'));

  ASSERT_OK(storage_.Rename("d/first", "d/second"));
  ASSERT_OK(storage_.Delete("file"));
  EXPECT_EQ(*storage_.FreeBytes(), 40);
  ASSERT_OK(storage_.DeleteTree("d"));
  EXPECT_EQ(*storage_.FreeBytes(), 100);
}

}  // namespace
}  // namespace tessera
