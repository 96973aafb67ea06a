// `ckpt` on damaged files of torch.save() and folders of torch.distributed.checkpoint.

#include <filesystem>
#include <string>
#include <utility>

#include "convert/testing/string_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class TorchCommandTest : public testing::ForeignTest {
 protected:
  // A copy of a checkpoint of the tests, one file of which is changed.
  template <typename Change>
  std::string Changed(const std::string& path, const std::string& file, Change change) {
    const std::string copy = CopyOf(path, "changed");
    const std::string changed = file.empty() ? copy : copy + "/" + file;
    std::string contents = ReadFile(changed);
    change(contents);
    WriteFile(changed, contents);
    return copy;
  }
};

TEST_F(TorchCommandTest, AFileOfAFolderIsNoDamage) {
  for (const std::string file : {"convert/formats/dcp/testdata/one/__0_0.distcp",
                                 "tests/interop/paddle/testdata/dp/model_state.pdparams"}) {
    EXPECT_EQ(Run({"verify", file}), ckpt::kExitUsage) << out_;
    EXPECT_THAT(err_, HasSubstr("; a checkpoint is named by its folder"));
  }
}

TEST_F(TorchCommandTest, OneFlippedByteIsFound) {
  const std::string torch = "convert/formats/torch/testdata/training.pt";
  const std::string dcp = "convert/formats/dcp/testdata/one";
  const std::string into = In("from_damaged");
  for (const auto& [path, file] : {std::pair(torch, ""), std::pair(dcp, "__0_0.distcp")}) {
    SCOPED_TRACE(path);
    const std::string damaged = Changed(path, file, [&](std::string& zip) {
      ASSERT_TRUE(ckpt::convert::DamageMember("/data/0", zip));
    });
    EXPECT_EQ(Run({"verify", damaged}), ckpt::kExitDifferent) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("data/0 of"));
    EXPECT_THAT(out_, HasSubstr("its CRC-32 is"));
    EXPECT_THAT(out_, HasSubstr("DAMAGED"));
    std::filesystem::remove_all(into);
    EXPECT_EQ(Run({"convert", damaged, into, "--to=tessera"}), ckpt::kExitDifferent) << out_;
    EXPECT_THAT(err_, HasSubstr("its CRC-32 is"));
    EXPECT_FALSE(std::filesystem::exists(into + "/step-00000000"));
    EXPECT_EQ(Run({"verify", path}), ckpt::kExitOk);
    EXPECT_THAT(out_, HasSubstr("the stored CRC-32s match the contents of "));
  }
}

TEST_F(TorchCommandTest, OneFlippedByteOfThePickleIsFound) {
  const std::string damaged =
      Changed("convert/formats/torch/testdata/training.pt", "",
              [](std::string& zip) { zip.replace(zip.find("exp_avg"), 7, "exp_bvg"); });
  EXPECT_EQ(Run({"verify", damaged}), ckpt::kExitDifferent) << out_;
  EXPECT_THAT(err_, HasSubstr("data.pkl of"));
  EXPECT_THAT(err_, HasSubstr("its CRC-32 is"));
}

// Part of a storage that no tensor shows is checked as well.
TEST_F(TorchCommandTest, ElementsThatNoTensorShowsAreChecked) {
  const std::string views = "convert/formats/torch/testdata/views.pt";
  for (const char* storage : {"/data/0", "/data/1"}) {
    const std::string damaged = Changed(views, "", [&](std::string& zip) {
      ASSERT_TRUE(ckpt::convert::DamageMember(storage, zip));
    });
    EXPECT_EQ(Run({"verify", damaged}), ckpt::kExitDifferent) << storage << out_;
  }
}

TEST_F(TorchCommandTest, FilesWithoutChecksumsAreReadWithANote) {
  const std::string file =
      Changed("convert/formats/torch/testdata/training.pt", "",
              [](std::string& zip) { zip = ckpt::convert::WithoutChecksums(std::move(zip)); });
  EXPECT_EQ(Run({"verify", file}), ckpt::kExitOk) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("these files (torch) have no checksums"));
  EXPECT_THAT(out_, HasSubstr("set_crc32_options(False)"));
}

}  // namespace
}  // namespace tessera
