// Checkpoints of every released format version keep loading, bit for bit.

#include <optional>
#include <string>

#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/golden/golden_state.h"

namespace tessera {
namespace {

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  GoldenTest()
      : folder_(*ckpt::CheckpointFolder::Open(std::string("tests/golden/") + GetParam())) {}
  const ckpt::CheckpointFolder folder_;
};

TEST_P(GoldenTest, Verifies) {
  ASSERT_OK_AND_ASSIGN(const auto list, folder_.List());
  ASSERT_EQ(list.size(), 1);
  ASSERT_OK_AND_ASSIGN(const auto report,
                       folder_.Verify("step-00000007", {.digests = true, .io_threads = 2}));
  EXPECT_TRUE(report.damage.empty());
}

TEST_P(GoldenTest, LoadsUnderAnySharding) {
  const GoldenState expected(true, 1);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, folder_.At(7));
  for (int cuts = 1; cuts <= 5; ++cuts) {
    GoldenState state(false, cuts);
    ASSERT_OK_AND_ASSIGN(const auto report, checkpoint.Load(state.dict()));
    EXPECT_EQ(state.memory(), expected.memory());
  }
}

TEST_P(GoldenTest, MetadataIsWhatWasSaved) {
  ASSERT_OK_AND_ASSIGN(auto manifest, ckpt::ReadManifest(folder_.storage(), "step-00000007"));
  EXPECT_EQ(manifest.tensors_size(), 8);
  EXPECT_EQ(manifest.tensors(7).alias_of(), "wte.weight");
  manifest.clear_tensors();
  manifest.clear_files();
  manifest.clear_format_major();
  ckpt::Manifest expected = GoldenState::Metadata();
  if (manifest.format_minor() < 1) {
    expected.mutable_trainer()->clear_numerics();
    expected.mutable_trainer()->mutable_data()->clear_complete_fingerprint();
  }
  if (manifest.format_minor() < 2) expected.mutable_topology()->clear_sequence_parallel();
  if (manifest.format_minor() < 3) expected.mutable_trainer()->clear_health();
  manifest.clear_format_minor();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(manifest, expected));
}

TEST_P(GoldenTest, PartitionsAreWhatWasSaved) {
  ASSERT_OK_AND_ASSIGN(const auto manifest, ckpt::ReadManifest(folder_.storage(), "step-00000007"));
  GoldenState expected(false, 1);
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    const ckpt::LogicalTensor& tensor = manifest.tensors(t);
    const std::optional<Partition>& partition = expected.dict().tensors[t].partition;
    ASSERT_EQ(tensor.name(), expected.dict().tensors[t].name);
    EXPECT_EQ(tensor.has_partition(), manifest.format_minor() >= 2 && partition.has_value());
    if (tensor.has_partition()) EXPECT_EQ(ckpt::FromProto(tensor.partition()), *partition);
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, GoldenTest, testing::Values("v1", "v1_1", "v1_2", "v1_3"));

}  // namespace
}  // namespace tessera
