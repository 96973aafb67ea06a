// The ckpt command on real directories.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "storage/s3/testing/s3_server.h"
#include "tools/ckpt/ckpt_run.h"
#include "tools/ckpt/commands.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

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
  for (const char* const threads : {"--threads=0", "--threads=2x", "--threads="}) {
    EXPECT_EQ(Run({"verify", root_, threads}), kExitUsage);
    EXPECT_THAT(err_, HasSubstr("expected a number from 1 to 1024"));
  }
  EXPECT_EQ(Run({"inspect", root_}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("neither a checkpoint"));
  EXPECT_EQ(Run({"inspect", root_ + "/nothing"}), kExitUsage);
}

TEST_F(CkptTest, EachCommandHasItsOwnHelp) {
  const std::map<std::string, std::vector<std::string>> flags = {
      {"ls", {"--json"}},
      {"inspect", {"--html", "--diff", "--threads", "--json"}},
      {"verify", {"--all", "--digests", "--key", "--threads"}},
      {"diff", {"--data", "--threads"}},
      {"seal", {"--overwrite", "--threads"}},
      {"sign", {"--key", "--overwrite"}},
      {"reshard", {"--topology", "--dry-run", "--memory", "--split"}}};
  EXPECT_EQ(Run({"help"}), kExitOk);
  const std::string general = out_;
  for (const auto& [command, own] : flags) {
    EXPECT_THAT(general, HasSubstr("ckpt " + command));
    EXPECT_EQ(Run({"help", command}), kExitOk);
    const std::string help = out_;
    for (const std::string& flag : own) EXPECT_THAT(help, HasSubstr("  " + flag));
    for (const std::string flag : {"--from", "--parameter-to-structured-name", "--s3-endpoint"}) {
      EXPECT_THAT(help, HasSubstr(flag)) << command;
    }
    EXPECT_THAT(help, HasSubstr("ckpt --help"));
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

// What stands in parentheses behind a flag of one value, up to a ";", is its default, or words.
TEST_F(CkptTest, DefaultsThatTheHelpNamesAreAccepted) {
  static const std::regex kFlag(R"(\n  (--[a-z-]+)=[^\n]*\(([0-9][0-9A-Za-z]*)[;)])");
  std::vector<std::string> found;
  for (const std::string command :
       {"ls", "inspect", "verify", "diff", "seal", "sign", "reshard", "convert"}) {
    ASSERT_EQ(Run({"help", command}), kExitOk);
    const std::string help = out_;
    for (std::sregex_iterator at(help.begin(), help.end(), kFlag), end; at != end; ++at) {
      const std::string flag = at->str(1) + "=" + at->str(2);
      found.push_back(command + " " + flag);
      std::vector<std::string> arguments = {command, root_ + "/nothing", flag};
      if (command == "diff" || command == "reshard" || command == "convert") {
        arguments.push_back(root_ + "/other");
      }
      if (command == "reshard") arguments.push_back("--topology=single");
      if (command == "convert") {
        arguments.push_back(flag.starts_with("--memory") ? "--to=tessera" : "--to=hf");
      }
      EXPECT_EQ(Run(arguments), kExitUsage);
      EXPECT_THAT(err_, AllOf(HasSubstr("nothing"), Not(HasSubstr("--help")))) << flag;
    }
  }
  EXPECT_THAT(found, IsSupersetOf({"verify --threads=4", "reshard --memory=1GiB",
                                   "convert --memory=128MiB", "convert --max-file-size=5GB"}));
}

TEST_F(CkptTest, FlagsOfOtherFormatsAreRefused) {
  for (const auto& [format, flag, problem] :
       {std::tuple("torch", "--max-file-size=2GB", "--max-file-size is for --to=hf"),
        {"gguf", "--max-file-size=2GB", "--max-file-size is for --to=hf"},
        {"tessera", "--max-file-size=2GB", "--max-file-size is for --to=hf"},
        {"hf", "--memory=1GiB", "--memory is for --to=tessera"},
        {"hf", "--topology=single", "--topology is for --to=tessera"}}) {
    EXPECT_EQ(Run({"convert", root_, root_ + "/x", absl::StrCat("--to=", format), flag}),
              kExitUsage);
    EXPECT_THAT(err_, HasSubstr(problem)) << format;
  }
}

TEST_F(CkptTest, FormatsThatAreNotWrittenAreRefused) {
  for (const auto& [format, problem] :
       {std::pair("onnx", "unknown format \"onnx\"; written are hf, "),
        {"deepspeed", "only read is the format \"deepspeed\"; written are hf, "},
        {"safetensors", "only read is the format \"safetensors\"; written are hf, "}}) {
    EXPECT_EQ(Run({"convert", root_, root_ + "/x", absl::StrCat("--to=", format)}), kExitUsage);
    EXPECT_THAT(err_, HasSubstr(absl::StrCat("--to=", format, ": ", problem)));
    EXPECT_THAT(err_, HasSubstr(", tessera; see ckpt convert --help"));
  }
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
  EXPECT_THAT(out_, ContainsRegex("/copy  .* damaged manifest"));
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
                            HasSubstr("model-00001-of-00001-"), HasSubstr("losses"),
                            Not(HasSubstr("schedule")), Not(HasSubstr("samples consumed"))));
  }
  extra_["best_training_loss"] = "2.5";
  MustSave("", 5, 1);
  EXPECT_EQ(Run({"inspect", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("best loss: none yet, best of training 2.5\n"));
  EXPECT_EQ(Run({"inspect", root_ + "/step-00000004", "--json"}), kExitOk);
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

// Whatever a checkpoint says, a terminal shows it and obeys none of it.
TEST_F(CkptTest, NoTextControlsTheTerminal) {
  const std::string text = "a\x1b[2J\x1b]0;title\x07\rb\xc2\x9b\xe2\x80\xae d";
  const std::string hostile = text +
                              "\x9b"
                              "31mc";
  const std::string shown = "a\\u001b[2J\\u001b]0;title\\u0007\\u000db\\u009b\\u202e d";
  config_ = "text: \"" + text + "\"";
  extra_ = {{"note " + text, hostile}};
  MustSave("runs", 5, 2);
  const std::string folder = root_ + "/runs", step = folder + "/step-00000005";
  std::filesystem::copy(step, root_ + "/" + hostile, std::filesystem::copy_options::recursive);
  std::ofstream(root_ + "/weights " + hostile) << hostile;
  const std::vector<std::vector<std::string>> commands = {
      {"ls", folder},
      {"inspect", step},
      {"inspect", step, "--json"},
      {"inspect", root_ + "/" + hostile},
      {"verify", root_ + "/" + hostile},
      {"diff", step, root_ + "/" + hostile},
      {"verify", root_ + "/no such " + hostile},
      {"inspect", root_ + "/weights " + hostile},
      {"reshard", step, root_ + "/" + hostile + "/new", "--topology=dp2"},
      {"convert", root_ + "/" + hostile, root_ + "/out " + hostile, "--to=dcp"},
      {hostile}};
  bool any = false;
  for (const std::vector<std::string>& command : commands) {
    Run(command);
    for (const std::string& text : {out_, err_}) {
      EXPECT_EQ(Printable(text), text) << command[0];
      any |= text.find(shown) != text.npos;
    }
    if (command.back() == "--json") EXPECT_FALSE(Json().is_discarded());
  }
  EXPECT_TRUE(any);
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

// Rolling ones are a run's checkpoints, too: it resumes from the newest of all.
TEST_F(CkptTest, RollingCheckpointsCount) {
  MustSave("rolling-1/", 2, 1);
  EXPECT_EQ(Run({"ls", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("rolling-1/step-00000002"));
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitOk);
  MustSave("", 3, 1);
  MustSave("rolling-0/", 4, 1);
  EXPECT_EQ(Run({"inspect", root_, "--json"}), kExitOk);
  EXPECT_EQ(Json()["step"], 4);
  EXPECT_EQ(Run({"verify", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("the newest of 3 checkpoints"));
  FlipByte("step-00000003/manifest.pb", 40);
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitDifferent);
  EXPECT_THAT(out_, AllOf(HasSubstr("rolling-0/step-00000004: good"),
                          Not(HasSubstr("no checkpoint here is good"))));
  EXPECT_EQ(Run({"ls", root_, "--json"}), kExitDifferent);
  EXPECT_EQ(Json().size(), 3);
  EXPECT_EQ(Json()[2]["directory"], "rolling-0/step-00000004");
  FlipByte("rolling-0/step-00000004/manifest.pb", 40);
  FlipByte("rolling-1/step-00000002/manifest.pb", 40);
  EXPECT_EQ(Run({"verify", root_, "--all"}), kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("no checkpoint here is good"));
}

TEST_F(CkptTest, AFolderIsItsNewestCheckpointBeforeTheRunDiverged) {
  is_finite_ = false;
  MustSave("", 2, 1);
  EXPECT_EQ(Run({"verify", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr(root_ + " holds only checkpoints of a run that had diverged: the "));
  is_finite_ = true;
  MustSave("", 3, 1);
  is_finite_ = false;
  MustSave("", 4, 1);
  EXPECT_EQ(Run({"verify", root_}), kExitOk);
  EXPECT_THAT(out_, AllOf(HasSubstr("step-00000003: good"), HasSubstr("one of 3 checkpoints"),
                          HasSubstr("skipped " + root_ +
                                    "/step-00000004: the run had diverged at "
                                    "step 4: the state is not finite; it is left where it is")));
  EXPECT_EQ(Run({"verify", root_ + "/step-00000004"}), kExitOk);
  EXPECT_THAT(out_, Not(HasSubstr("diverged")));
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
  EXPECT_THAT(err_, HasSubstr("no checkpoints in " + root_ + ": it is empty"));
  for (const int64_t step : {3, 4, 5}) MustSave("run", step, 2);
  EXPECT_EQ(Run({"ls", root_}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("no checkpoints in " + root_ + ": it holds run/"));
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
  RemoveDigests("step-00000003");
  EXPECT_EQ(Run({"verify", root_, "--all", "--digests"}), kExitDifferent);
  EXPECT_THAT(out_, ContainsRegex("step-00000003: good.*; 2 tensors have no digest"));
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
  s3::S3Server server({.region = "us-east-1"});
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
  server.AddFault({.status = 403, .method = "GET", .key_part = "/model-", .times = 1000});
  EXPECT_EQ(Run({"verify", remote, "--all"}), kExitUsage);
  EXPECT_THAT(out_, HasSubstr("step-00000003: UNREADABLE: "));
  server.AddFault({.status = 403, .key_part = "manifest.pb", .times = 1000});
  EXPECT_EQ(Run({"ls", "s3://bucket/runs/b", endpoint}), kExitDifferent);
  EXPECT_THAT(out_, ContainsRegex("step-00000003 .* unreadable"));
  server.ClearFaults();
  // From one prefix to another, and never over what is there.
  const std::string place = "s3://bucket/c/step-00000003";
  EXPECT_EQ(Run({"reshard", remote, place, "--topology=single", endpoint}), kExitOk) << err_;
  EXPECT_EQ(Run({"reshard", remote, place, "--topology=single", endpoint}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("never overwritten"));
  EXPECT_EQ(Run({"ls", "s3://other/runs", endpoint}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("there is no bucket other"));
  EXPECT_EQ(Run({"inspect", "s3://other.bin", endpoint}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("there is no bucket other.bin"));
  server.AddFault({.status = 501, .method = "HEAD", .key_part = "w.bin"});
  EXPECT_EQ(Run({"inspect", "s3://bucket/w.bin", endpoint}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("the store answers 501"));
  EXPECT_EQ(Run({"ls", "ftp://bucket/runs"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("unknown scheme"));
}

// What the page shows is tested in a browser: //tests/interop:inspect_page_test.
TEST_F(CkptTest, InspectWritesAPage) {
  MustSave("a", 3, 2);
  const std::string page = root_ + "/page.html";
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html=" + page}), kExitOk) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr(page), HasSubstr("no damage")));
  EXPECT_THAT(Contents(root_), HasSubstr("\"name\":\"steps\""));
  w_[3] = -1;
  MustSave("b", 3, 1);
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html=" + page, "--diff=" + root_ + "/b"}),
            kExitDifferent);
  EXPECT_THAT(out_, HasSubstr("equal tensors: 2, tensor differences: 1"));
  FlipByte("a/step-00000003/model-00001", 4100);
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html=" + page, "--json"}), kExitDifferent);
  EXPECT_EQ(Json()["damage"].size(), 1) << out_;
}

TEST_F(CkptTest, InspectWritesNoPageWhereItCannot) {
  MustSave("a", 3, 1);
  const std::string before = Contents(root_);
  EXPECT_EQ(Run({"inspect", root_ + "/nothing", "--html=" + root_ + "/page.html"}), kExitUsage);
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html=" + root_ + "/page.html",
                 "--diff=" + root_ + "/nothing"}),
            kExitUsage);
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html=" + root_ + "/nothing/page.html"}), kExitUsage);
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html=" + root_}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("is a folder"));
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--html="}), kExitUsage);
  EXPECT_EQ(Run({"inspect", root_ + "/a", "--diff=" + root_ + "/a"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("--diff is for --html"));
  EXPECT_EQ(Contents(root_), before);
}

}  // namespace
}  // namespace tessera::ckpt
