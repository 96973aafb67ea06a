// Tests of the small utilities: status macros, byte order, checked arithmetic, units, lists in
// messages, glob patterns, free memory, whole files, JSON.

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_order.h"
#include "base/checked_math.h"
#include "base/files.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/system_memory.h"
#include "base/testing.h"
#include "base/text.h"
#include "base/units.h"

namespace tessera {
namespace {

absl::Status FailIf(bool fail) { return fail ? absl::DataLossError("asked to") : absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<int>> Make(bool fail) {
  TESSERA_RETURN_IF_ERROR(FailIf(fail));
  return std::make_unique<int>(7);
}

absl::StatusOr<int> Use(bool fail_first, bool fail_second) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Make(fail_first));
  std::unique_ptr<int> second;
  if (*first == 7) TESSERA_RETURN_IF_ERROR(absl::OkStatus());
  TESSERA_ASSIGN_OR_RETURN(second, Make(fail_second));
  return *first + *second;
}

TEST(StatusMacros, PassValuesAndErrorsOn) {
  EXPECT_EQ(Use(false, false).value(), 14);
  EXPECT_EQ(Use(true, false).status(), absl::DataLossError("asked to"));
  EXPECT_EQ(Use(false, true).status(), absl::DataLossError("asked to"));
}

TEST(ByteOrder, IsLittleEndianAtAnyAddress) {
  std::string bytes = "x";
  AppendLittleEndian<uint32_t>(0x01020304, bytes);
  AppendLittleEndian<uint64_t>(0x1122334455667788, bytes);
  AppendLittleEndian<uint16_t>(0xABCD, bytes);
  EXPECT_EQ(bytes, std::string("x\x04\x03\x02\x01\x88\x77\x66\x55\x44\x33\x22\x11\xCD\xAB"));
  EXPECT_EQ(LoadLittleEndian<uint32_t>(bytes.data() + 1), 0x01020304u);
  EXPECT_EQ(LoadLittleEndian<uint64_t>(bytes.data() + 5), 0x1122334455667788u);
  StoreLittleEndian<uint16_t>(0x7E57, bytes.data() + 3);
  EXPECT_EQ(LoadLittleEndian<uint16_t>(bytes.data() + 3), 0x7E57);
}

TEST(CheckedMath, NoticesWhatDoesNotFit) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  constexpr int64_t kSignedMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedMultiply(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(CheckedMultiply(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(CheckedCast<int64_t>(uint64_t{kSignedMax}), kSignedMax);
  EXPECT_EQ(CheckedCast<int64_t>(uint64_t{kSignedMax} + 1), std::nullopt);
  EXPECT_EQ(CheckedCast<uint32_t>(-1), std::nullopt);
  EXPECT_EQ(CeilDivide(kMax, 2), (uint64_t{1} << 63));  // a + b - 1 would overflow
  EXPECT_EQ(CeilDivide(0, 5), 0);
  EXPECT_EQ(RoundUp(4097, 4096), 8192);
  EXPECT_EQ(RoundUp(4096, 4096), 4096);
}

TEST(Units, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(10 * 1024 + 512), "10.5 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.00 MiB");  // never "1024 KiB"
  EXPECT_EQ(HumanBytes(uint64_t{123} << 30), "123 GiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(Units, Rates) {
  EXPECT_EQ(HumanRate(1'530'000'000, 1.0), "1.53 GB/s");
  EXPECT_EQ(HumanRate(500, 1.0), "500 B/s");
  EXPECT_EQ(HumanRate(999'999, 1.0), "1.00 MB/s");
  EXPECT_EQ(HumanRate(5, 0), "-");
  EXPECT_EQ(HumanRate(5, std::nan("")), "-");
}

TEST(Units, Seconds) {
  EXPECT_EQ(HumanSeconds(0), "0 us");
  EXPECT_EQ(HumanSeconds(850e-6), "850 us");
  EXPECT_EQ(HumanSeconds(12.34e-3), "12.3 ms");
  EXPECT_EQ(HumanSeconds(0.99999), "1.00 s");
  EXPECT_EQ(HumanSeconds(4.56), "4.56 s");
  EXPECT_EQ(HumanSeconds(59.99), "1m 00s");
  EXPECT_EQ(HumanSeconds(125), "2m 05s");
  EXPECT_EQ(HumanSeconds(3 * 3600 + 7 * 60), "3h 07m");
  EXPECT_EQ(HumanSeconds(52 * 3600), "2d 04h");
  EXPECT_EQ(HumanSeconds(-1), "-");
  EXPECT_EQ(HumanSeconds(std::nan("")), "-");
  EXPECT_EQ(HumanSeconds(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(HumanSeconds(1e300), "-");
}

TEST(RandomHex, HasSoManyDigitsUnlikeAnyOther) {
  for (const size_t digits : {0, 1, 8, 16, 33}) {
    const std::string hex = RandomHex(digits);
    EXPECT_EQ(hex.size(), digits);
    EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos) << hex;
  }
  EXPECT_NE(RandomHex(16), RandomHex(16));
  EXPECT_NE(RandomBits(), RandomBits());
}

TEST(Counted, HasThePluralUnlessThereIsOne) {
  EXPECT_EQ(Counted(0, "file"), "0 files");
  EXPECT_EQ(Counted(1, "file"), "1 file");
  EXPECT_EQ(Counted(2, "file"), "2 files");
  EXPECT_EQ(EveryText(1, "step"), "every step");
  EXPECT_EQ(EveryText(2, "step"), "every 2 steps");
}

TEST(JoinFirst, SaysHowManyMoreThereAre) {
  std::vector<std::string> items;
  EXPECT_EQ(JoinFirst(items, ", "), "");
  for (const char c : std::string("abcdefghij")) items.push_back({c});
  EXPECT_EQ(JoinFirst(items, ", "), "a, b, c, d, e, f, g, h, i, j");
  items.insert(items.end(), 3, "k");
  EXPECT_EQ(JoinFirst(items, ", "), "a, b, c, d, e, f, g, h, i, j, and 3 more");
}

TEST(GlobTest, Matches) {
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("a*c*", "abcc"));
  EXPECT_TRUE(MatchesGlob("*ab", "aab"));
  EXPECT_TRUE(MatchesGlob("h.?.attn.*", "h.3.attn.c_proj.weight"));
  EXPECT_TRUE(MatchesGlob("h.[01].*", "h.1.ln_1.bias"));
  EXPECT_TRUE(MatchesGlob("a*", "a/b"));
  EXPECT_TRUE(MatchesGlob("*.b", ".b"));
}

TEST(GlobTest, DoesNotMatch) {
  EXPECT_FALSE(MatchesGlob("a*c", "abd"));
  EXPECT_FALSE(MatchesGlob("", "a"));
  EXPECT_FALSE(MatchesGlob("a?", "a"));
  EXPECT_FALSE(MatchesGlob("h.[01].*", "h.2.ln_1.bias"));
}

TEST(AvailableMemoryTest, ReadsWhatTheSystemSays) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_EQ(ParseMemAvailable("MemTotal:  9 kB\nMemAvailable:   1234 kB\nBuffers: 1 kB\n"),
            1234 * 1024);
  EXPECT_EQ(ParseMemAvailable("MemTotal: 9 kB\n"), UINT64_MAX);
  EXPECT_EQ(ParseMemAvailable("MemAvailable: many kB"), UINT64_MAX);
  EXPECT_EQ(ParseMemAvailable(""), UINT64_MAX);
}

TEST(AvailableMemoryTest, AControlGroupsCacheIsRoom) {
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "600\n", "anon 1\ninactive_file 250\n"), 650);
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "600\n", ""), 400);
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "2000\n", ""), 0);
  EXPECT_EQ(ParseControlGroupRoom("1000\n", "10\n", "inactive_file 250\n"), 1000);
  EXPECT_EQ(ParseControlGroupRoom("max\n", "600\n", ""), UINT64_MAX);
  EXPECT_EQ(ParseControlGroupRoom("", "", ""), UINT64_MAX);
}

// As callers' pages of 4 KiB are where the system's have 64 KiB.
TEST(MapOnHugePagesTest, APartOfAPageIsUnmappedAsAWhole) {
  constexpr size_t kBytes = kHugePageBytes + 1;
  const auto mapped_bytes = [] {
    return std::stoll(ReadWholeFile("/proc/self/statm").value_or("")) * sysconf(_SC_PAGESIZE);
  };
  const int64_t before = mapped_bytes();
  for (int i = 0; i < 16; ++i) {
    void* const data = MapOnHugePages(kBytes);
    ASSERT_NE(data, MAP_FAILED);
    ASSERT_EQ(munmap(data, kBytes), 0);
  }
  EXPECT_LT(mapped_bytes() - before, kHugePageBytes);
}

TEST(ReadWholeFileTest, EveryByte) {
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes.push_back(static_cast<char>(i % 251));
  const std::string path = testing::TempDir() + "/bytes", empty = testing::TempDir() + "/empty";
  std::ofstream(path, std::ios::binary) << bytes;
  std::ofstream(empty, std::ios::binary).flush();
  EXPECT_TRUE(ReadWholeFile(path).value_or("") == bytes);
  EXPECT_EQ(ReadWholeFile(empty).value_or("?"), "");
}

TEST(ReadWholeFileTest, FilesOfTheKernel) {
  ASSERT_OK_AND_ASSIGN(const std::string status, ReadWholeFile("/proc/self/status"));
  EXPECT_TRUE(status.starts_with("Name:")) << status;
}

TEST(ReadWholeFileTest, SaysWhatIsWrong) {
  EXPECT_EQ(ReadWholeFile(testing::TempDir() + "/absent").status(),
            absl::NotFoundError("No such file or directory"));
  EXPECT_EQ(ReadWholeFile(testing::TempDir()).status(),
            absl::InvalidArgumentError("not a regular file"));
}

std::string Nested(const std::string& open, const std::string& close, int levels) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  text += "1";
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

TEST(ParseJsonTest, DepthIsBounded) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    EXPECT_FALSE(ParseJson(Nested(open, close, kMaxJsonDepth)).is_discarded());
    EXPECT_TRUE(ParseJson(Nested(open, close, kMaxJsonDepth + 1)).is_discarded());
    EXPECT_TRUE(ParseJson(Nested(open, "", 1'000'000)).is_discarded());
  }
}

TEST(ParseJsonTest, BracketsInStringsAndNeighboursDoNotNest) {
  EXPECT_EQ(ParseJson("[\"" + std::string(1000, '[') + "\\\"[\", \"\\\\\", [2]]").size(), 3u);
  std::string neighbours = "[0";
  for (int i = 0; i < 1000; ++i) neighbours += ",[{}]";
  EXPECT_EQ(ParseJson(neighbours + "]").size(), 1001u);
}

TEST(ParseJsonTest, WhatIsNotJsonIsDiscarded) {
  for (const char* text : {"", "{", "]", "{]", "[1,]", "\"\\", "nan"}) {
    EXPECT_TRUE(ParseJson(text).is_discarded()) << text;
  }
}

}  // namespace
}  // namespace tessera
