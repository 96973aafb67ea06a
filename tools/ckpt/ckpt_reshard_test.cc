// ckpt reshard on real directories.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/ckpt/ckpt_run.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(CkptTest, Reshard) {
  MustSave("a", 3, 3);
  const std::string from = root_ + "/a", to = root_ + "/b";
  EXPECT_EQ(Run({"reshard", from, to, "--topology=dp2_tp2_zero1", "--dry-run"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("model-00001-of-00002."),
                          HasSubstr("step-00000003: would be written for dp2_zero1_tp2")));
  EXPECT_FALSE(std::filesystem::exists(to));
  EXPECT_EQ(Run({"reshard", from, to, "--topology=dp2_tp2_zero1"}, /*watched=*/true), kExitOk)
      << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("step-00000003: written for dp2_zero1_tp2"),
                          HasSubstr("the digests of all 2 tensors")));
  EXPECT_THAT(progress_, HasSubstr("###"));
  EXPECT_EQ(Run({"diff", from, to, "--data"}), kExitOk) << out_;
  EXPECT_EQ(Run({"verify", to, "--digests"}), kExitOk) << out_;
  EXPECT_EQ(Run({"inspect", to, "--json"}), kExitOk);
  EXPECT_EQ(Json()["tensors"][0]["shards"], 2);

  EXPECT_EQ(Run({"reshard", from, to, "--topology=single"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("never overwritten"));
  // Naming the checkpoint's own directory has the same effect as naming its folder.
  EXPECT_EQ(Run({"reshard", to, root_ + "/c/step-00000003", "--topology=single", "--json"}),
            kExitOk)
      << err_;
  EXPECT_EQ(Json()["digests_compared"], 2);
  EXPECT_EQ(Json()["files"][0]["rank"], 0);
  EXPECT_EQ(Run({"diff", from, root_ + "/c"}), kExitOk) << out_;
}

TEST_F(CkptTest, ReshardCutsAsItIsTold) {
  MustSave("a", 3, 1);
  const auto shards = [&](const std::string& flag) {
    std::filesystem::remove_all(root_ + "/b");
    EXPECT_EQ(Run({"reshard", root_ + "/a", root_ + "/b", "--topology=tp3", flag}), kExitOk)
        << err_;
    EXPECT_EQ(Run({"inspect", root_ + "/b", "--json"}), kExitOk);
    return Json()["tensors"][0]["shards"].get<int>();
  };
  EXPECT_EQ(shards("--split=w=1"), 3);
  EXPECT_EQ(shards("--split=*=whole"), 1);
  EXPECT_EQ(shards("--split=other.*=1"), 3);
  EXPECT_EQ(shards("--split=w=1/3"), 3);
  EXPECT_EQ(shards("--virtual-shards=6"), 4);  // of rows: two of six have none
}

TEST_F(CkptTest, ReshardRefuses) {
  MustSave("a", 3, 1);
  const std::string from = root_ + "/a", to = root_ + "/b";
  for (const auto& [flag, message] : std::vector<std::pair<std::string, std::string>>{
           {"--topology=dp2_qp3", "\"qp3\" is unknown"},
           {"--topology=dp0", "data_parallel_size = 0 is below 1"},
           {"--topology=zero3", "none of 0, 1, 2"},
           {"--topology=vpp2", "needs pipeline_model_parallel_size above 1"},
           {"--topology=dp2_dp4", "dp is given twice"},
           {"--topology=dp2000_tp1000", "2000000 ranks, at most 1048576"},
           {"--topology=pp2", "does not say which layers its tensors are in"},
           {"--split=w=2", "--split=w=2: tensor w has shape [4,3]"},
           {"--split=w", "is not PATTERN=PART"},
           {"--virtual-shards=3", "not a multiple of tp = 2"},
           {"--memory=1KiB", "1.00 KiB of memory are too little"},
           {"--memory=lots", "expected a size"},
           {"--memory=4194305TiB", "expected a size"},
           {"--memory", "needs a value"},
           {"--dry-run=1", "takes no value"},
           {"--digests", "no flag --digests"}}) {
    std::vector<std::string> arguments = {"reshard", from, to, flag};
    if (flag.find("--topology") == std::string::npos) arguments.push_back("--topology=tp2");
    EXPECT_EQ(Run(arguments), kExitUsage) << flag;
    EXPECT_THAT(err_, HasSubstr(message));
    EXPECT_EQ(std::ranges::count(err_, '\n'), 1) << err_;
    EXPECT_FALSE(std::filesystem::exists(to)) << flag;
  }
  EXPECT_EQ(Run({"reshard", from, to}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("reshard needs --topology"));
  EXPECT_EQ(Run({"reshard", from, from + "/step-00000003/", "--topology=tp2"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("never overwritten"));
  EXPECT_EQ(Run({"reshard", root_ + "/nothing", to, "--topology=tp2"}), kExitUsage);
  FlipByte("a/step-00000003/model-00001-of-00001-", 4096 + 8 + 5);
  EXPECT_EQ(Run({"reshard", from, to, "--topology=tp2", "--json"}), kExitDifferent);
  EXPECT_THAT(Json()["error"].get<std::string>(), AllOf(HasSubstr("tensor w"), HasSubstr("4109")));
  EXPECT_FALSE(std::filesystem::exists(to));
}

// The link in the way was not created by the command.
TEST_F(CkptTest, ReshardRemovesNoLink) {
  MustSave("a", 3, 3);
  const std::string to = root_ + "/link";
  std::filesystem::create_symlink("nowhere", to);
  EXPECT_NE(Run({"reshard", root_ + "/a", to, "--topology=tp2"}), kExitOk);
  EXPECT_TRUE(std::filesystem::is_symlink(to));
}

// A stream that kills the process at the first write.
class KillingBuffer final : public std::streambuf {
 protected:
  int overflow(int) override {
    raise(SIGKILL);
    return 0;
  }
};

TEST_F(CkptTest, ReshardMayBeKilled) {
  MustSave("a", 3, 3);
  const std::string from = root_ + "/a", to = root_ + "/b";
  const std::vector<std::string> arguments = {"reshard", from, to, "--topology=tp2"};
  const std::string before = Contents(from);
  const pid_t child = fork();
  if (child == 0) {
    KillingBuffer buffer;
    std::ostream progress(&buffer);
    std::ostringstream out, err;
    _exit(RunCkpt(arguments, {out, err, &progress}));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_TRUE(std::filesystem::exists(to + "/step-00000003"));
  EXPECT_EQ(Run({"inspect", to}), kExitUsage);  // nothing is committed
  EXPECT_EQ(Contents(from), before);
  EXPECT_EQ(Run(arguments), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", from, to, "--data"}), kExitOk) << out_;
}

}  // namespace
}  // namespace tessera::ckpt
