#include "checkpoint/save/coordinator.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/save/save_messages.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace tessera::ckpt
