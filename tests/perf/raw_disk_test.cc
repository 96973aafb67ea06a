#include "tests/perf/raw_disk.h"

#include <filesystem>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(RawDiskTest, MeasuresEveryShapeAndLeavesNothing) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "raw_disk_test";
  std::filesystem::create_directory(directory);
  RawDiskOptions options;
  options.directory = directory.string();
  options.bytes = 1;
  options.shapes = {{size_t{1} << 20, 2}, {size_t{16} << 20, 1}};
  options.repeats = 1;
  const absl::StatusOr<RawDiskRates> rates = MeasureRawDisk(options);
  ASSERT_TRUE(rates.ok()) << rates.status();
  ASSERT_EQ(rates->all_write.size(), 2);
  ASSERT_EQ(rates->all_read.size(), 2);
  EXPECT_GT(rates->write.bytes_per_s, 0);
  EXPECT_GT(rates->read.bytes_per_s, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  EXPECT_TRUE(std::filesystem::remove(directory));
}

TEST(RawDiskTest, SaysWhatIsWrong) {
  const absl::StatusOr<RawDiskFile> file = RawDiskFile::Create("/no/such/directory", 1);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("/no/such/directory"), std::string::npos);
  EXPECT_EQ(MeasureRawDisk({.directory = "/tmp", .shapes = {}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(RawDiskTest, MedianIsTheMiddle) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({3, 1}), 2);
  EXPECT_EQ(Median({9, 1, 2}), 2);
}

}  // namespace
}  // namespace tessera
