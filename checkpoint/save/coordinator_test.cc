// Rank 0 commits what was planned, as long as it may, and repeats a request only behind a fence.

#include "checkpoint/save/coordinator.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/forwarding_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

// As a rank of another build may send it.
TEST(CoordinatorTest, AReportOfWhatIsNotInThePlanIsAnError) {
  for (const bool is_file : {true, false}) {
    MemoryStorage storage;
    const Manifest metadata;
    Coordinator coordinator(storage, metadata, nullptr);
    WriteReport report;
    if (is_file) {
      report.add_files()->set_file_index(3);
    } else {
      report.add_tensors()->set_manifest_tensor(3);
    }
    const absl::Status committed =
        coordinator.Commit({WriteReport().SerializeAsString(), report.SerializeAsString()})
            .status();
    EXPECT_TRUE(absl::IsInternal(committed)) << committed;
    EXPECT_THAT(
        std::string(committed.message()),
        ::testing::HasSubstr(absl::StrCat("rank 1 sent a report of a ", is_file ? "file" : "tensor",
                                          " that is not in the plan")));
  }
}

// Sends each request that writes a file twice, as after an answer that was lost.
class RepeatingStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    if (condition.ready) TESSERA_RETURN_IF_ERROR(condition.ready());
    return ForwardingStorage::Write(path, contents, condition);
  }
};

TEST(CoordinatorTest, ACommitIsAllowedImmediatelyBeforeEachRequest) {
  for (const int allowed : {0, 1, 2}) {
    MemoryStorage memory;
    RepeatingStorage storage(memory);
    const Manifest metadata, layout;
    int asked = 0;
    Coordinator coordinator(
        storage, metadata, [](uint64_t) { return ""; }, /*overwrite=*/false,
        [&]() -> absl::Status {
          if (++asked <= allowed) return absl::OkStatus();
          return absl::FailedPreconditionError("taken over");
        });
    ASSERT_OK(coordinator.Prepare({.layout = layout, .is_new = true}).status());
    EXPECT_EQ(asked, 0);
    const absl::Status committed = coordinator.Commit({WriteReport().SerializeAsString()}).status();
    EXPECT_EQ(committed,
              allowed == 2 ? absl::OkStatus() : absl::FailedPreconditionError("taken over"));
    EXPECT_EQ(asked, allowed == 0 ? 1 : 2);
    EXPECT_EQ(memory.Open("step-00000000/manifest.pb").ok(), allowed == 2);
  }
}

TEST(CoordinatorTest, ARequestIsRepeatedOnlyBehindAFence) {
  MemoryStorage memory;
  FaultInjectingStorage unfenced(memory);
  unfenced.FailWhere(
      [](const Operation& call) { return call.path.find("fenced") != std::string::npos; },
      absl::PermissionDeniedError("no fence"));
  RepeatingStorage storage(unfenced);
  const Manifest metadata, layout;
  Coordinator coordinator(storage, metadata, [](uint64_t) { return ""; });
  ASSERT_OK(coordinator.Prepare({.layout = layout, .is_new = true}).status());
  const absl::Status committed = coordinator.Commit({WriteReport().SerializeAsString()}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(committed)) << committed;
  EXPECT_TRUE(absl::IsNotFound(memory.Open("step-00000000/manifest.pb").status()));
}

TEST(CoordinatorTest, ACheckpointMayTakeAllTheRoomThatThereIs) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  const Manifest metadata;
  Manifest layout;
  DataFile& file = *layout.add_files();
  file.set_path("model-00001-of-00001.safetensors");
  file.set_chunk_bytes(64);
  file.set_size_bytes(100);
  for (const uint64_t free : {100, 99}) {
    storage.SetDiskBytes(free);
    Coordinator coordinator(storage, metadata, [](uint64_t) { return ""; });
    const absl::Status prepared = coordinator.Prepare({.layout = layout, .is_new = true}).status();
    EXPECT_EQ(absl::IsResourceExhausted(prepared), free < 100) << prepared;
  }
}

TEST(CoordinatorTest, AStorageThatCannotSayHowMuchRoomItHasIsAnError) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  storage.FailWhere([](const Operation& call) { return call.kind == OperationKind::kFreeBytes; },
                    absl::UnavailableError("no answer"));
  const Manifest metadata, layout;
  Coordinator coordinator(storage, metadata, [](uint64_t) { return ""; });
  const absl::Status prepared = coordinator.Prepare({.layout = layout, .is_new = true}).status();
  EXPECT_TRUE(absl::IsUnavailable(prepared)) << prepared;
}

}  // namespace
}  // namespace tessera::ckpt
