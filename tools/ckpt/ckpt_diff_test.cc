// ckpt diff on real directories.

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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

// A group of ranks stores digests of its own, and other programs write other JSON.
TEST_F(CkptTest, DiffOfValuesIsOneLineAValue) {
  const std::string structure = R"({"!": "dict", "value": [["lr", null]]})";
  extra_["tessera_ckpt.values"] = R"({"lr": 0.1, "big": 36893488147419103232, "n": [1, 2]})";
  extra_["tessera_ckpt.structure"] = structure;
  MustSave("a", 3, 1);
  extra_["tessera_ckpt.values"] = R"({"n":[1,2],"big":36893488147419103232,"lr":0.1})";
  extra_["tessera_ckpt.structure"] = R"({"!":"dict","value":[["lr",null]]})";
  extra_["tessera_ckpt.alike"] = R"({"w": "ab2fa50a"})";
  MustSave("same", 3, 2);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/same"}), kExitOk) << out_;
  extra_["tessera_ckpt.values"] = R"({"lr": 0.2, "big": 36893488147419103233, "m": true})";
  MustSave("b", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("metadata  value lr: 0.1 -> 0.2\n"),
                          HasSubstr("value big: 36893488147419103232 -> 36893488147419103233\n"),
                          HasSubstr("metadata  value n: [1,2] -> (not set)\n"),
                          HasSubstr("metadata  value m: (not set) -> true\n"),
                          HasSubstr("metadata differences: 4")));
  extra_["tessera_ckpt.values"] = R"({"lr": 1, "big": 36893488147419103232, "n": [1, 2]})";
  MustSave("c", 3, 1);
  extra_["tessera_ckpt.values"] = R"({"lr": 1.0, "big": 36893488147419103232, "n": [1, 2]})";
  MustSave("d", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/c", root_ + "/d"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("value lr: 1 -> 1.0\n"), HasSubstr("differences: 1")));
  extra_.clear();
  MustSave("none", 3, 1);
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/none"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("deleted: 3 values\n"), HasSubstr("differences: 1")));
}

// Values that look alike are shown with what tells them apart.
TEST_F(CkptTest, DiffShowsWhereValuesDiffer) {
  const std::string x(200, 'x'), y(20, 'x');
  const std::vector<std::vector<std::string>> cases = {
      {"[1, 2]", R"({"!": "tuple", "value": [1, 2]})", "[1, 2] -> (1, 2)\n"},
      {R"({"!": "bytes", "value": "YQ=="})", R"({"!": "bytearray", "value": "YQ=="})",
       "b\"a\" -> bytearray(b\"a\")\n"},
      {R"({"!": "torch.Size", "value": [1]})", R"({"!": "tuple", "value": [1]})",
       R"({"!": "torch.Size", "value": [1]} -> {"!": "tuple", "value": [1]})"},
      {R"({"!": "int", "value": "0x80"})", R"({"!": "int", "value": "0x81"})",
       R"({"!": "int", "value": "0x80"} -> {"!": "int", "value": "0x81"})"},
      {absl::StrCat("\"", x, "a\""), absl::StrCat("\"", x, "b\""),
       absl::StrCat("(from byte 181) ...", y, "a\\\" -> (from byte 181) ...", y, "b\\\"\n")},
      {"\"(not set)\"", "\"x\"", "\"(not set)\" -> \"x\"\n"},
  };
  for (const auto& each : cases) {
    extra_["tessera_ckpt.values"] = absl::StrCat(R"({"v": )", each[0], "}");
    MustSave("a", 3, 1);
    extra_["tessera_ckpt.values"] = absl::StrCat(R"({"v": )", each[1], "}");
    MustSave("b", 3, 1);
    EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitDifferent);
    EXPECT_THAT(out_, HasSubstr("metadata  value v: " + each[2]));
    std::filesystem::remove_all(root_ + "/a");
    std::filesystem::remove_all(root_ + "/b");
  }
}

// Ranks that save together put the keys of their dicts one after another, and files of torch have
// no OrderedDict.
TEST_F(CkptTest, DiffOfDictsIgnoresTheOrderOfKeys) {
  const auto save = [&](const std::string& name, const std::string& value,
                        const std::string& structure) {
    extra_["tessera_ckpt.values"] = absl::StrCat(R"({"v": )", value, R"(, "a.n": 1, "a.m": 2})");
    extra_["tessera_ckpt.structure"] = structure;
    MustSave(name, 3, 1);
  };
  save("a", R"({"!": "dict", "value": [[0.5, 1], [1.5, {"!": "tuple", "value": []}]]})",
       R"({"!": "dict", "value": [["v", null],
           ["a", {"!": "dict", "value": [["n", null], ["m", null]]}]]})");
  save("other", R"({"!": "OrderedDict", "value": [[1.5, {"!": "tuple", "value": []}], [0.5, 1]]})",
       R"({"!": "OrderedDict", "_metadata": {"!": "dict", "value": []}, "value": [["v", null],
           ["a", {"!": "dict", "value": [["m", null], ["n", null]]}]]})");
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/other"}), kExitOk) << out_;
  EXPECT_THAT(out_,
              AllOf(HasSubstr("note      value v: [[0.5,1],[1.5,[]]] -> [[1.5,[]],[0.5,1]]\n"),
                    HasSubstr("note      containers: the keys are in another order: a\n"),
                    HasSubstr("note      containers: dict -> OrderedDict: (the whole")));
  save("b", "1", R"({"!": "dict", "value": [["v", null], [1, {"!": "dict", "value": []}],
      ["a", {"!": "tuple", "value": [null, null]}]]})");
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("metadata  container a: dict -> tuple\n"),
                          HasSubstr("metadata  container 1: (not set) -> dict\n"),
                          HasSubstr("metadata  value v: "), HasSubstr("differences: 3")));
  save("c", "1", R"({"!": "dict", "value": [["v", null], ["1", {"!": "dict", "value": []}],
      ["a", {"!": "tuple", "value": [null, null]}]]})");
  EXPECT_EQ(Run({"diff", root_ + "/b", root_ + "/c"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("container (the whole state): the key 1 -> \"1\"\n"),
                          HasSubstr("differences: 1")));
  const auto save_tuple = [&](const std::string& name, const std::string& fields) {
    save(name, "1",
         R"({"!": "dict", "value": [["v", null], ["a", {"!": "namedtuple", "module": "m",
        "name": "N", "fields": )" +
             fields + R"(, "value": [null, null]}]]})");
  };
  save_tuple("d", R"(["n", "m"])");
  save_tuple("e", R"(["n", "k"])");
  EXPECT_EQ(Run({"diff", root_ + "/d", root_ + "/e"}), kExitDifferent);
  EXPECT_THAT(out_,
              HasSubstr(R"(a: namedtuple "m" "N" ["n", "m"] -> namedtuple "m" "N" ["n", "k"])"));
}

// Files of torch hold values, too.
TEST_F(CkptTest, DiffOfTorchsFilesComparesValues) {
  for (const auto& [name, rate] : {std::pair("a", "0.1"), {"same", "0.1"}, {"b", "0.2"}}) {
    extra_["tessera_ckpt.values"] = absl::StrCat(R"({"lr": )", rate, R"(, "n": [1, 2]})");
    MustSave(name, 3, 1);
    ASSERT_EQ(Run({"convert", root_ + "/" + name, root_ + "/" + name + ".torch", "--to=torch"}),
              kExitOk)
        << err_;
  }
  EXPECT_EQ(Run({"diff", root_ + "/a.torch", root_ + "/same.torch"}), kExitOk) << out_;
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/a.torch"}), kExitOk) << out_;
  EXPECT_THAT(out_, Not(HasSubstr("value")));
  EXPECT_EQ(Run({"diff", root_ + "/a.torch", root_ + "/b.torch"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("metadata  value lr: 0.1 -> 0.2\n"));
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b.torch"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("note      value lr: 0.1 -> 0.2\n"));
}

// They hold all of them, so that a value that one file lacks is a difference.
TEST_F(CkptTest, DiffOfFilesThatHoldEverythingExcusesNoValue) {
  const std::vector<std::vector<std::string>> cases = {
      {"{\"v\": \"(not set)\"}", R"({"v": "x"})", "value v: \"(not set)\" -> \"x\"\n"},
      {R"({"v": 1, "lr": 2})", R"({"v": 1})", "value lr: 2 -> (not set)\n"},
      {R"({".foreign_names[": 1})", R"({".foreign_names[": 2})", ": 1 -> 2\n"},
  };
  for (const std::string format : {"torch", "dcp"}) {
    for (const auto& each : cases) {
      for (const auto& [name, values] : {std::pair("a", each[0]), {"b", each[1]}}) {
        extra_["tessera_ckpt.values"] = values;
        MustSave(name, 3, 1);
        ASSERT_EQ(Run({"convert", root_ + "/" + name, root_ + "/to." + name, "--to=" + format}),
                  kExitOk)
            << err_;
      }
      EXPECT_EQ(Run({"diff", root_ + "/to.a", root_ + "/to.b", "--json"}), kExitDifferent) << out_;
      EXPECT_EQ(Json()["same_state"], false);
      EXPECT_EQ(Run({"diff", root_ + "/to.a", root_ + "/to.b"}), kExitDifferent);
      EXPECT_THAT(out_, AllOf(HasSubstr("metadata  value "), HasSubstr(each[2])));
      for (const char* name : {"/a", "/b", "/to.a", "/to.b"}) {
        std::filesystem::remove_all(root_ + name);
      }
    }
  }
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
  EXPECT_THAT(out_, AllOf(HasSubstr("w: 1 element differs, by at most 0.5"),
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
  EXPECT_THAT(out_, HasSubstr("w: 1 element differs, by at most 5"));
}

}  // namespace
}  // namespace tessera::ckpt
