// `ckpt` on files of torch.save() and folders of torch.distributed.checkpoint.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "convert/testing/zip_changes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

class TorchCommandTest : public ::testing::Test {
 protected:
  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int exit_code = RunCkpt(arguments, {out, err, nullptr});
    out_ = out.str();
    err_ = err.str();
    return exit_code;
  }

  // Looks at the checkpoint, and turns it into one of ours that holds the same.
  void ExpectConverts(const std::string& path, const std::string& format) {
    const std::string written = ::testing::TempDir() + "/" + format;
    std::filesystem::remove_all(written);
    EXPECT_EQ(Run({"inspect", path}), kExitOk) << err_;
    EXPECT_THAT(out_, HasSubstr("format      " + format));
    EXPECT_EQ(Run({"ls", path}), kExitOk) << err_;
    EXPECT_EQ(Run({"verify", path, "--from=" + format}), kExitOk) << err_;
    ASSERT_EQ(Run({"convert", path, written, "--to=tessera"}), kExitOk) << err_;
    EXPECT_EQ(Run({"diff", path, written}), kExitOk) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("by every bit of the contents"));
    EXPECT_EQ(Run({"verify", written, "--digests"}), kExitOk) << out_;
  }

  // A copy of a checkpoint of the tests, one file of which is changed.
  template <typename Change>
  std::string Changed(const std::string& path, const std::string& file, Change change) {
    const std::filesystem::path copy =
        std::filesystem::path(::testing::TempDir()) / ("changed_" + Name(path));
    std::filesystem::remove_all(copy);
    std::filesystem::copy(path, copy, std::filesystem::copy_options::recursive);
    const std::filesystem::path changed = file.empty() ? copy : copy / file;
    std::ifstream in(changed, std::ios::binary);
    std::string contents{std::istreambuf_iterator<char>(in), {}};
    change(contents);
    std::ofstream(changed, std::ios::binary) << contents;
    return copy.string();
  }
  static std::string Name(const std::string& path) {
    return std::filesystem::path(path).filename().string();
  }

  std::string out_, err_;
};

TEST_F(TorchCommandTest, FilesOfTorchSave) {
  const std::string folder = "convert/torch/testdata/";
  for (const char* file : {"views.pt", "views_legacy.pt", "training.pt", "dtypes.pt"}) {
    SCOPED_TRACE(file);
    ExpectConverts(folder + file, "torch");
  }
  EXPECT_EQ(Run({"inspect", folder + "short_storage.pt"}), kExitDifferent);
  EXPECT_THAT(err_, HasSubstr("short_storage.pt"));
}

TEST_F(TorchCommandTest, FoldersOfTorchDistributedCheckpoint) {
  const std::string folder = "convert/dcp/testdata/";
  for (const char* checkpoint : {"one", "sharded", "fsdp", "blobs_of_safetensors"}) {
    SCOPED_TRACE(checkpoint);
    ExpectConverts(folder + checkpoint, "dcp");
  }
}

TEST_F(TorchCommandTest, OneFlippedByteIsFound) {
  const std::string torch = "convert/torch/testdata/training.pt";
  const std::string dcp = "convert/dcp/testdata/one";
  const std::string into = ::testing::TempDir() + "/from_damaged";
  for (const auto& [path, file] : {std::pair(torch, ""), std::pair(dcp, "__0_0.distcp")}) {
    SCOPED_TRACE(path);
    const std::string damaged = Changed(
        path, file, [&](std::string& zip) { ASSERT_TRUE(convert::DamageMember("/data/0", zip)); });
    EXPECT_EQ(Run({"verify", damaged}), kExitDifferent) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("data/0 of"));
    EXPECT_THAT(out_, HasSubstr("its CRC-32 is"));
    EXPECT_THAT(out_, HasSubstr("DAMAGED"));
    std::filesystem::remove_all(into);
    EXPECT_EQ(Run({"convert", damaged, into, "--to=tessera"}), kExitDifferent) << out_;
    EXPECT_THAT(err_, HasSubstr("its CRC-32 is"));
    EXPECT_FALSE(std::filesystem::exists(into + "/step-00000000"));
    EXPECT_EQ(Run({"verify", path}), kExitOk);
    EXPECT_THAT(out_, HasSubstr("tensors match the CRC-32 stored with them"));
  }
}

TEST_F(TorchCommandTest, OneFlippedByteOfThePickleIsFound) {
  const std::string damaged =
      Changed("convert/torch/testdata/training.pt", "",
              [](std::string& zip) { zip.replace(zip.find("exp_avg"), 7, "exp_bvg"); });
  EXPECT_EQ(Run({"verify", damaged}), kExitDifferent) << out_;
  EXPECT_THAT(err_, HasSubstr("data.pkl of"));
  EXPECT_THAT(err_, HasSubstr("its CRC-32 is"));
}

// Part of a storage that no tensor shows is checked as well.
TEST_F(TorchCommandTest, ElementsThatNoTensorShowsAreChecked) {
  const std::string views = "convert/torch/testdata/views.pt";
  for (const char* storage : {"/data/0", "/data/1"}) {
    const std::string damaged = Changed(
        views, "", [&](std::string& zip) { ASSERT_TRUE(convert::DamageMember(storage, zip)); });
    EXPECT_EQ(Run({"verify", damaged}), kExitDifferent) << storage << out_;
  }
}

TEST_F(TorchCommandTest, FilesWithoutChecksumsAreReadWithANote) {
  const std::string file = Changed("convert/torch/testdata/training.pt", "", [](std::string& zip) {
    zip = convert::WithoutChecksums(std::move(zip));
  });
  EXPECT_EQ(Run({"verify", file}), kExitOk) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("these files (torch) have no checksums"));
  EXPECT_THAT(out_, HasSubstr("set_crc32_options(False)"));
}

}  // namespace
}  // namespace tessera::ckpt
