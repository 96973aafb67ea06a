// `ckpt` on files of torch.save() and folders of torch.distributed.checkpoint.

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/tools/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

  std::string out_, err_;
};

TEST_F(TorchCommandTest, FilesOfTorchSave) {
  const std::string folder = "checkpoint/convert/torch/testdata/";
  for (const char* file : {"views.pt", "views_legacy.pt", "training.pt", "dtypes.pt"}) {
    SCOPED_TRACE(file);
    ExpectConverts(folder + file, "torch");
  }
  EXPECT_EQ(Run({"inspect", folder + "short_storage.pt"}), kExitDifferent);
  EXPECT_THAT(err_, HasSubstr("short_storage.pt"));
}

TEST_F(TorchCommandTest, FoldersOfTorchDistributedCheckpoint) {
  const std::string folder = "checkpoint/convert/dcp/testdata/";
  for (const char* checkpoint : {"one", "sharded", "fsdp", "blobs_of_safetensors"}) {
    SCOPED_TRACE(checkpoint);
    ExpectConverts(folder + checkpoint, "dcp");
  }
}

}  // namespace
}  // namespace tessera::ckpt
