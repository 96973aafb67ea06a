#include "convert/formats/infinitrain/state_file.h"

#include "base/byte_order.h"
#include "base/testing.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/formats/infinitrain/infinitrain.h"
#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt::convert {
namespace {

using ::testing::HasSubstr;

// What of a file a test changes.
struct FileSpec {
  std::string magic = "CKPT";
  uint32_t version = 1;
  uint32_t count = 2;
  std::string name = "weight";
  uint8_t dtype = 11;  // F32
  std::vector<uint64_t> dims = {2, 3};
  uint64_t bytes = 24;
};

void AppendTensor(const FileSpec& spec, std::string& file) {
  AppendLittleEndian(static_cast<uint32_t>(spec.name.size()), file);
  file += spec.name;
  AppendLittleEndian(spec.dtype, file);
  AppendLittleEndian(static_cast<uint32_t>(spec.dims.size()), file);
  for (const uint64_t dim : spec.dims) AppendLittleEndian(dim, file);
  AppendLittleEndian(spec.bytes, file);
}

// A scalar "step" of I64, and the tensor of the spec with 24 bytes of elements.
std::string MakeFile(const FileSpec& spec) {
  std::string file = spec.magic;
  AppendLittleEndian(spec.version, file);
  AppendLittleEndian(spec.count, file);
  AppendTensor({.name = "step", .dtype = 8, .dims = {}, .bytes = 8}, file);
  AppendLittleEndian(uint64_t{7}, file);
  AppendTensor(spec, file);
  return file + std::string(24, 'x');
}

std::string ErrorOf(const std::string& bytes) {
  return std::string(ReadInfiniTrainStateFile(StringFile(bytes)).status().message());
}
std::string ErrorOf(const FileSpec& spec) { return ErrorOf(MakeFile(spec)); }

TEST(StateFileTest, ReadsTensorsWithoutTheirElements) {
  const StringFile file(MakeFile({}));
  ASSERT_OK_AND_ASSIGN(const auto tensors, ReadInfiniTrainStateFile(file));
  ASSERT_EQ(tensors.size(), 2);
  EXPECT_EQ(tensors.at(0).name, "step");
  EXPECT_EQ(tensors.at(0).dtype, DType::kI64);
  EXPECT_TRUE(tensors.at(0).shape.empty());
  EXPECT_EQ(file.contents()[tensors.at(0).offset_bytes], 7);
  EXPECT_EQ(tensors.at(1).name, "weight");
  EXPECT_EQ(tensors.at(1).dtype, DType::kF32);
  EXPECT_EQ(tensors.at(1).shape, Shape({2, 3}));
  EXPECT_EQ(tensors.at(1).offset_bytes, file.size_bytes() - 24);
}

// No number leads to a tensor of the optimizer, even if model.ckpt has one.
TEST(StateFileTest, NumbersOfWhatIsNoWeightAreLeftOut) {
  const auto file_of = [](const std::vector<FileSpec>& tensors) {
    std::string file = "CKPT";
    AppendLittleEndian(uint32_t{1}, file);
    AppendLittleEndian(static_cast<uint32_t>(tensors.size()), file);
    for (const FileSpec& tensor : tensors) {
      AppendTensor(tensor, file);
      file.append(tensor.bytes, '\1');
    }
    return file;
  };
  for (const char* const name : {"adam.t", "adam.m.weight"}) {
    MemoryStorage storage;
    const FileSpec weight = {.name = name, .dtype = 8, .dims = {1}, .bytes = 8};
    FileSpec first = weight, second = weight;
    first.name = "adam.m.0";
    second.name = "adam.v.0";
    ASSERT_OK(WriteAll(storage, "model.ckpt", file_of({weight})));
    ASSERT_OK(WriteAll(storage, "optimizer.ckpt", file_of({first, second})));
    ASSERT_OK(WriteAll(storage, "trainer_state.json", "{\"global_step\": 1}"));
    ASSERT_OK_AND_ASSIGN(const ForeignCheckpoint read, ReadInfiniTrain(storage, nullptr));
    EXPECT_THAT(read.notes, ::testing::Contains(HasSubstr("moments by number")));
  }
}

TEST(StateFileTest, SkipsElements) {
  constexpr uint64_t kBytes = uint64_t{4} << 20;
  std::string bytes = "CKPT";
  AppendLittleEndian(uint32_t{1}, bytes);
  AppendLittleEndian(uint32_t{1}, bytes);
  AppendTensor({.dims = {kBytes / 4}, .bytes = kBytes}, bytes);
  const StringFile file(bytes + std::string(kBytes, '\0'));
  EXPECT_OK(ReadInfiniTrainStateFile(file));
  EXPECT_LT(file.bytes_read(), 10'000);
}

TEST(StateFileTest, RefusesWhatIsNoStateDict) {
  EXPECT_EQ(ErrorOf({.magic = "CKPS"}), "not a state dict of InfiniTrain");
  EXPECT_EQ(ErrorOf({.version = 2}), "version 2 of InfiniTrain's files");
  EXPECT_EQ(ErrorOf({.count = UINT32_MAX}), "4294967295 tensors do not fit into 104 bytes");
  EXPECT_EQ(ErrorOf({.count = 1}), "63 bytes after the last tensor");
  EXPECT_THAT(ErrorOf({.count = 3}),
              HasSubstr("tensor number 2: offset 104: expected 4 more bytes, found 0"));
  EXPECT_EQ(ErrorOf(MakeFile({}) + "x"), "1 bytes after the last tensor");
}

TEST(StateFileTest, RefusesImpossibleTensors) {
  EXPECT_EQ(ErrorOf({.name = "step"}), "tensor step: occurs twice");
  EXPECT_THAT(ErrorOf({.name = ""}), HasSubstr("tensor number 1: a name of 0 bytes"));
  EXPECT_THAT(ErrorOf({.name = "\xff"}), HasSubstr("tensor number 1: a name that is not valid"));
  EXPECT_THAT(ErrorOf({.name = std::string(5000, 'n')}), HasSubstr("a name of 5000 bytes"));
  EXPECT_EQ(ErrorOf({.dtype = 13}), "tensor weight: unknown dtype 13");
  EXPECT_EQ(ErrorOf({.dtype = 255}), "tensor weight: unknown dtype 255");
  EXPECT_THAT(ErrorOf({.dims = std::vector<uint64_t>(33, 1)}),
              HasSubstr("tensor weight: 33 dims; at most 32"));
  EXPECT_THAT(ErrorOf({.dims = {2, UINT64_MAX}}), HasSubstr("tensor weight: "));
  EXPECT_THAT(ErrorOf({.dims = {uint64_t{1} << 40, uint64_t{1} << 40}}),
              HasSubstr("tensor weight: "));
  EXPECT_EQ(ErrorOf({.dims = {2, 4}}), "tensor weight: expected 32 bytes for [2,4], found 24");
  EXPECT_THAT(ErrorOf({.dims = {2, 4}, .bytes = 32}),
              HasSubstr("tensor weight: offset 80: expected 32 more bytes, found 24"));
}

TEST(StateFileTest, RefusesEveryTruncation) {
  const std::string bytes = MakeFile({});
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(ErrorOf(bytes.substr(0, length)), "") << length;
  }
}

constexpr char kText[] = R"({
  "n_embd": 16,
  "vocab_size": 61
  "global_step": 3,
  "last_lr": 0.001,
  "twice": 1,
  "twice": 2,
  "huge": 99999999999999999999,
  "optimizer": "adam",
  "pp_size": 1
})";

TEST(TrainerStateTest, FindsNumbersWhereACommaIsMissing) {
  EXPECT_EQ(FindInfiniTrainNumber(kText, "n_embd"), 16);
  EXPECT_EQ(FindInfiniTrainNumber(kText, "vocab_size"), 61);
  EXPECT_EQ(FindInfiniTrainNumber(kText, "global_step"), 3);
  EXPECT_EQ(FindInfiniTrainNumber(kText, "pp_size"), 1);
  EXPECT_EQ(FindInfiniTrainNumber("{\"pp_size\" : -1}", "pp_size"), -1);
}

TEST(TrainerStateTest, OtherValuesAreUnknown) {
  for (const char* key : {"step", "last_lr", "twice", "huge", "optimizer", ""}) {
    EXPECT_EQ(FindInfiniTrainNumber(kText, key), std::nullopt) << key;
  }
  for (const char* text :
       {"", "\"step\"", "\"step\":", "\"step\": ,", "\"step\" 3", "\"step\": 3 4"}) {
    EXPECT_EQ(FindInfiniTrainNumber(text, "step"), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tessera::ckpt::convert
