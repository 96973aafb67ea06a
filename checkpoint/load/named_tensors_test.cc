// A part of a checkpoint is a valid checkpoint.

#include "checkpoint/load/named_tensors.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/format/manifest_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using testing::ElementsAre;

// Tensors t0 to t9 of 4 bytes, of which tN is in file N / 2, and "second", an alias of t5.
Manifest TenTensors() {
  Manifest manifest;
  manifest.set_format_major(kFormatMajor);
  for (int i = 0; i < 10; ++i) {
    LogicalTensor& tensor = *manifest.add_tensors();
    tensor.set_name(absl::StrCat("t", i));
    tensor.set_role(WEIGHT);
    tensor.set_dtype(F32);
    tensor.add_global_shape(1);
    AddShard({.global_offset = {0}, .shape = {1}}, i / 2, i % 2 * 4, tensor);
  }
  LogicalTensor& alias = *manifest.add_tensors();
  alias = manifest.tensors(5);
  alias.set_name("second");
  alias.clear_shards();
  alias.set_alias_of("t5");
  for (int i = 0; i < 5; ++i) {
    DataFile& file = *manifest.add_files();
    file.set_path(absl::StrCat("model-", i));
    file.set_size_bytes(8);
    file.set_chunk_bytes(4);
    file.add_chunk_crc32c(i);
    file.add_chunk_crc32c(100 + i);
  }
  return manifest;
}

std::vector<std::string> NamesOf(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : manifest.tensors()) {
    std::string in;
    for (const uint32_t file : tensor.shards().file_index()) in = manifest.files(file).path();
    names.push_back(absl::StrCat(tensor.name(), " ", in));
  }
  return names;
}

TEST(NamedTensorsTest, APartIsAValidManifest) {
  const Manifest whole = TenTensors();
  EXPECT_EQ(ValidateManifest(whole).message(), "");
  const NamedTensors named(whole);
  EXPECT_EQ(named.Find("t7"), &whole.tensors(7));
  EXPECT_EQ(named.Find("t"), nullptr);

  const std::vector<std::string> names = {"t9", "second", "none", "t4", "t9"};
  const Manifest part = named.ManifestOf(names);
  EXPECT_EQ(ValidateManifest(part).message(), "");
  EXPECT_THAT(NamesOf(part), ElementsAre("t9 model-4", "second ", "t5 model-2", "t4 model-2"));
  EXPECT_EQ(part.files_size(), 2);
  EXPECT_EQ(part.files(0).SerializeAsString(), whole.files(4).SerializeAsString());
  EXPECT_EQ(named.ManifestOf({}).tensors_size(), 0);
}

TEST(NamedTensorsTest, AWeightThatWasNotSavedIsItsMasterWeight) {
  Manifest whole = TenTensors();
  const auto name_master = [&](const char* parameter, const char* master) {
    OptimizerParameter& entry = *whole.mutable_optimizer()->add_parameters();
    entry.set_parameter(parameter);
    (*entry.mutable_states())["master"] = master;
  };
  name_master("t3", "t1");
  name_master("w", "t2");
  const Manifest part = NamedTensors(whole).ManifestOf(std::vector<std::string>{"w", "t3", "w"});
  EXPECT_THAT(NamesOf(part), ElementsAre("t2 model-1", "t3 model-1"));
  ASSERT_EQ(part.optimizer().parameters_size(), 1);
  EXPECT_EQ(part.optimizer().parameters(0).parameter(), "w");
  EXPECT_EQ(part.optimizer().parameters(0).states().at("master"), "t2");
}

}  // namespace
}  // namespace tessera::ckpt
