// State of the distributed optimizer that is stored by buffer, in changed checkpoints.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>

#include "convert/testing/zip_changes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr char kBuckets[] = "tests/interop/megatron/buckets_llama3_untied_dp2_tp2_pp2";
constexpr char kFlatBuckets[] = "tests/interop/megatron/flat_buckets_gpt2_dp2";
constexpr char kGathered[] = "tests/interop/megatron/gathered_llama3_bf16_dp2_tp2_pp2";

// The error of reading a copy of the checkpoint, one file of which is changed.
std::string ErrorWith(const std::string& fixture, const std::string& file,
                      const std::function<void(std::string&)>& change) {
  const fs::path copy = fs::path(::testing::TempDir()) / "megatron_buckets";
  fs::remove_all(copy);
  fs::copy(fixture, copy, fs::copy_options::recursive);
  std::ifstream in(copy / file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(bytes.empty()) << file;
  change(bytes);
  std::ofstream(copy / file, std::ios::binary) << ckpt::convert::WithoutChecksums(bytes);
  std::ostringstream out, err;
  const int exit_code =
      ckpt::RunCkpt({"verify", copy.string(), "--from=megatron"}, {out, err, nullptr});
  EXPECT_EQ(exit_code == ckpt::kExitOk, err.str().empty()) << err.str();
  return exit_code == ckpt::kExitOk ? "" : err.str();
}

// Changes an argument of the run that is a small number.
void SetArgument(std::string& common, const std::string& name, char from, char to) {
  const size_t key = common.find(name);
  ASSERT_NE(key, std::string::npos);
  const size_t value = common.find(std::string("K") + from, key);
  ASSERT_NE(value, std::string::npos);
  common[value + 1] = to;
}

// The order of a buffer's parameters is the one that its contents show, whatever the arguments say.
TEST(MegatronBucketsTest, TheOrderIsFoundInTheFiles) {
  for (const char* const fixture : {kBuckets, kGathered}) {
    EXPECT_EQ(ErrorWith(fixture, "common.pt",
                        [](std::string& common) {
                          const size_t at = common.find("local", common.find("transformer_impl"));
                          ASSERT_NE(at, std::string::npos);
                          common.replace(at, 5, "other");
                        }),
              "");
  }
}

TEST(MegatronBucketsTest, RefusesAnotherGrid) {
  EXPECT_THAT(ErrorWith(kBuckets, "common.pt",
                        [](std::string& common) {
                          SetArgument(common, "tensor_model_parallel_size", 2, 4);
                        }),
              HasSubstr("the optimizer's state has 4 buffers, but the run had 4 tensor-parallel "
                        "and 2 pipeline-parallel ranks"));
  EXPECT_THAT(ErrorWith(kBuckets, "common.pt",
                        [](std::string& common) {
                          SetArgument(common, "tensor_model_parallel_size", 2, 1);
                        }),
              HasSubstr("elements are not what whole layers of the model take up in buckets"));
}

// The sizes without padding, which releases up to 0.10 need, are three of two bytes.
TEST(MegatronBucketsTest, RefusesSizesThatAreNotTheBuckets) {
  const auto set_first_size = [](std::string& bytes, uint16_t size) {
    const std::string stored("\x80\x04M\x18\x04M\x40\x04", 8);  // of 1152, 1048, 1088
    const size_t at = bytes.find(stored);
    ASSERT_NE(at, std::string::npos);
    bytes[at] = static_cast<char>(size & 0xff);
    bytes[at + 1] = static_cast<char>(size >> 8);
  };
  for (const uint16_t size : {1153, 1024}) {
    EXPECT_THAT(ErrorWith(kFlatBuckets, "__0_0.distcp",
                          [&](std::string& bytes) { set_first_size(bytes, size); }),
                size > 1152 ? HasSubstr("bucket 0 has 1152 elements, 1153 without padding")
                            : HasSubstr("elements are not what whole layers of the model take up"));
  }
}

TEST(MegatronBucketsTest, RefusesTruncatedState) {
  const auto halve = [](std::string& bytes) { bytes.resize(bytes.size() / 2); };
  EXPECT_THAT(ErrorWith(kBuckets, "__3_0.distcp", halve), HasSubstr("__3_0.distcp"));
  EXPECT_THAT(ErrorWith(kGathered, "__1_0.distcp", halve), HasSubstr("__1_0.distcp"));
}

}  // namespace
}  // namespace tessera
