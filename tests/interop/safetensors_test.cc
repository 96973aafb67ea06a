// Files of safetensors of several programs, in folders without a model that is known.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/foreign_storage.h"
#include "convert/open_foreign.h"
#include "convert/write_foreign.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using Elements = std::map<std::string, std::vector<float>>;

Elements LoadAll(Storage& storage) {
  Elements elements;
  const auto checkpoint = ckpt::Checkpoint::Open(storage, "");
  EXPECT_OK(checkpoint);
  if (!checkpoint.ok()) return {};
  const ckpt::Manifest manifest = OrFail(ckpt::ReadManifest(storage, ""));
  for (const ckpt::LogicalTensor& tensor : manifest.tensors()) {
    elements[tensor.name()] = OrFail(checkpoint->LoadTensor<float>(tensor.name()));
  }
  return elements;
}

std::shared_ptr<MemoryStorage> CopiedTo(const std::string& name, const std::string& source) {
  auto storage = std::make_shared<MemoryStorage>();
  EXPECT_OK(WriteAll(*storage, name, OrFail(ReadWholeFile(source))));
  return storage;
}

// A file of safetensors with these entries, and 4 bytes of data for each.
std::string SafetensorsFile(const std::vector<std::string>& names,
                            const std::string& dtype_and_shape = R"("F32","shape":[1])") {
  std::string header;
  int64_t end = 0;
  for (const std::string& name : names) {
    absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", name,
                    "\":{\"dtype\":", name == "a" ? R"("F32","shape":[1])" : dtype_and_shape,
                    ",\"data_offsets\":[", end, ",", end + 4, "]}");
    end += 4;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  const float one = 1;
  for (int64_t i = 0; i < end / 4; ++i) {
    file.append(reinterpret_cast<const char*>(&one), sizeof(one));
  }
  return file;
}

TEST(SafetensorsFolders, SafetensorsOfDiffusersAndOfAdaptersAreRead) {
  for (const std::string stem : {"diffusion_pytorch_model", "adapter_model", "model"}) {
    const auto whole = std::make_shared<MemoryStorage>();
    ASSERT_OK(WriteAll(*whole, stem + ".safetensors", SafetensorsFile({"a", "b"})));
    const std::string first = stem + "-00001-of-00002.safetensors";
    const std::string second = stem + "-00002-of-00002.safetensors";
    const auto parts = std::make_shared<MemoryStorage>();
    ASSERT_OK(WriteAll(*parts, first, SafetensorsFile({"a"})));
    ASSERT_OK(WriteAll(*parts, second, SafetensorsFile({"b"})));
    ASSERT_OK(WriteAll(*parts, stem + ".safetensors.index.json",
                       R"({"weight_map":{"a":")" + first + R"(","b":")" + second + "\"}}"));
    for (const auto& folder : {whole, parts}) {
      ASSERT_OK_AND_ASSIGN(const auto opened, ckpt::convert::OpenForeignFolder(folder, {}));
      EXPECT_EQ(opened->format(), "safetensors");
      EXPECT_EQ(LoadAll(*opened), (Elements{{"a", {1}}, {"b", {1}}})) << stem;
      EXPECT_THAT(opened->notes(), ElementsAre());
    }
    ASSERT_OK_AND_ASSIGN(const auto part, ckpt::convert::OpenForeignFolder(parts, {}, second));
    EXPECT_EQ(part->format(), "safetensors");
    EXPECT_EQ(LoadAll(*part), (Elements{{"b", {1}}})) << stem;
  }
  // What torch has saved beside an adapter is the trainer's whole state.
  const auto beside = CopiedTo("last.ckpt", "tests/interop/state_dict/script.pt");
  ASSERT_OK(WriteAll(*beside, "adapter_model.safetensors", SafetensorsFile({"a"})));
  ASSERT_OK_AND_ASSIGN(const auto opened, ckpt::convert::OpenForeignFolder(beside, {}));
  EXPECT_EQ(opened->format(), "torch");
  ASSERT_OK(beside->Delete("adapter_model.safetensors"));
  ASSERT_OK(WriteAll(*beside, "adapter_model-00001-of-00001.safetensors", SafetensorsFile({"a"})));
  ASSERT_OK(WriteAll(*beside, "adapter_model.safetensors.index.json",
                     R"({"weight_map":{"a":"adapter_model-00001-of-00001.safetensors"}})"));
  ASSERT_OK_AND_ASSIGN(const auto indexed, ckpt::convert::OpenForeignFolder(beside, {}));
  EXPECT_EQ(indexed->format(), "torch");
  // A trainer's optimizer and scheduler are less than the weights.
  const auto trained = CopiedTo("optimizer.pt", "tests/interop/state_dict/script.pt");
  ASSERT_OK(WriteAll(*trained, "adapter_model.safetensors", SafetensorsFile({"a"})));
  ASSERT_OK_AND_ASSIGN(const auto adapter, ckpt::convert::OpenForeignFolder(trained, {}));
  EXPECT_EQ(adapter->format(), "safetensors");
}

TEST(SafetensorsFolders, ATensorOfAnUnknownDTypeRefusesNoOtherOne) {
  for (const std::string dtype :
       {R"("C64","shape":[])", R"("F8_E8M0","shape":[4])", R"("F4","shape":[2,4])"}) {
    const auto storage = std::make_shared<MemoryStorage>();
    ASSERT_OK(WriteAll(*storage, "model.safetensors", SafetensorsFile({"a", "b"}, dtype)));
    ASSERT_OK_AND_ASSIGN(const auto opened, ckpt::convert::OpenForeignFolder(storage, {}));
    EXPECT_EQ(LoadAll(*opened), (Elements{{"a", {1}}})) << dtype;
    EXPECT_THAT(opened->unread(), ElementsAre(Pair("b", "a tensor of a dtype that is not read")));
    EXPECT_THAT(opened->notes(), ElementsAre("Left out: tensors of dtypes that are not read: b."));
    // A model needs all of its tensors.
    ASSERT_OK(WriteAll(*storage, "config.json",
                       OrFail(ReadWholeFile("tests/interop/pytorch/gpt2.hf/config.json"))));
    const absl::Status status = ckpt::convert::OpenForeignFolder(storage, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the tensor b has a dtype that is not read; "));
  }
  const auto storage = std::make_shared<MemoryStorage>();
  ASSERT_OK(WriteAll(*storage, "model.safetensors",
                     SafetensorsFile({"a", "b"}, R"("float32","shape":[1])")));
  const absl::Status status = ckpt::convert::OpenForeignFolder(storage, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(SafetensorsFolders, WeightsBesideThoseThatAreReadAreNamed) {
  const auto storage = CopiedTo("pytorch_model.bin", "tests/interop/state_dict/script.pt");
  for (const std::string file : {"config.json", "model.safetensors"}) {
    ASSERT_OK(
        WriteAll(*storage, file, OrFail(ReadWholeFile("tests/interop/pytorch/gpt2.hf/" + file))));
  }
  ASSERT_OK_AND_ASSIGN(const auto opened, ckpt::convert::OpenForeignFolder(storage, {}));
  EXPECT_EQ(opened->format(), "hf");
  EXPECT_THAT(opened->notes(),
              Contains("Left out: other weights beside those of safetensors: pytorch_model.bin."));
}

TEST(SafetensorsFolders, TheNameOfTheFormatChoosesBetweenDcpAndSafetensors) {
  const std::string folder = "tests/interop/state_dict/numbered_dcp/";
  const auto storage = CopiedTo(".metadata", folder + ".metadata");
  ASSERT_OK(WriteAll(*storage, "__0_0.distcp", OrFail(ReadWholeFile(folder + "__0_0.distcp"))));
  ASSERT_OK(WriteAll(*storage, "model.safetensors", SafetensorsFile({"a"})));
  for (const std::string format : {"", "dcp", "safetensors"}) {
    ASSERT_OK_AND_ASSIGN(const auto opened,
                         ckpt::convert::OpenForeignFolder(storage, {.format = format}));
    EXPECT_EQ(opened->format(), format.empty() ? "dcp" : format);
    EXPECT_EQ(LoadAll(*opened).contains("a"), format == "safetensors");
  }
}

TEST(SafetensorsFolders, TheFormatIsListedAmongThoseThatAreRead) {
  const auto storage = std::make_shared<MemoryStorage>();
  ASSERT_OK(WriteAll(*storage, "model.safetensors", SafetensorsFile({"a"})));
  const absl::Status unknown =
      ckpt::convert::OpenForeignFolder(storage, {.format = "dvd"}).status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr(", gguf, safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto opened, ckpt::convert::OpenForeignFolder(storage, {}));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, ckpt::Checkpoint::Open(*opened, ""));
  const absl::Status written =
      ckpt::convert::WriteForeign(checkpoint, "unwritten", {.format = "safetensors"}).status();
  EXPECT_THAT(std::string(written.message()),
              HasSubstr("only read is the format \"safetensors\"; written are hf, "));
}

}  // namespace
}  // namespace tessera
