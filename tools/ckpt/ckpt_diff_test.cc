// ckpt diff on real directories.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/ckpt/ckpt_run.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CkptTest, DiffOfSettingsIsOneLineAField) {
  extra_["settings"] = "optimizer {\n  lr: 0.1\n  clip_grad: 1\n}\n";
  MustSave("a", 3, 1);
  MustSave("same", 3, 2);
  extra_["settings"] = "optimizer {\n  lr: 0.2\n  clip_grad: 1\n}\n";
  MustSave("b", 3, 1);
  extra_.clear();
  MustSave("older", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/same"}), kExitOk) << out_;
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("settings.optimizer.lr: 0.1 -> 0.2"),
                          HasSubstr("metadata differences: 1"), Not(HasSubstr("clip_grad"))));
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/older"}), kExitOk) << out_;
  EXPECT_THAT(out_, HasSubstr("only the first checkpoint records them"));
}

TEST_F(CkptTest, DiffPrintsTheSameEachTime) {
  MustSave("a", 3, 1);
  for (const char* name : {"h", "b", "g", "a", "f", "c", "e", "d"}) extra_[name] = "value";
  MustSave("b", 4, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b", "--json"}), kExitDifferent);
  const auto metadata = Json()["metadata"].get<std::vector<std::string>>();
  EXPECT_GT(metadata.size(), 8);
  EXPECT_TRUE(std::ranges::is_sorted(metadata)) << out_;
}

TEST_F(CkptTest, DiffOfEqualStateUnderOtherShardings) {
  MustSave("a", 3, 1);
  MustSave("b", 3, 3);
  for (const char* flag : {"--threads=1", "--data"}) {
    EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b", flag}), kExitOk) << out_ << err_;
    EXPECT_THAT(out_, AllOf(HasSubstr("equal tensors: 3, tensor differences: 0"),
                            HasSubstr("note      topology")));
  }
}

TEST_F(CkptTest, DiffFindsValuesAndMetadata) {
  MustSave("a", 3, 1);
  w_[7] += 0.5f;
  w_[2] = std::numeric_limits<float>::quiet_NaN();
  n_ = 18;
  MustSave("b", 4, 2);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitDifferent);
  EXPECT_THAT(out_,
              AllOf(HasSubstr("tensor    w: contents differ"), HasSubstr("trainer.step: 3 -> 4"),
                    HasSubstr("equal tensors: 1, tensor differences: 2")));
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b", "--data", "--json"}), kExitDifferent);
  const nlohmann::json json = Json();
  ASSERT_EQ(json["tensors"].size(), 2);
  for (const auto& entry : json["tensors"]) {
    if (entry["tensor"] == "w") {
      EXPECT_EQ(entry["different_elements"], 2);
      EXPECT_EQ(entry["max_abs"], "inf");
    } else {
      EXPECT_EQ(entry["tensor"], "steps");
      EXPECT_EQ(entry["different_elements"], 1);
    }
  }
  w_[2] = 3;
  n_ = 17;
  MustSave("c", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/c", "--data"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("w: 1 elements differ, by at most 0.5"),
                          HasSubstr("metadata differences: 0")));
}

TEST_F(CkptTest, DiffOfConfigsIsOneLineAField) {
  config_ = "hidden_size: 64\nnum_layers: 4\nrope {\n  base: 10000\n}\ntie: true\n";
  MustSave("a", 3, 1);
  config_ = "hidden_size: 128\nnum_layers: 4\nrope {\n  base: 500000\n}\nseed: 1\n";
  MustSave("b", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("metadata  model.hidden_size: 64 -> 128\n"),
                          HasSubstr("metadata  model.rope.base: 10000 -> 500000\n"),
                          HasSubstr("metadata  model.tie: true -> (not set)\n"),
                          HasSubstr("metadata  model.seed: (not set) -> 1\n"),
                          HasSubstr("metadata differences: 4")));
  config_ = "{\"hidden_size\": 64}";
  MustSave("c", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/c"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("{\"hidden_size\": 64}\n"));
}

TEST_F(CkptTest, DiffSaysWhatIsProven) {
  MustSave("a", 3, 1);
  MustSave("b", 3, 3);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("2 by the digests in the manifests"),
                          HasSubstr("1 as other names"), HasSubstr("hold the same state\n")));
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b", "--data", "--json"}), kExitOk);
  EXPECT_EQ(Json()["same_state"], true);
  EXPECT_EQ(Json()["equal_by_contents"], 2);
  w_[5] = 0.0f;
  MustSave("c", 3, 1);
  w_[5] = -0.0f;
  MustSave("d", 3, 2);
  EXPECT_EQ(Run({"diff", root_ + "/c", root_ + "/d", "--data"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("tensor    w: the same values, in other bits"));
}

TEST_F(CkptTest, DiffReadsContentsWhereDigestsAreMissing) {
  MustSave("a", 3, 1);
  MustSave("b", 3, 3);
  RemoveDigests("b/step-00000003");
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitOk) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("equal: 2 by every bit of the contents"));
  EXPECT_EQ(Run({"verify", root_ + "/b", "--digests"}), kExitOk) << out_;
  EXPECT_THAT(out_,
              AllOf(HasSubstr("contents of 0 tensors"), HasSubstr("2 tensors have no digest")));
  w_[1] = 7;
  MustSave("c", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/c", root_ + "/b"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("w: 1 elements differ, by at most 5"));
}

}  // namespace
}  // namespace tessera::ckpt
