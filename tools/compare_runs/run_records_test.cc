#include "tools/compare_runs/run_records.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/metrics/metrics.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunRecordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void WriteMetrics(const std::string& text) const { Write("metrics.jsonl", text); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  std::filesystem::path folder_;
};

TEST_F(RunRecordsTest, ReadsWhatARunWrites) {
  const double infinity = std::numeric_limits<double>::infinity();
  auto writer = MetricsWriter::Open((folder_ / "metrics.jsonl").string(), std::nullopt);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)
                  ->Write(StepMetrics{.step = 1,
                                      .loss = 1.0 / 3,
                                      .lr = 1e-3,
                                      .grad_norm = 0.1,
                                      .tokens_per_second = 1234.5})
                  .ok());
  ASSERT_TRUE((*writer)->Write(StepMetrics{.step = 2, .loss = infinity, .grad_norm = NAN}).ok());
  ASSERT_TRUE((*writer)->Write(EvalMetrics{.step = 2, .loss = 2.0 / 3}).ok());
  ASSERT_TRUE((*writer)->Close().ok());

  const auto run = ReadRunRecords(folder_.string());
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->steps.size(), 2);
  EXPECT_EQ(run->steps.at(1).loss, 1.0 / 3);
  EXPECT_EQ(run->steps.at(1).lr, 1e-3);
  EXPECT_EQ(run->steps.at(1).grad_norm, 0.1);
  EXPECT_EQ(run->steps.at(1).tokens_per_second, 1234.5);
  EXPECT_EQ(run->steps.at(2).loss, infinity);  // null as a number, exact as bits
  EXPECT_TRUE(std::isnan(run->steps.at(2).grad_norm));
  EXPECT_EQ(run->evaluation_losses.at(2), 2.0 / 3);
  EXPECT_THAT(run->notes, IsEmpty());
  EXPECT_FALSE(run->bf16.has_value());
}

TEST_F(RunRecordsTest, LeavesOutDamagedLinesWithANote) {
  WriteMetrics(
      "{\"kind\":\"step\",\"step\":1,\"loss\":3}\n"
      "{\"kind\":\"step\",\"st\n"
      "{\"kind\":\"step\",\"step\":3,\"loss\":1,\"loss_bits\":\"zz\"}\n"
      "{\"kind\":\"step\",\"step\":3,\"loss\":2}\n");
  const auto run = ReadRunRecords((folder_ / "metrics.jsonl").string());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->steps.size(), 2);
  EXPECT_EQ(run->steps.at(3).loss, 2);
  EXPECT_THAT(run->notes,
              ElementsAre(HasSubstr("line 2 "), HasSubstr("step 3 is recorded more than once")));
}

TEST_F(RunRecordsTest, TakesThePrecisionFromTheConfig) {
  WriteMetrics("{\"kind\":\"step\",\"step\":1,\"loss\":3}\n");
  Write("config.textproto", "training { bf16: true }");
  EXPECT_EQ(ReadRunRecords(folder_.string())->bf16, true);
  Write("config.textproto", "training { bf16: false }");
  EXPECT_EQ(ReadRunRecords(folder_.string())->bf16, false);
  Write("config.textproto", "training { of_a_later_version: 1 }");
  const auto run = ReadRunRecords(folder_.string());
  EXPECT_FALSE(run->bf16.has_value());
  EXPECT_THAT(run->notes, ElementsAre(HasSubstr("of_a_later_version")));
}

TEST_F(RunRecordsTest, RefusesFilesThatAreNoRecords) {
  EXPECT_TRUE(absl::IsNotFound(ReadRunRecords(folder_.string()).status()));
  WriteMetrics("");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadRunRecords(folder_.string()).status()));
  WriteMetrics("step 1: loss 3\n");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadRunRecords(folder_.string()).status()));
}

}  // namespace
}  // namespace tessera
