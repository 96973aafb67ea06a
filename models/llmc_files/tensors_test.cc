#include "models/llmc_files/tensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/power_loss.h"
#include "gtest/gtest.h"
#include "models/layers/declare.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 3, kColumns = (1 << 20) + 77;  // a row does not fit into one block

float Value(int64_t row, int64_t column) { return static_cast<float>(row * kColumns + column); }

class TensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/tensors_test.bin";
    auto writer = LlmcWriter::Create(path_, LlmcHeader{});
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::vector<float> values;
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      values.push_back(Value(i / kColumns, i % kColumns));
    }
    ASSERT_TRUE(writer->Append(std::as_bytes(std::span(values))).ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
};

TEST(LlmcWriterTest, SurvivesALossOfPowerAndNeedsEachSync) {
  PowerLossScenario scenario;
  scenario.run = [](const std::string& root) -> absl::Status {
    auto writer = LlmcWriter::Create(root + "/model.bin", LlmcHeader{});
    if (!writer.ok()) return writer.status();
    return writer->Close();
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    const auto at = image.find("model.bin");
    if (at == image.end()) return finished ? "the file is gone" : "";
    return at->second == std::string(kLlmcHeaderBytes, '\0') ? "" : "the file is damaged";
  };
  std::vector<std::string> syncs;
  EXPECT_EQ(CheckEverySync(scenario, ::testing::TempDir() + "/power_loss", &syncs), "");
  EXPECT_EQ(syncs, std::vector<std::string>({"", "model.bin.tmp"}));
}

TEST_F(TensorsTest, LongRowsComeInSegments) {
  for (const bool transposed : {false, true}) {
    ParameterSet set;
    const Shape shape = transposed ? Shape{kColumns, kRows} : Shape{kRows, kColumns};
    const Parameter& parameter = set.Add(WholeParameter("w", shape, kAfterLayers, kInitZeros));
    set.Allocate(DType::kF32, {}, false);
    const auto reader = LlmcReader::Open(path_);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const std::vector<LlmcTensor> tensors = {{.name = "w",
                                              .rows = kRows,
                                              .columns = kColumns,
                                              .real_rows = kRows,
                                              .transposed = transposed}};
    auto status = ImportLlmcTensors(*reader, DType::kF32, tensors, set, set.values());
    ASSERT_TRUE(status.ok()) << status;
    const float* values = parameter.value.as<float>();
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        const int64_t at = transposed ? column * kRows + row : row * kColumns + column;
        ASSERT_EQ(values[at], Value(row, column)) << row << ", " << column;
      }
    }
  }
}

// A tensor-parallel slice of a transposed weight: blocks of the logical columns, padded rows
// between.
TEST_F(TensorsTest, PiecesTakeTheirBoxes) {
  Parameter slice;  // of the logical [kColumns, kRows]
  slice.shape = {60, 2};
  slice.pieces.push_back({"w", {kColumns, kRows}, {kColumns - 50, 2}, {0, 0}, {50, 1}});
  slice.pieces.push_back({"w", {kColumns, kRows}, {7, 0}, {20, 1}, {40, 1}});
  ParameterSet set;
  const Parameter& parameter = set.Add(slice);
  set.Allocate(DType::kF32, {}, false);
  const auto reader = LlmcReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const std::vector<LlmcTensor> tensors = {
      {.name = "w", .rows = kRows, .columns = kColumns, .real_rows = kRows, .transposed = true}};
  auto status = ImportLlmcTensors(*reader, DType::kF32, tensors, set, set.values());
  ASSERT_TRUE(status.ok()) << status;
  const float* values = parameter.value.as<float>();
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(values[2 * i], i < 50 ? Value(2, kColumns - 50 + i) : 0) << i;
    EXPECT_EQ(values[2 * i + 1], i >= 20 ? Value(0, 7 + i - 20) : 0) << i;
  }
}

TEST_F(TensorsTest, WhatIsNotARegularFileIsRefusedAtOnce) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, ::testing::TempDir()}) {
    const absl::Status status = LlmcReader::Open(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("not a regular file"), absl::string_view::npos) << status;
  }
  unlink(pipe.c_str());
}

TEST_F(TensorsTest, AFileThatShrinksWhileItIsReadIsDataLoss) {
  ParameterSet set;
  set.Add(WholeParameter("w", {kRows, kColumns}, kAfterLayers, kInitZeros));
  set.Allocate(DType::kF32, {}, false);
  const auto reader = LlmcReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::filesystem::resize_file(path_, 1024 + 4 * kColumns);
  const auto status = ImportLlmcTensors(
      *reader, DType::kF32, {{.name = "w", .rows = kRows, .columns = kColumns, .real_rows = kRows}},
      set, set.values());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

}  // namespace
}  // namespace tessera
