// Checkpoints in an object store: saved by some ranks and loaded by others, through failures that
// pass.

#include <cstdint>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/s3_runs.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/s3/s3_storage.h"
#include "storage/s3/testing/s3_server.h"

namespace tessera::ckpt {
namespace {

using s3::Fault;
using s3::FaultKind;
using s3::S3Server;
using s3::Vendor;

std::unique_ptr<Storage> MustOpen(const S3Server& server, bool create_root = true) {
  return OrFail(OpenS3Storage({.client = server.ForClient(),
                               .prefix = "runs",
                               .create_root = create_root,
                               .own_uploads = ForSaving({}).own_uploads}));
}

std::vector<WholeTensor> S3Tensors(uint64_t seed, int64_t rows) {
  std::mt19937_64 random(seed);
  return {RandomTensor("weight", TensorRole::kWeight, DType::kF32, {rows, 1000}, random),
          RandomTensor("bias", TensorRole::kWeight, DType::kF32, {7}, random)};
}

absl::Status SaveStep(Storage& storage, int64_t step, int ranks, int64_t rows) {
  const std::vector<WholeTensor> tensors = S3Tensors(step, rows);
  std::vector<absl::Status> statuses(ranks);
  RunRanks(ranks, [&](ProcessGroup& group) {
    const LocalState state = RowsOf(tensors, group.rank(), ranks, /*fill=*/true);
    statuses[group.rank()] =
        CheckpointFolder(storage).Save(step, state.dict, On(group, SaveOptions())).status();
  });
  return statuses[0];
}

// Whether the checkpoint of that step is there and whole.
testing::AssertionResult Loads(Storage& storage, int64_t step, int ranks, int64_t rows) {
  const std::vector<WholeTensor> tensors = S3Tensors(step, rows);
  std::vector<absl::Status> statuses(ranks);
  std::vector<bool> same(ranks, true);
  RunRanks(ranks, [&](ProcessGroup& group) {
    const int rank = group.rank();
    LocalState state = RowsOf(tensors, rank, ranks, /*fill=*/false);
    statuses[rank] =
        LoadCheckpoint(storage, StepDirectoryName(step), state.dict, On(group, LoadOptions()))
            .status();
    bool equal = true;
    for (size_t t = 0; t < tensors.size(); ++t) {
      equal &= LocalState::Holds(state.dict.tensors[t].shards[0], tensors[t]);
    }
    same[rank] = equal;
  });
  for (int r = 0; r < ranks; ++r) {
    if (!statuses[r].ok()) return testing::AssertionFailure() << "rank " << r << statuses[r];
    if (!same[r]) return testing::AssertionFailure() << "rank " << r << " has other bytes";
  }
  return testing::AssertionSuccess();
}

TEST(S3CheckpointTest, BytesThatAreDamagedOnTheirWayAreReadAgainAFewTimes) {
  S3Server server;
  const std::shared_ptr<Storage> storage = MustOpen(server);
  ASSERT_OK(SaveStep(*storage, 1, 1, 100));
  const Fault damaged_data = {
      .kind = FaultKind::kDamageAnswer, .method = "GET", .key_part = "/model-", .times = 2};
  server.AddFault(damaged_data);
  EXPECT_TRUE(Loads(*storage, 1, 1, 100));
  EXPECT_EQ(server.fault_count(), 2);
  // Nor is a checkpoint skipped because of a damaged answer.
  server.AddFault(
      {.kind = FaultKind::kDamageAnswer, .method = "GET", .key_part = "/manifest.pb", .times = 2});
  SingleProcessGroup alone;
  ASSERT_OK_AND_ASSIGN(
      const auto resumed,
      ResumeFromLatest(storage, alone, {}, [](const Checkpoint&) { return absl::OkStatus(); }));
  EXPECT_TRUE(resumed.checkpoint.has_value());
  EXPECT_TRUE(resumed.skipped.empty());
  EXPECT_EQ(server.fault_count(), 4);

  Fault always = damaged_data;
  always.times = kForever;
  server.AddFault(always);
  EXPECT_FALSE(Loads(*storage, 1, 1, 100)) << "what stays damaged is refused";
}

TEST(S3CheckpointTest, SavedByFourRanksAndLoadedByThree) {
  constexpr int64_t kRows = 9'000;  // 9 MB a rank: two parts each
  S3Server server;
  const auto storage = MustOpen(server);
  ASSERT_OK(SaveStep(*storage, 7, 4, kRows));
  EXPECT_EQ(CheckpointFolder(*storage).FindLatest()->checkpoint.step, 7);
  EXPECT_TRUE(Loads(*storage, 7, 3, kRows));
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       VerifyCheckpoint(*storage, StepDirectoryName(7), {.digests = true}));
  EXPECT_TRUE(verified.damage.empty());
  EXPECT_EQ(server.upload_count(), 0);
  int parts = 0;
  for (const std::string& request : server.requests()) {
    parts += absl::StrContains(request, "partNumber=");
  }
  EXPECT_GE(parts, 8) << "it was to be uploaded in parts";
}

// In the stores of all vendors.
class S3VendorCheckpointTest : public testing::TestWithParam<Vendor> {};
INSTANTIATE_TEST_SUITE_P(Vendors, S3VendorCheckpointTest,
                         testing::Values(Vendor::kAmazon, Vendor::kVolcano, Vendor::kAliyun,
                                         Vendor::kGoogle));

TEST_P(S3VendorCheckpointTest, FailuresThatPassAreNotNoticed) {
  constexpr int64_t kRows[] = {4'300, 500};  // uploaded in parts, and by one request
  S3Server server({.vendor = GetParam()});
  const auto storage = MustOpen(server);
  for (const FaultKind kind : {FaultKind::kDrop, FaultKind::kLoseAnswer, FaultKind::kTear}) {
    server.AddFault({.kind = kind, .period = 5, .times = kForever});
  }
  server.AddFault({.status = 503, .code = "SlowDown", .period = 3, .times = kForever});
  server.AddFault(
      {.kind = FaultKind::kDamageRequest, .method = "PUT", .period = 4, .times = kForever});
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_EQ(SaveStep(*storage, step, 2, kRows[step - 1]), absl::OkStatus());
    EXPECT_TRUE(Loads(*storage, step, 3, kRows[step - 1]));
  }
  ASSERT_OK(CheckpointFolder(*storage).Prune(1));
  server.ClearFaults();
  EXPECT_EQ(CheckpointFolder(*storage).List()->size(), 1);
  EXPECT_TRUE(Loads(*storage, 2, 1, kRows[1]));
  // Where the answer to the creation of an upload was lost, nothing knows of that upload but the
  // store: it goes when the storage is opened after it has become stale.
  server.AgeUploads(absl::Hours(25));
  EXPECT_NE(MustOpen(server), nullptr);
  EXPECT_EQ(server.upload_count(), 0);
}

TEST(S3CheckpointTest, ASaveKnowsItsUploadsByTheirNames) {
  const std::regex own(ForSaving({}).own_uploads);
  const std::string file = "step-00000004/model-00001-of-00002-0123abcd.safetensors";
  for (const std::string& name : {file, "rolling-1/" + file, "rolling-1/1a2b3c4d/" + file}) {
    EXPECT_TRUE(std::regex_match(name, own)) << name;
  }
  for (const std::string& name :
       {std::string("backup.tar"), std::string("model-00001-of-00002-0123abcd.safetensors"),
        std::string("step-00000004/model-00001-of-00002.safetensors"),
        std::string("step-00000004/notes.txt"), "mirror/of/" + file}) {
    EXPECT_FALSE(std::regex_match(name, own)) << name;
  }
}

TEST(S3CheckpointTest, UploadsOfADeadSaveAreRemovedOnceTheyAreOld) {
  S3Server server;
  const auto storage = MustOpen(server);
  for (const char* method : {"POST", "DELETE"}) {
    server.AddFault({.status = 403,
                     .code = "AccessDenied",
                     .method = method,
                     .query = "uploadId",
                     .times = kForever});
  }
  EXPECT_FALSE(SaveStep(*storage, 1, 2, 4'300).ok());
  EXPECT_GT(server.upload_count(), 0);
  server.ClearFaults();
  server.AgeUploads(absl::Hours(25));
  MustOpen(server);
  EXPECT_EQ(server.upload_count(), 0);
}

}  // namespace
}  // namespace tessera::ckpt
