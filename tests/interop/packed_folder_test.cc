// The corpus of fuzz targets that read several files: checkpoints, packed, are read.

#include "convert/testing/packed_folder.h"

#include <string>
#include <string_view>

#include "base/files.h"
#include "base/testing.h"
#include "convert/formats/deepspeed/deepspeed.h"
#include "convert/formats/megatron/megatron.h"
#include "convert/open_foreign.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

namespace convert = ckpt::convert;

std::string Corpus(const std::string& name) {
  return OrFail(ReadWholeFile("tests/interop/corpus/" + name));
}

absl::Status ReadDeepSpeed(std::string_view packed) {
  return convert::ReadPackedFolder(packed,
                                   [](auto& storage) { return convert::ReadDeepSpeed(storage); });
}

absl::Status ReadMegatron(std::string_view packed) {
  return convert::ReadPackedFolder(packed,
                                   [](auto& storage) { return convert::ReadMegatron(storage); });
}

absl::Status ReadFolder(std::string_view packed) {
  return convert::OpenForeignFolder(convert::UnpackFolder(packed), {}).status();
}

TEST(PackedFolderTest, TheCorpusHasWholeCheckpoints) {
  for (const char* const name :
       {"zero1", "zero2_bf16", "zero3_bf16", "universal", "universal_frozen"}) {
    const absl::Status status = ReadDeepSpeed(Corpus(std::string("deepspeed/") + name));
    EXPECT_OK(status) << name;
  }
  for (const char* const name : {"buckets", "gathered", "ranks"}) {
    const absl::Status status = ReadMegatron(Corpus(std::string("megatron/") + name));
    EXPECT_OK(status) << name;
  }
  for (const char* const name :
       {"adapter", "blobs_of_safetensors", "objects", "parts", "trainer", "two_models"}) {
    EXPECT_OK(ReadFolder(Corpus(std::string("folder/") + name))) << name;
  }
}

TEST(PackedFolderTest, FilesThatAreCutOffAreMissed) {
  const std::string zero1 = Corpus("deepspeed/zero1"), ranks = Corpus("megatron/ranks");
  EXPECT_FALSE(ReadDeepSpeed(std::string_view(zero1).substr(0, zero1.size() / 2)).ok());
  EXPECT_FALSE(ReadMegatron(std::string_view(ranks).substr(0, ranks.size() / 2)).ok());
}

}  // namespace
}  // namespace tessera
