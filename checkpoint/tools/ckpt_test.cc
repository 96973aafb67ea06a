// The ckpt command on real directories.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage/s3/testing/s3_server.h"
#include "checkpoint/tools/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class CkptTest : public testing::Test {
 protected:
  CkptTest() : root_(testing::TempDir() + "/ckpt_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    storage_ = *OpenPosixStorage(root_);
  }
  ~CkptTest() override { std::filesystem::remove_all(root_); }

  // Saves a checkpoint with "w" split into `shards` shards; `w` values can be changed before.
  void MustSave(const std::string& folder, int64_t step, int shards) {
    ShardedTensor w;
    w.name = "w";
    w.role = TensorRole::kWeight;
    w.dtype = ElementType::kF32;
    w.global_shape = {4, 3};
    for (int s = 0; s < shards; ++s) {
      const int64_t begin = 4 * s / shards, rows = 4 * (s + 1) / shards - begin;
      w.shards.push_back({{{begin, 0}, {rows, 3}}, w_ + begin * 3, {}});
    }
    ShardedTensor n;
    n.name = "steps";
    n.role = TensorRole::kBuffer;
    n.dtype = ElementType::kI64;
    n.shards = {{WholeBox({}), &n_, {}}};
    ShardedTensor tied;
    tied.name = "head";
    tied.role = TensorRole::kWeight;
    tied.dtype = ElementType::kF32;
    tied.global_shape = {4, 3};
    tied.alias_of = "w";
    Manifest metadata;
    metadata.mutable_trainer()->set_best_loss(std::numeric_limits<double>::infinity());
    metadata.mutable_trainer()->set_last_loss(3.25);
    metadata.mutable_model()->set_text(config_);
    metadata.mutable_topology()->set_data_parallel(shards);
    metadata.mutable_optimizer()->set_algorithm("adamw");
    (*metadata.mutable_optimizer()->add_groups()->mutable_options())["weight_decay"] = 0.1;
    OptimizerParameter& parameter = *metadata.mutable_optimizer()->add_parameters();
    parameter.set_parameter("w");
    for (const auto& [name, bytes] : extra_) {
      (*metadata.mutable_trainer()->mutable_extra())[name] = bytes;
    }
    const auto report =
        Save(*storage_, folder, step, {{w, n, tied}}, {.metadata = ToMetadata(metadata)});
    ASSERT_TRUE(report.ok()) << report.status();
  }

  int Run(const std::vector<std::string>& arguments, bool watched = false) {
    std::ostringstream out, err, progress;
    const int code = RunCkpt(arguments, {out, err, watched ? &progress : nullptr});
    out_ = out.str();
    err_ = err.str();
    progress_ = progress.str();
    return code;
  }

  nlohmann::json Json() { return nlohmann::json::parse(out_, nullptr, false); }

  // The only file whose path begins like this.
  std::string PathOf(const std::string& start) {
    const std::filesystem::path path = root_ + "/" + start;
    for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
      if (entry.path().string().starts_with(path.string())) return entry.path();
    }
    ADD_FAILURE() << "no file " << start;
    return path;
  }

  void FlipByte(const std::string& start, int64_t offset) {
    std::fstream file(PathOf(start), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(byte);
  }

  // Names and bytes of all files in a folder.
  static std::string Contents(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      std::ostringstream bytes;
      if (entry.is_regular_file()) bytes << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      files[entry.path()] = bytes.str();
    }
    std::string all;
    for (const auto& [path, bytes] : files)
      all.append(path).append("\n").append(bytes).append("\n");
    return all;
  }

  // As written by a converter that computes no digests.
  void RemoveDigests(const std::string& directory) {
    EditManifest(directory, [](LogicalTensor& tensor) { tensor.clear_digest(); });
  }

  void TakeDigests(const std::string& from, const std::string& directory) {
    const auto manifest = ReadManifest(*storage_, from);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    int t = 0;
    EditManifest(directory, [&](LogicalTensor& tensor) {
      const LogicalTensor& other = manifest->tensors(t++);
      if (other.has_digest()) *tensor.mutable_digest() = other.digest();
    });
  }

  template <typename Edit>
  void EditManifest(const std::string& directory, const Edit& edit) {
    auto manifest = ReadManifest(*storage_, directory);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    for (LogicalTensor& tensor : *manifest->mutable_tensors()) edit(tensor);
    const auto encoded = EncodeManifest(*manifest);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    ASSERT_TRUE(WriteAll(*storage_, directory + "/manifest.pb", *encoded).ok());
  }

  std::string root_;
  std::unique_ptr<Storage> storage_;
  float w_[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  int64_t n_ = 17;
  std::string config_;
  std::map<std::string, std::string> extra_;
  std::string out_, err_, progress_;
};

TEST_F(CkptTest, Usage) {
  EXPECT_EQ(Run({"--help"}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("ckpt verify"), HasSubstr("Exit codes: 0")));
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_EQ(Run({"burn", root_}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("burn"));
  EXPECT_EQ(Run({"ls"}), kExitUsage);
  EXPECT_EQ(Run({"diff", root_}), kExitUsage);
  EXPECT_EQ(Run({"ls", root_, "--digests"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--digests"));
  EXPECT_EQ(Run({"verify", root_, "--threads=0"}), kExitUsage);
  EXPECT_EQ(Run({"verify", root_, "--threads=2x"}), kExitUsage);
  EXPECT_EQ(Run({"inspect", root_}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("neither a checkpoint"));
  EXPECT_EQ(Run({"inspect", root_ + "/nothing"}), kExitUsage);
}

TEST_F(CkptTest, EachCommandHasItsOwnHelp) {
  const std::map<std::string, std::vector<std::string>> flags = {
      {"ls", {"--json"}},
      {"inspect", {"--json"}},
      {"verify", {"--all", "--digests", "--threads"}},
      {"diff", {"--data", "--threads"}},
      {"reshard", {"--topology", "--dry-run", "--memory", "--split"}}};
  EXPECT_EQ(Run({"help"}), kExitOk);
  const std::string general = out_;
  for (const auto& [command, own] : flags) {
    EXPECT_THAT(general, HasSubstr("ckpt " + command));
    EXPECT_EQ(Run({"help", command}), kExitOk);
    const std::string help = out_;
    for (const std::string& flag : own) EXPECT_THAT(help, HasSubstr("  " + flag));
    for (const auto& [other, others] : flags) {
      if (other != command) EXPECT_THAT(help, Not(HasSubstr("ckpt " + other + " ")));
    }
    EXPECT_EQ(Run({command, "--help"}), kExitOk);
    EXPECT_EQ(out_, help);
    EXPECT_EQ(Run({command, root_, "-h"}), kExitOk);
    EXPECT_EQ(out_, help);
  }
  EXPECT_EQ(Run({"help", "burn"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown command \"burn\""));
  EXPECT_EQ(Run({"--version"}), kExitOk);
  EXPECT_THAT(out_, ContainsRegex("^ckpt [0-9.]+, checkpoint format 1\\.[0-9]+\n$"));
}

TEST_F(CkptTest, AnErrorIsAnObjectForMachines) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--json"},
                                                    {"burn", "--json"},
                                                    {"ls", "--json"},
                                                    {"inspect", root_, "--json"},
                                                    {"verify", root_, "--json"},
                                                    {"diff", root_, root_, "--json"},
                                                    {"ls", root_ + "/nothing\xff", "--json"}}) {
    EXPECT_EQ(Run(arguments), kExitUsage);
    ASSERT_TRUE(Json().is_object()) << out_;
    EXPECT_THAT(err_, HasSubstr("ckpt")) << arguments[0];
    EXPECT_EQ(Json().size(), 1);
    EXPECT_FALSE(Json()["error"].get<std::string>().empty());
  }
  EXPECT_EQ(Run({"--json"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("a command is missing"));
  EXPECT_EQ(Run({"inspect", root_}), kExitUsage);
  EXPECT_EQ(out_, "");
  MustSave("", 3, 1);
  FlipByte("step-00000003/manifest.pb", 40);
  EXPECT_EQ(Run({"inspect", root_, "--json"}), kExitDifferent);
  EXPECT_THAT(Json()["error"].get<std::string>(), HasSubstr("checksum"));
}

TEST_F(CkptTest, Ls) {
  EXPECT_EQ(Run({"ls", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("no checkpoints"));
  MustSave("", 999999, 1);
  MustSave("", 1000000, 2);
  EXPECT_EQ(Run({"ls", root_}), kExitOk);
  EXPECT_LT(out_.find("step-00999999"), out_.find("step-01000000"));
  EXPECT_EQ(Run({"ls", root_, "--json"}), kExitOk);
  ASSERT_EQ(Json().size(), 2);
  EXPECT_EQ(Json()[1]["step"], 1000000);
  EXPECT_EQ(Json()[1]["tensors"], 3);
  FlipByte("step-00999999/manifest.pb", 40);
  EXPECT_EQ(Run({"ls", root_, "--json"}), kExitDifferent);
  EXPECT_TRUE(Json()[0].contains("error"));
  EXPECT_FALSE(Json()[1].contains("error"));
  std::filesystem::rename(root_ + "/step-01000000", root_ + "/step-00000005");
  EXPECT_EQ(Run({"ls", root_}), kExitDifferent);
  EXPECT_THAT(err_, AllOf(HasSubstr("step 1000000"), HasSubstr("step-00000005")));
  EXPECT_EQ(Run({"inspect", root_ + "/step-00000005/"}), kExitDifferent);
  std::filesystem::rename(root_ + "/step-00000005", root_ + "/copy");
  EXPECT_EQ(Run({"inspect", root_ + "/copy"}), kExitOk) << err_;
}

TEST_F(CkptTest, LsOfASingleCheckpointShowsIt) {
  MustSave("", 7, 2);
  std::filesystem::rename(root_ + "/step-00000007", root_ + "/copy");
  EXPECT_EQ(Run({"ls", root_ + "/copy"}), kExitOk) << err_;
  EXPECT_THAT(out_, ContainsRegex("   7  .*/copy .* dp2 "));
  EXPECT_EQ(Run({"ls", root_ + "/copy", "--json"}), kExitOk);
  ASSERT_EQ(Json().size(), 1);
  EXPECT_EQ(Json()[0]["step"], 7);
  EXPECT_EQ(Json()[0]["tensors"], 3);
  FlipByte("copy/manifest.pb", 40);
  EXPECT_EQ(Run({"ls", root_ + "/copy"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("damaged manifest"));
  std::filesystem::remove(root_ + "/copy/manifest.pb");
  EXPECT_EQ(Run({"ls", root_ + "/copy"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("/copy is a save that was never completed"));
}

TEST_F(CkptTest, Inspect) {
  MustSave("", 3, 1);
  MustSave("", 4, 2);
  for (const std::string& path : {root_, root_ + "/step-00000004"}) {
    EXPECT_EQ(Run({"inspect", path}), kExitOk);
    EXPECT_THAT(out_, AllOf(HasSubstr("step        4"), HasSubstr("best loss: none yet"),
                            HasSubstr("weight_decay=0.1"), HasSubstr("= w"), HasSubstr("[4,3]"),
                            HasSubstr("model-00001-of-00001-")));
  }
  EXPECT_EQ(Run({"inspect", root_, "--json"}), kExitOk);
  const nlohmann::json json = Json();
  EXPECT_EQ(json["step"], 4);
  EXPECT_EQ(json["best_loss"], "Infinity");
  EXPECT_EQ(json["tensors"][0]["name"], "w");
  EXPECT_EQ(json["tensors"][0]["shape"], (std::vector<int>{4, 3}));
  EXPECT_EQ(json["tensors"][0]["shards"], 2);
  EXPECT_EQ(json["tensors"][2]["alias_of"], "w");
}

TEST_F(CkptTest, InspectShowsTextEntriesByValue) {
  extra_ = {{"numerics", "EXACT with 2 shards"},
            {"settings", "optimizer {\n  lr: 0.1\n}\n"},
            {"state", std::string("\0\1", 2)}};
  MustSave("", 3, 1);
  EXPECT_EQ(Run({"inspect", root_}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("extra       numerics: EXACT with 2 shards\n"),
                          HasSubstr("extra       settings\n  optimizer {\n    lr: 0.1\n  }\n"),
                          HasSubstr("extra       state (2 bytes)\n")));
  EXPECT_EQ(Run({"inspect", root_, "--json"}), kExitOk);
  EXPECT_EQ(Json()["extra"]["numerics"], "EXACT with 2 shards");
  EXPECT_EQ(Json()["extra"]["state"]["bytes"], 2);
}

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
                          HasSubstr("1 metadata difference"), Not(HasSubstr("clip_grad"))));
  EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/older"}), kExitOk) << out_;
  EXPECT_THAT(out_, HasSubstr("only the first checkpoint records them"));
}

TEST_F(CkptTest, Verify) {
  MustSave("", 3, 1);
  EXPECT_EQ(Run({"verify", root_, "--digests"}, /*watched=*/true), kExitOk);
  EXPECT_THAT(out_, HasSubstr("good"));
  EXPECT_THAT(progress_, AllOf(HasSubstr("100%"), HasSubstr("###")));
  FlipByte("step-00000003/model-00001-of-00001-", 4096 + 8 + 5);  // "steps" comes first
  EXPECT_EQ(Run({"verify", root_}), kExitDifferent);
  EXPECT_THAT(out_,
              AllOf(HasSubstr(".safetensors at offset 4109: tensor w"), HasSubstr("DAMAGED")));
  EXPECT_EQ(progress_, "");
  EXPECT_EQ(Run({"verify", root_, "--json"}), kExitDifferent);
  EXPECT_EQ(Json()["good"], false);
  EXPECT_EQ(Json()["damage"][0]["offset"], 4109);
  EXPECT_EQ(Json()["damage"][0]["tensor"], "w");
}

TEST_F(CkptTest, VerifySaysWhatOfAFolderItHasRead) {
  MustSave("", 3, 1);
  EXPECT_EQ(Run({"verify", root_}), kExitOk);
  EXPECT_THAT(out_, Not(HasSubstr("--all")));
  MustSave("", 4, 1);
  EXPECT_EQ(Run({"verify", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("the newest of 2 checkpoints; --all checks every one"));
  EXPECT_EQ(Run({"verify", root_ + "/step-00000004"}), kExitOk);
  EXPECT_THAT(out_, Not(HasSubstr("--all")));
  FlipByte("step-00000004/manifest.pb", 40);
  EXPECT_EQ(Run({"verify", root_}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("--all shows which of the others are good"));
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitDifferent);
  EXPECT_THAT(out_, Not(HasSubstr("no checkpoint here is good")));
  FlipByte("step-00000003/manifest.pb", 40);
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("no checkpoint here is good"));
}

TEST_F(CkptTest, VerifyNamesAPlaceOnce) {
  MustSave("", 3, 1);
  std::filesystem::remove(PathOf("step-00000003/model-00001-of-00001"));
  EXPECT_EQ(Run({"verify", root_}), kExitDifferent);
  const std::string file = "model-00001-of-00001";
  const size_t first = out_.find(file);
  ASSERT_NE(first, out_.npos) << out_;
  EXPECT_EQ(out_.find(file, first + 1), out_.npos) << out_;
  FlipByte("step-00000003/manifest.pb", 40);
  EXPECT_EQ(Run({"verify", root_}), kExitDifferent);
  EXPECT_EQ(out_.find("manifest.pb"), out_.rfind("manifest.pb")) << out_;
}

TEST_F(CkptTest, VerifyOfAFolder) {
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("no checkpoints in"));
  for (const int64_t step : {3, 4, 5}) MustSave("", step, 2);
  EXPECT_EQ(Run({"verify", root_, "--all", "--digests"}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("step-00000003: good"), HasSubstr("step-00000004: good"),
                          HasSubstr("step-00000005: good")));
  EXPECT_EQ(std::ranges::count(out_, '\n'), 3);
  FlipByte("step-00000004/model-00001-of-00001-", 4096 + 8 + 5);
  FlipByte("step-00000005/manifest.pb", 40);
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitDifferent);
  EXPECT_THAT(
      out_, AllOf(HasSubstr("step-00000003: good"), HasSubstr("step-00000004: DAMAGED in 1 place"),
                  HasSubstr("tensor w"), HasSubstr("step-00000005: DAMAGED in 1 place")));
  EXPECT_EQ(Run({"verify", root_, "--all", "--json"}), kExitDifferent);
  ASSERT_EQ(Json().size(), 3);
  EXPECT_EQ(Json()[0]["good"], true);
  EXPECT_EQ(Json()[1]["damage"][0]["tensor"], "w");
  EXPECT_EQ(Json()[2]["good"], false);
  EXPECT_EQ(Run({"verify", root_ + "/step-00000003", "--all"}), kExitUsage);
}

TEST_F(CkptTest, DiffOfEqualStateUnderOtherShardings) {
  MustSave("a", 3, 1);
  MustSave("b", 3, 3);
  for (const char* flag : {"--threads=1", "--data"}) {
    EXPECT_EQ(Run({"diff", root_ + "/a", root_ + "/b", flag}), kExitOk) << out_ << err_;
    EXPECT_THAT(out_, AllOf(HasSubstr("3 tensors equal, 0 tensor differences"),
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
                    HasSubstr("1 tensors equal, 2 tensor differences")));
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
                          HasSubstr("0 metadata differences")));
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
                          HasSubstr("4 metadata differences")));
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

TEST_F(CkptTest, VerifyOfDigestsNamesTheTensor) {
  MustSave("a", 3, 2);
  EXPECT_EQ(Run({"verify", root_ + "/a", "--digests"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("the contents of 2 tensors, however they are sharded"));
  // Contents and checksums that agree, but are not what was saved.
  w_[0] = 99;
  MustSave("b", 3, 2);
  TakeDigests("a/step-00000003", "b/step-00000003");
  EXPECT_EQ(Run({"verify", root_ + "/b"}), kExitOk);
  EXPECT_EQ(Run({"verify", root_ + "/b", "--digests"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("tensor w: logical digest: expected"));
}

TEST_F(CkptTest, InspectShowsTheModelsWholeConfiguration) {
  config_ = "num_layers: 12\nnorm_epsilon: 1e-05\nsize: \"tiny\"\nkind: GPT2\n";
  MustSave("a", 3, 1);
  EXPECT_EQ(Run({"inspect", root_ + "/a"}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("  num_layers: 12\n  norm_epsilon: 1e-05\n  size: \"tiny\"\n"));
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--json"}), kExitOk) << err_;
  EXPECT_EQ(Json()["model_config"],
            nlohmann::json(
                {{"num_layers", 12}, {"norm_epsilon", 1e-5}, {"size", "tiny"}, {"kind", "GPT2"}}));
  config_ = "{\"layers\": {\"number\": 12}}";
  MustSave("b", 3, 1);
  EXPECT_EQ(Run({"inspect", root_ + "/b", "--json"}), kExitOk) << err_;
  EXPECT_EQ(Json()["model_config"]["layers"]["number"], 12);
  config_ = "twelve layers";
  MustSave("c", 3, 1);
  EXPECT_EQ(Run({"inspect", root_ + "/c", "--json"}), kExitOk) << err_;
  EXPECT_EQ(Json()["model_config"], "twelve layers");
}

// Every command takes the name of a folder in an object store where it takes a path.
TEST_F(CkptTest, FoldersMayBeInAnObjectStore) {
  const s3::S3Server server({.region = "us-east-1"});
  setenv("S3_ACCESS_KEY_ID", "TESTKEY", 1);
  setenv("S3_SECRET_ACCESS_KEY_ID", "a/secret+key", 1);
  MustSave("a", 3, 3);
  const std::string local = root_ + "/a", endpoint = "--s3-endpoint=" + server.endpoint(),
                    remote = "boto3:s3://bucket." + server.endpoint().substr(7) + "/runs/b";
  EXPECT_EQ(Run({"ls", remote}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("no checkpoints in boto3:s3://bucket."));
  ASSERT_EQ(Run({"reshard", local, remote, "--topology=tp2"}), kExitOk) << err_;
  EXPECT_EQ(Run({"ls", "s3://bucket/runs/b", endpoint}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("step-00000003"));
  EXPECT_EQ(Run({"inspect", remote + "/step-00000003"}), kExitOk) << err_;
  EXPECT_EQ(Run({"diff", local, remote, "--data"}), kExitOk) << err_ << out_;
  EXPECT_EQ(Run({"verify", "s3://bucket/runs/b", endpoint, "--digests"}), kExitOk) << err_;
  EXPECT_EQ(Run({"verify", remote, "--all"}), kExitOk) << err_;
  // From one prefix to another, and never over what is there.
  const std::string place = "s3://bucket/c/step-00000003";
  EXPECT_EQ(Run({"reshard", remote, place, "--topology=single", endpoint}), kExitOk) << err_;
  EXPECT_EQ(Run({"reshard", remote, place, "--topology=single", endpoint}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("never overwritten"));
  EXPECT_EQ(Run({"ls", "s3://other/runs", endpoint}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("there is no bucket other"));
  EXPECT_EQ(Run({"ls", "gs://bucket/runs"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown scheme"));
}

TEST_F(CkptTest, Reshard) {
  MustSave("a", 3, 3);
  const std::string from = root_ + "/a", to = root_ + "/b";
  EXPECT_EQ(Run({"reshard", from, to, "--topology=dp2_tp2_zero1", "--dry-run"}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("model-00001-of-00003."),
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
