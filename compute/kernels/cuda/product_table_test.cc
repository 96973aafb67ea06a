// That a table of products is written and read whole, or not at all.

#include "compute/kernels/cuda/product_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/replace_file.h"
#include "base/testing.h"
#include "base/threads.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;

const ProductTable& TwoDevices() {
  static const auto& table =
      *new ProductTable{{"H200; cuBLASLt 130002",
                         {{{"gelu_gradient", false}, {"sums", true}},
                          {{"product [4,6] x [6,8]'", 3}, {"product [4,8] x [8,8]", 1}}}},
                        {"A100; cuBLASLt 130002", {{}, {{"product [4,6] x [6,8]'", 2}}}}};
  return table;
}

TEST(ProductTableTest, ItsTextIsReadBack) {
  const std::string text = ToText(TwoDevices());
  EXPECT_THAT(text, HasSubstr("[H200; cuBLASLt 130002]\ngelu_gradient=false\nsums=true\n"
                              "3 product [4,6] x [6,8]'\n"));
  ASSERT_OK_AND_ASSIGN(const ProductTable table, ParseProductTable(text));
  EXPECT_EQ(table, TwoDevices());
  ASSERT_OK_AND_ASSIGN(const ProductTable empty, ParseProductTable(ToText({})));
  EXPECT_TRUE(empty.empty());
}

std::string WithChecksum(const std::string& lines) {
  return absl::StrCat(lines, "crc32c ", absl::Hex(Crc32c(lines), absl::kZeroPad8), "\n");
}

// Checkpoints of runs with such a table have recorded its digest.
TEST(ProductTableTest, ATableOfVersionOneIsReadWithTheSameDigest) {
  ASSERT_OK_AND_ASSIGN(
      const ProductTable table,
      ParseProductTable(WithChecksum("tessera product table 1\n[H200]\n3 x\n1 y\n")));
  EXPECT_EQ(table, (ProductTable{{"H200", {{}, {{"x", 3}, {"y", 1}}}}}));
  EXPECT_EQ(DigestOf(table.at("H200")),
            absl::StrCat(absl::Hex(Crc32c("3 x\n1 y\n"), absl::kZeroPad8)));
}

TEST(ProductTableTest, WaysAreMembersOfChoices) {
  Ways ways;
  for (const auto& [name, member] : kWays) {
    EXPECT_FALSE(AddWay(absl::StrCat(name, "=True"), &ways)) << name;
    EXPECT_TRUE(AddWay(absl::StrCat(name, "=true"), &ways)) << name;
    EXPECT_FALSE(AddWay(absl::StrCat(name, "=false"), &ways)) << name;
    EXPECT_TRUE(WithWays({}, ways).*member) << name;
    EXPECT_FALSE(WithWays(WithWays({}, ways), {{name, false}}).*member) << name;
  }
  EXPECT_FALSE(AddWay("proposal=true", &ways));
  EXPECT_EQ(WaysText(Ways{{"sums", true}, {"gelu_gradient", false}}),
            "gelu_gradient=false,sums=true");
}

TEST(ProductTableTest, EveryDamageIsSeen) {
  const std::string text = ToText(TwoDevices());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    EXPECT_TRUE(absl::IsDataLoss(ParseProductTable(flipped).status())) << i;
    EXPECT_TRUE(absl::IsDataLoss(ParseProductTable(text.substr(0, i)).status())) << i;
  }
  EXPECT_THAT(ParseProductTable(text + "\n").status().message(),
              HasSubstr("its checksum is wrong"));
}

TEST(ProductTableTest, WhatIsNoTableIsRefused) {
  const auto error = [](const std::string& lines) {
    return std::string(ParseProductTable(WithChecksum(lines)).status().message());
  };
  EXPECT_EQ(error("tessera product table 3\n"), "it is no table of products of version 1 or 2");
  EXPECT_EQ(error("GIF89a"), "it is no table of products of version 1 or 2");
  for (const std::string line :
       {"1 product of no device\n", "[H200]\nproduct\n", "[H200]\n-1 x\n", "[H200]\n1 \n",
        "[H200]\n1 x\n2 x\n", "sums=true\n", "[H200]\nsums\n", "[H200]\nsums=1\n",
        "[H200]\nsums=true\nsums=true\n", "[H200]\nsums= true\n", "[H200]\n[H200]\n",
        "[H200]\n99999999999 x\n", "[]\n"}) {
    EXPECT_THAT(error("tessera product table 2\n" + line), HasSubstr("a line that means nothing"))
        << line;
  }
}

TEST(ProductTableTest, TheDigestIsThatOfOneDevicesWaysAndProposals) {
  const MeasuredProducts& h200 = TwoDevices().at("H200; cuBLASLt 130002");
  MeasuredProducts other = h200;
  EXPECT_EQ(DigestOf(other), DigestOf(h200));
  EXPECT_EQ(DigestOf(other).size(), 8);
  other.proposals.begin()->second = 4;
  EXPECT_NE(DigestOf(other), DigestOf(h200));
  other = h200;
  other.ways.begin()->second = true;
  EXPECT_NE(DigestOf(other), DigestOf(h200));
}

TEST(ProductTableTest, TheFileIsInTheUsersCache) {
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::setenv("HOME", "/home/ada", 1);
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(*ProductTablePath(), "/home/ada/.cache/tessera/products");
  ::setenv("XDG_CACHE_HOME", "/var/cache/ada", 1);
  EXPECT_EQ(*ProductTablePath(), "/var/cache/ada/tessera/products");
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  EXPECT_TRUE(absl::IsFailedPrecondition(ProductTablePath().status()));
  if (home != nullptr) ::setenv("HOME", before.c_str(), 1);
}

class ProductTableFileTest : public ::testing::Test {
 protected:
  ProductTable Read() const { return OrFail(ParseProductTable(OrFail(ReadWholeFile(path_)))); }

  const TestFolder folder_;
  const std::string path_ = folder_.File("cache/tessera/products");
};

TEST_F(ProductTableFileTest, ProposalsAreAddedToThoseOfOtherProductsAndDevices) {
  ASSERT_OK(AddProposals(path_, "H200", {{"x", 3}, {"y", 1}, {"z", 0}}));
  EXPECT_EQ(Read(), (ProductTable{{"H200", {{}, {{"x", 3}, {"y", 1}}}}}));
  ASSERT_OK(AddProposals(path_, "A100", {{"x", 2}}));
  ASSERT_OK(AddProposals(path_, "H200", {{"x", 0}, {"w", 5}}));
  EXPECT_EQ(Read(),
            (ProductTable{{"A100", {{}, {{"x", 2}}}}, {"H200", {{}, {{"w", 5}, {"y", 1}}}}}));
  int files = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(folder_.File("cache/tessera"))) {
    ++files;
  }
  EXPECT_EQ(files, 2);  // and the lock
}

TEST_F(ProductTableFileTest, WaysReplaceThoseOfTheirNames) {
  ASSERT_OK(AddProposals(path_, "H200", {{"x", 3}}));
  ASSERT_OK(SetWays(path_, "H200", {{"sums", true}}));
  ASSERT_OK(SetWays(path_, "A100", {{"sums", true}}));
  ASSERT_OK(SetWays(path_, "H200", {{"gelu_gradient", false}}));
  const Ways both = {{"gelu_gradient", false}, {"sums", true}};
  EXPECT_EQ(Read(), (ProductTable{{"A100", {{{"sums", true}}, {}}}, {"H200", {both, {{"x", 3}}}}}));
  ASSERT_OK(SetWays(path_, "H200", {{"gelu_gradient", true}, {"sums", std::nullopt}}));
  EXPECT_EQ(Read().at("H200"), (MeasuredProducts{{{"gelu_gradient", true}}, {{"x", 3}}}));
}

TEST_F(ProductTableFileTest, ADamagedTableIsReplacedAndAnotherFileIsNot) {
  ASSERT_OK(AddProposals(path_, "H200", {{"x", 3}}));
  ASSERT_OK(ReplaceFile(path_, OrFail(ReadWholeFile(path_)) + "x"));
  ASSERT_OK(AddProposals(path_, "H200", {{"y", 1}}));
  EXPECT_EQ(Read(), (ProductTable{{"H200", {{}, {{"y", 1}}}}}));
  for (const std::string other : {"a diary", "tessera product table 3\nH200 y 1\n"}) {
    ASSERT_OK(ReplaceFile(path_, other));
    EXPECT_TRUE(absl::IsDataLoss(AddProposals(path_, "H200", {{"y", 1}})));
    EXPECT_EQ(OrFail(ReadWholeFile(path_)), other);
  }
}

TEST_F(ProductTableFileTest, WritersWaitForEachOther) {
  constexpr int kWriters = 4, kProducts = 8;
  std::vector<std::thread> writers = StartThreads(kWriters, [&](int writer) {
    for (int i = 0; i < kProducts; ++i) {
      EXPECT_OK(AddProposals(path_, absl::StrCat("GPU ", writer), {{absl::StrCat("x", i), 1}}));
    }
  });
  for (std::thread& writer : writers) writer.join();
  const ProductTable table = Read();
  EXPECT_EQ(table.size(), kWriters);
  for (const auto& [device, measured] : table) {
    EXPECT_EQ(measured.proposals.size(), kProducts) << device;
  }
}

}  // namespace
}  // namespace tessera::cuda
