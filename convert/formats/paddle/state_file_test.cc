// State dicts in each form that paddle.save() has had: make_testdata.py writes them.

#include "convert/formats/paddle/state_file.h"

#include <cstring>
#include <tuple>

#include "base/files.h"
#include "base/testing.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

StringFile Read(const std::string& name) {
  return StringFile(OrFail(ReadWholeFile("convert/formats/paddle/testdata/" + name)));
}

// The values of an array of F32, in the order of its parts.
std::vector<float> Values(const StringFile& file, const PaddleArray& array) {
  std::vector<float> values;
  for (const pickle::NumpyArray& part : array.parts) {
    std::vector<float> some(static_cast<size_t>(ElementCount(part.shape)));
    std::memcpy(some.data(), file.contents().data() + part.offset_bytes,
                some.size() * sizeof(float));
    values.insert(values.end(), some.begin(), some.end());
  }
  return values;
}

std::vector<float> Iota(int count, float first = 0) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return values;
}

std::string ErrorOf(const std::string& name) {
  return std::string(ReadPaddleStateFile(Read(name)).status().message());
}

TEST(StateFileTest, ArraysAndATableOfNames) {
  const StringFile file = Read("weights.pdparams");
  ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(file));
  ASSERT_EQ(state.arrays.size(), 2);
  EXPECT_EQ(state.arrays[0].key, "a");
  EXPECT_EQ(state.arrays[0].tensor_name, "linear_0.w_0");
  EXPECT_EQ(state.arrays[0].dtype, DType::kF32);
  EXPECT_EQ(state.arrays[0].shape, (Shape{3, 4}));
  EXPECT_EQ(state.arrays[0].parts[0].strides, (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(Values(file, state.arrays[0]), Iota(12));
  EXPECT_EQ(state.arrays[1].tensor_name, "linear_0.b_0");
  EXPECT_EQ(Values(file, state.arrays[1]), Iota(5));
}

TEST(StateFileTest, PairsOfNamesAndArrays) {
  const StringFile file = Read("states.pdopt");
  ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(file));
  ASSERT_EQ(state.arrays.size(), 1);
  EXPECT_EQ(state.arrays[0].tensor_name, "linear_0.w_0_moment1_0");
  ASSERT_EQ(state.master_weights.size(), 1);
  EXPECT_EQ(state.master_weights[0].key, "linear_0.w_0");
  EXPECT_EQ(state.master_weights[0].tensor_name, "linear_0.w_0_fp32_master_0");
  EXPECT_EQ(Values(file, state.master_weights[0]), Iota(12, 1));
  EXPECT_EQ(state.last_epoch, 7);
}

TEST(StateFileTest, BFloat16IsStoredAsIntegers) {
  ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(Read("bfloat16.pdparams")));
  ASSERT_EQ(state.arrays.size(), 1);
  EXPECT_EQ(state.arrays[0].dtype, DType::kBF16);
}

TEST(StateFileTest, BigArraysAreInParts) {
  const StringFile file = Read("parts.pdparams");
  ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(file));
  ASSERT_EQ(state.arrays.size(), 2);
  EXPECT_EQ(state.arrays[0].key, "a");
  EXPECT_EQ(state.arrays[0].tensor_name, "linear_0.w_0");
  EXPECT_EQ(state.arrays[0].shape, (Shape{3, 4}));
  EXPECT_EQ(state.arrays[0].parts.size(), 3);
  EXPECT_EQ(Values(file, state.arrays[0]), Iota(12));
  EXPECT_EQ(state.arrays[1].key, "b");
}

TEST(StateFileTest, OrderOfFortran) {
  for (const char* const name : {"fortran.pdparams", "protocol5.pdparams"}) {
    const StringFile file = Read(name);
    ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(file));
    const PaddleArray& array = state.arrays.back();
    EXPECT_EQ(array.shape, (Shape{3, 4}));
    EXPECT_EQ(array.parts[0].strides, (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(Values(file, array)[1], 4) << name;
  }
}

TEST(StateFileTest, Protocol2StoresElementsAsText) {
  const StringFile file = Read("protocol2.pdparams");
  ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(file));
  ASSERT_EQ(state.arrays.size(), 1);
  EXPECT_EQ(state.arrays[0].shape, (Shape{3, 4}));
  EXPECT_EQ(Values(StringFile(file.contents() + state.decoded), state.arrays[0]), Iota(12));
  // An element's byte as no text in Latin-1 has it, one byte less, another encoding.
  for (const auto& [good, bad, message] :
       {std::tuple("\xC2\x80", "\xC4\x80", "not stored as text"),
        {"\xC2\x80?", "\xC2\x80\xC2", "not stored as text"},
        {"@@", "\xC2\x80", "expected 48 bytes as text in latin1, found 47"},
        {"latin1", "latin2", "as text in latin1"}}) {
    std::string contents = file.contents();
    const size_t at = contents.find(good);
    ASSERT_NE(at, contents.npos);
    contents.replace(at, std::string_view(good).size(), bad);
    const absl::Status status = ReadPaddleStateFile(StringFile(contents)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(StateFileTest, NothingStored) {
  ASSERT_OK_AND_ASSIGN(const auto state, ReadPaddleStateFile(Read("empty.pdparams")));
  EXPECT_TRUE(state.arrays.empty());
}

TEST(StateFileTest, ErrorsNameTheKey) {
  EXPECT_THAT(ErrorOf("bad_shape.pdparams"), HasSubstr("[3,5] takes 60 bytes, it has 48"));
  EXPECT_THAT(ErrorOf("bad_big_endian.pdparams"), HasSubstr("big-endian"));
  EXPECT_THAT(ErrorOf("bad_dtype.pdparams"), HasSubstr("a numpy array of the dtype V4"));
  EXPECT_THAT(ErrorOf("bad_part.pdparams"), HasSubstr("a: its part 1 is missing or not flat"));
  EXPECT_THAT(ErrorOf("bad_root.pdparams"), HasSubstr("expected a dict, found list"));
}

}  // namespace
}  // namespace tessera::ckpt::convert
