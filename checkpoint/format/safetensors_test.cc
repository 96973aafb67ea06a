// A header comes back as it was; a truncated, changed or hostile one is refused.

#include "checkpoint/format/safetensors.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/byte_order.h"
#include "base/testing.h"

namespace tessera::ckpt {
namespace {

using absl::StatusCode;

SafetensorsEntry Entry(std::string key, DType dtype, Shape shape) {
  SafetensorsEntry entry;
  entry.key = std::move(key);
  entry.dtype = dtype;
  entry.shape = std::move(shape);
  return entry;
}

SafetensorsHeader Small() {
  SafetensorsHeader header;
  header.entries = {Entry("b", DType::kBF16, {3}), Entry("w@[0:1,0:3]", DType::kF32, {1, 3}),
                    Entry("w@[1:2,0:3]", DType::kF32, {1, 3}), Entry("scalar", DType::kI64, {}),
                    Entry("none", DType::kU8, {0, 7})};
  header.metadata = {{"format", "pt"}, {"note", "a \"quoted\" line\n\u00e9"}};
  return header;
}

// The beginning of a file with a handwritten header.
std::string Raw(const std::string& json) {
  std::string bytes;
  AppendLittleEndian(uint64_t{json.size()}, bytes);
  return bytes + json;
}

TEST(Safetensors, RoundTrip) {
  SafetensorsHeader header = Small();
  const std::string bytes = BuildSafetensorsHeader(header).value();
  EXPECT_EQ(bytes.size(), 4096u);
  EXPECT_EQ(header.data_offset, 4096u);
  EXPECT_EQ(header.file_size_bytes, 4096u + 8 + 12 + 12 + 6);
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader parsed,
                       ParseSafetensorsHeader(bytes, header.file_size_bytes));
  EXPECT_EQ(parsed.metadata, header.metadata);
  EXPECT_EQ(parsed.data_offset, 4096u);
  ASSERT_EQ(parsed.entries.size(), header.entries.size());
  uint64_t end = 4096;
  for (const SafetensorsEntry& entry : parsed.entries) {
    EXPECT_EQ(entry.file_offset, end);
    end += entry.length_bytes;
    bool found = false;
    for (const SafetensorsEntry& original : header.entries) {
      if (original.key != entry.key) continue;
      found = true;
      EXPECT_EQ(entry.dtype, original.dtype);
      EXPECT_EQ(entry.shape, original.shape);
      EXPECT_EQ(entry.file_offset, original.file_offset);
      EXPECT_EQ(entry.length_bytes, original.length_bytes);
    }
    EXPECT_TRUE(found) << entry.key;
  }
  EXPECT_EQ(end, header.file_size_bytes);
}

TEST(Safetensors, EveryTensorIsAlignedToItsElements) {
  SafetensorsHeader header;
  header.entries = {Entry("a", DType::kU8, {1}), Entry("b", DType::kF64, {1}),
                    Entry("c", DType::kBF16, {3}), Entry("d", DType::kF32, {1}),
                    Entry("e", DType::kBF16, {1})};
  ASSERT_OK(BuildSafetensorsHeader(header));
  for (const SafetensorsEntry& entry : header.entries) {
    EXPECT_EQ(entry.file_offset % (entry.length_bytes / ElementCount(entry.shape)), 0u)
        << entry.key;
  }
  EXPECT_LT(header.entries[2].file_offset, header.entries[4].file_offset) << "not stable";
}

TEST(Safetensors, HeaderIsAlwaysPaddedToTheAlignment) {
  for (size_t key_bytes = 1; key_bytes < 9000; key_bytes += 97) {
    SafetensorsHeader header;
    header.entries = {Entry(std::string(key_bytes, 'k'), DType::kU8, {1})};
    const std::string bytes = BuildSafetensorsHeader(header).value();
    ASSERT_EQ(bytes.size() % kSafetensorsDataAlignment, 0u);
    ASSERT_EQ(bytes.size(), header.data_offset);
    ASSERT_OK(ParseSafetensorsHeader(bytes, header.file_size_bytes));
  }
}

TEST(Safetensors, NoTensors) {
  SafetensorsHeader header;
  const std::string bytes = BuildSafetensorsHeader(header).value();
  EXPECT_EQ(ParseSafetensorsHeader(bytes, header.file_size_bytes)->entries.size(), 0u);
}

TEST(Safetensors, BuildRefuses) {
  const auto refused = [](std::vector<SafetensorsEntry> entries) {
    SafetensorsHeader header;
    header.entries = std::move(entries);
    return BuildSafetensorsHeader(header).status();
  };
  for (const absl::Status& status :
       {refused({Entry("a", DType::kU8, {1}), Entry("a", DType::kU8, {1})}),
        refused({Entry("", DType::kU8, {1})}), refused({Entry("__metadata__", DType::kU8, {1})}),
        refused({Entry("\xFF", DType::kU8, {1})}), refused({Entry("a", DType::kUnspecified, {1})}),
        refused({Entry("a", DType::kU8, {-1})}),
        refused({Entry("a", DType::kF64, {int64_t{1} << 61})}),
        refused({Entry("a", DType::kU8, {INT64_MAX}), Entry("b", DType::kU8, {INT64_MAX})})}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  }
  SafetensorsHeader header;
  header.metadata = {{"a", "\xFF"}};
  EXPECT_EQ(BuildSafetensorsHeader(header).status().code(), StatusCode::kInvalidArgument);
}

TEST(Safetensors, ShardKeys) {
  EXPECT_EQ(ShardKey("w", {4, 8}, WholeBox({4, 8})), "w");
  EXPECT_EQ(ShardKey("w", {4, 8}, {{0, 4}, {4, 4}}), "w@[0:4,4:8]");
  EXPECT_EQ(ShardKey("s", {}, {}), "s");
}

TEST(SafetensorsCorruption, EveryTruncation) {
  SafetensorsHeader header = Small();
  const std::string bytes = BuildSafetensorsHeader(header).value();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // Sizes of the bytes read and of the file.
    ASSERT_EQ(ParseSafetensorsHeader(bytes.substr(0, size), header.file_size_bytes).status().code(),
              StatusCode::kDataLoss);
    ASSERT_EQ(ParseSafetensorsHeader(bytes.substr(0, size), size).status().code(),
              StatusCode::kDataLoss);
  }
  for (uint64_t size = bytes.size(); size < header.file_size_bytes + 20; ++size) {
    ASSERT_EQ(ParseSafetensorsHeader(bytes, size).ok(), size == header.file_size_bytes) << size;
  }
}

// The header has no checksum of its own (the manifest's chunks cover it). A changed byte either
// breaks it, or yields another valid header that differs in some field or only in white space.
TEST(SafetensorsCorruption, EveryFlippedBitIsNoticedOrVisible) {
  SafetensorsHeader header = Small();
  const std::string good = BuildSafetensorsHeader(header).value();
  const SafetensorsHeader expected = ParseSafetensorsHeader(good, header.file_size_bytes).value();
  const auto same = [](const SafetensorsHeader& a, const SafetensorsHeader& b) {
    if (a.metadata != b.metadata || a.entries.size() != b.entries.size()) return false;
    for (size_t i = 0; i < a.entries.size(); ++i) {
      const SafetensorsEntry &x = a.entries[i], &y = b.entries[i];
      if (x.key != y.key || x.dtype != y.dtype || x.shape != y.shape ||
          x.file_offset != y.file_offset || x.length_bytes != y.length_bytes) {
        return false;
      }
    }
    return true;
  };
  int refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[at] ^= static_cast<char>(1 << bit);
      const absl::StatusOr<SafetensorsHeader> parsed =
          ParseSafetensorsHeader(bytes, header.file_size_bytes);
      if (!parsed.ok()) {
        ASSERT_EQ(parsed.status().code(), StatusCode::kDataLoss);
        ASSERT_NE(parsed.status().message().find("offset"), parsed.status().message().npos);
        ++refused;
      } else {
        ASSERT_FALSE(same(*parsed, expected)) << "offset " << at << " bit " << bit;
      }
    }
  }
  EXPECT_GT(refused, 4000 * 7);
}

TEST(SafetensorsCorruption, HostileLengths) {
  for (const uint64_t length : {kMaxSafetensorsHeaderBytes + 1, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string bytes(64, ' ');
    StoreLittleEndian(length, bytes.data());
    EXPECT_EQ(SafetensorsHeaderBytes(bytes, ~uint64_t{0}).status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(SafetensorsHeaderBytes(bytes, 64).status().code(), StatusCode::kDataLoss);
  }
  std::string bytes(64, ' ');
  StoreLittleEndian(uint64_t{57}, bytes.data());
  EXPECT_FALSE(SafetensorsHeaderBytes(bytes, 64).ok());
  EXPECT_EQ(SafetensorsHeaderBytes(bytes, 65).value(), 65u);
}

// One header for each thing that the parser refuses, with the expected message. Data is 4 bytes
// long.
TEST(SafetensorsCorruption, EveryRefusalHasItsMessage) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"()", "begin with '{'"},
      {R"( {})", "begin with '{'"},
      {"\xEF\xBB\xBF{}", "begin with '{'"},
      {R"([])", "begin with '{'"},
      {std::string("{}\0", 3), "offset 10: a NUL"},
      {std::string("{}\0garbage", 10), "offset 10: a NUL"},
      {R"({)", "no valid JSON"},
      {R"({}x)", "no valid JSON"},
      {"{\"a\xFF\":1}", "no valid JSON"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},})", "no valid JSON"},
      {R"({"a":null})", "null"},
      {R"({"a":true})", "boolean"},
      {R"({"a":5})", "number"},
      {R"({"a":"U8"})", "string"},
      {R"({"a":[]})", "array"},
      {R"({"a":{"b":{}}})", "unknown field \"b\""},
      {R"({"a":{"shape":{}}})", "object"},
      {R"({"a":{"shape":[[4]],"dtype":"U8","data_offsets":[0,4]}})", "array"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", "negative"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", "4.0"},
      {R"({"a":{"dtype":"U8","shape":[1e99],"data_offsets":[0,4]}})", "1e99"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]}})", "1844"},
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})", "too large"},
      {R"({"a":{"dtype":"U8","shape":["4"],"data_offsets":[0,4]}})", "string"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", "number"},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", "number"},
      {R"({"a":{"dtype":"u8","shape":[4],"data_offsets":[0,4]}})", "unknown dtype \"u8\""},
      {R"({"a":{"dtype":"","shape":[4],"data_offsets":[0,4]}})", "unknown dtype \"\""},
      {R"({"a":{"dtype":"DTYPE_UNSPECIFIED","shape":[4],"data_offsets":[0,4]}})", "unknown dtype"},
      {R"({"a":{"dtype":"U9","shape":[2],"data_offsets":[0,2]}})", "the tensors end at"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", "more than two"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", "not a range"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "not a range"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", "missing"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", "missing"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", "missing"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
       "\"a\" occurs twice"},
      {R"({"__metadata__":{"x":"1"},"__metadata__":{"y":"1"}})", "twice"},
      {R"({"__metadata__":{"x":"1","x":"2"}})", "twice"},
      {R"({"__metadata__":{"x":1}})", "number"},
      {R"({"__metadata__":{"x":null}})", "null"},
      {R"({"__metadata__":null,"__metadata__":null})", "twice"},
      {R"({"a":null})", "null"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})", "need 3 bytes"},
      {R"({"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,4]}})",
       "overflows"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})", "data begins at 1, expected 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
       "data begins at 1, expected 2"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "data begins at 2, expected 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "the tensors end at"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "the tensors end at"},
      {R"({})", "the tensors end at"},
  };
  for (const auto& [json, message] : cases) {
    const std::string bytes = Raw(json);
    const absl::Status status = ParseSafetensorsHeader(bytes, bytes.size() + 4).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << json << ": " << status;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos)
        << json << ": " << status;
  }
  const std::string long_name = Raw("{\"" + std::string(100'000, 'n') + "\":null}");
  EXPECT_LT(ParseSafetensorsHeader(long_name, long_name.size()).status().message().size(), 400u);
  // The files of MLX have null.
  for (const std::string metadata : {"{}", "null"}) {
    const std::string good = Raw(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}, )"
                                 R"("__metadata__":)" +
                                 metadata + "}   ");
    EXPECT_OK(ParseSafetensorsHeader(good, good.size() + 4));
  }
}

TEST(SafetensorsCorruption, DeepNestingIsRefusedAtOnce) {
  const std::string bytes = Raw("{\"a\":" + std::string(1 << 20, '['));
  EXPECT_EQ(ParseSafetensorsHeader(bytes, bytes.size()).status().code(), StatusCode::kDataLoss);
  std::string dims = "1";
  for (int d = 1; d < 40; ++d) dims += ",1";
  const std::string many = Raw("{\"a\":{\"shape\":[" + dims + "]}}");
  EXPECT_EQ(ParseSafetensorsHeader(many, many.size()).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tessera::ckpt
