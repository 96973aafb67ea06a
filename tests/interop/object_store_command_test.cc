// `ckpt convert` into an object store, where folders cannot be renamed.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/s3_server.h"
#include "tests/interop/foreign_run.h"
#include "tests/support/command.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string PytorchFixture(const std::string& name) { return "tests/interop/pytorch/" + name; }

class ObjectStoreCommandTest : public testing::ForeignTest {
 protected:
  void SetUp() override {
    ForeignTest::SetUp();
    setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  }
};

// In an object store, the file that makes it a checkpoint comes last.
TEST_F(ObjectStoreCommandTest, EveryFormatIsWrittenToAnObjectStore) {
  const s3::S3Server server({.region = "us-east-1"});
  const std::string endpoint = "--s3-endpoint=" + server.endpoint();
  const std::string source = "tests/interop/megatron/gpt2_tp2_pp2";
  const std::string weights = In("weights");
  ASSERT_EQ(Run({"convert", source, weights, "--to=hf"}), 0) << err_;
  const std::pair<std::string, std::string> commits[] = {{"hf", "config.json"},
                                                         {"dcp", ".metadata"},
                                                         {"llmc", "DONE_00000007"},
                                                         {"torch", "checkpoint.pt"}};
  for (const auto& [format, last] : commits) {
    SCOPED_TRACE(format);
    const std::string folder = "s3://bucket/" + format;
    std::vector<std::string> convert = {"convert", source, folder, "--to=" + format, endpoint};
    if (format == "hf") convert.push_back("--max-file-size=4KiB");
    ASSERT_EQ(Run(convert), 0) << err_;
    EXPECT_EQ(Run({"diff", format == "hf" ? weights : source, folder, endpoint}), 0)
        << out_ << err_;
    const std::vector<std::string> keys = server.keys();
    EXPECT_EQ(std::ranges::count(keys, format + "/unfinished"), 0);
    std::string created;
    for (const std::string& request : server.requests()) {
      if (request.starts_with("PUT " + format + "/")) created = request;
    }
    EXPECT_EQ(created, "PUT " + format + "/" + last);
    EXPECT_EQ(Run(convert), ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr("exists, and nothing is ever overwritten"));
    EXPECT_EQ(server.keys(), keys);
  }
}

// A GGUF file is an object by itself, beside others.
TEST_F(ObjectStoreCommandTest, AFileOfLlamaCppIsWrittenToAnObjectStore) {
  s3::S3Server server({.region = "us-east-1"});
  const std::string endpoint = "--s3-endpoint=" + server.endpoint(), hf = PytorchFixture("gpt2.hf");
  for (const std::string place : {"s3://bucket/models/a.gguf", "s3://bucket/models/b.gguf"}) {
    ASSERT_EQ(Run({"convert", hf, place, "--to=gguf", endpoint}), 0) << err_;
    EXPECT_EQ(Run({"diff", hf, place, endpoint}), 0) << out_ << err_;
    EXPECT_EQ(Run({"convert", hf, place, "--to=gguf", endpoint}), ckpt::kExitUsage);
    EXPECT_THAT(err_, HasSubstr(place + " exists, and nothing is ever overwritten"));
  }
  EXPECT_EQ(server.keys(), (std::vector<std::string>{"models/a.gguf", "models/b.gguf"}));
  EXPECT_EQ(Run({"inspect", "s3://bucket/models", endpoint}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("2 GGUF files: give one of a.gguf, b.gguf"));
  EXPECT_EQ(Run({"convert", hf, "s3://bucket/models/c", "--to=gguf", endpoint}), ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("has to end in .gguf"));
  server.PutObject("models/c.gguf.unfinished", "");
  EXPECT_EQ(Run({"convert", hf, "s3://bucket/models/c.gguf", "--to=gguf", endpoint}),
            ckpt::kExitUsage);
  EXPECT_THAT(err_, HasSubstr("delete c.gguf and c.gguf.unfinished there and try again"));
}

// Files of torch and safetensors are objects by themselves, too. Folders may have such names.
TEST_F(ObjectStoreCommandTest, FilesInAnObjectStoreAreReadByName) {
  s3::S3Server server({.region = "us-east-1"});
  const std::string endpoint = "--s3-endpoint=" + server.endpoint(), hf = PytorchFixture("gpt2.hf");
  const std::string folder = "convert/formats/torch/testdata/";
  for (const std::string name : {"training.pt", "training_legacy.pt", "views.safetensors"}) {
    server.PutObject("models/" + name, ReadFile(folder + name));
    EXPECT_EQ(Run({"diff", folder + name, "s3://bucket/models/" + name, endpoint}), 0)
        << out_ << err_;
  }
  for (const std::string end : {".pth", ".bin", ".ckpt"}) {
    server.PutObject("models/a" + end, ReadFile(folder + "training.pt"));
    EXPECT_EQ(Run({"verify", "s3://bucket/models/a" + end, endpoint}), 0) << out_ << err_;
    ASSERT_EQ(Run({"convert", hf, "s3://bucket/hf" + end, "--to=hf", endpoint}), 0) << err_;
    EXPECT_EQ(Run({"diff", hf, "s3://bucket/hf" + end, endpoint}), 0) << out_ << err_;
  }
}

// The newest checkpoint has lost all but its seal, for which the store then answers an error.
TEST_F(ObjectStoreCommandTest, NoOlderCheckpointIsReadWhereTheStoreFails) {
  s3::S3Server server({.region = "us-east-1"});
  const std::string endpoint = "--s3-endpoint=" + server.endpoint(), run = "s3://bucket/run";
  ASSERT_EQ(Run({"convert", PytorchFixture("gpt2.hf"), run + "/checkpoint-1", "--to=hf", endpoint}),
            0);
  server.PutObject("run/checkpoint-2/tessera.seal", "");
  EXPECT_EQ(Run({"inspect", run, endpoint}), ckpt::kExitDifferent);
  EXPECT_THAT(err_, HasSubstr("checkpoint-2"));
  server.AddFault(
      {.status = 501, .method = "HEAD", .key_part = "checkpoint-2/tessera.seal", .times = 1});
  EXPECT_EQ(Run({"inspect", run, endpoint}), ckpt::kExitUsage) << out_;
  EXPECT_THAT(err_, HasSubstr("the store answers 501"));
}

// One conversion stands still at one of its requests, while another one does all of its work.
TEST_F(ObjectStoreCommandTest, OfTwoConversionsToOnePlaceOneIsWhole) {
  const std::string source = PytorchFixture("gpt2.hf");
  for (const std::string& format : {std::string("hf"), std::string("gguf")}) {
    const std::string place = format == "hf" ? "s3://bucket/hf" : "s3://bucket/models/a.gguf";
    int second = -1;
    // Some of the requests, others in each run.
    const int stride = format == "hf" ? 2 : 3;
    const auto begin = static_cast<int>(TestSeed() % stride);
    for (int request = begin; second != -1 || request == begin; request += stride) {
      SCOPED_TRACE(format + ", before request " + std::to_string(request));
      s3::S3Server server({.region = "us-east-1"});
      const std::string endpoint = "--s3-endpoint=" + server.endpoint();
      const std::vector<std::string> convert = {"convert", source, place, "--to=" + format,
                                                endpoint};
      second = -1;
      server.AddFault({.skip = request, .meanwhile = [&] { second = Run(convert); }});
      const int first = Run(convert);
      EXPECT_NE(first == 0, second == 0) << err_;
      EXPECT_EQ(Run({"diff", source, place, endpoint}), 0) << out_ << err_;
      for (const std::string& key : server.keys()) EXPECT_THAT(key, Not(HasSubstr("unfinished")));
    }
  }
}

// The request for the file that commits has succeeded, but is answered by an error in the end.
TEST_F(ObjectStoreCommandTest, WhatMakesACheckpointIsDeletedFirst) {
  s3::S3Server server({.region = "us-east-1"});
  server.AddFault(
      {.kind = s3::FaultKind::kLoseAnswer, .method = "PUT", .key_part = "hf/config.json"});
  server.AddFault({.status = 403,
                   .code = "AccessDenied",
                   .method = "PUT",
                   .key_part = "hf/config.json",
                   .times = 2});
  EXPECT_NE(Run({"convert", PytorchFixture("gpt2.model.bin"), "s3://bucket/hf", "--to=hf",
                 "--s3-endpoint=" + server.endpoint()}),
            0);
  std::string first;
  for (const std::string& request : server.requests()) {
    const bool is_ours = request.starts_with("DELETE hf/") && !request.starts_with("DELETE hf/.");
    if (first.empty() && is_ours) first = request;
  }
  EXPECT_EQ(first, "DELETE hf/config.json");
  EXPECT_TRUE(server.keys().empty());
}

// Nothing is left of a conversion that fails, wherever it does.
TEST_F(ObjectStoreCommandTest, AnObjectStoreKeepsNothingOfAFailure) {
  for (const char* part : {"hf/model-00002", "hf/model.safetensors.index", "hf/config.json"}) {
    SCOPED_TRACE(part);
    s3::S3Server server({.region = "us-east-1"});
    // Twice: credentials are read again, and the request is repeated.
    server.AddFault(
        {.status = 403, .code = "AccessDenied", .method = "PUT", .key_part = part, .times = 2});
    EXPECT_NE(Run({"convert", PytorchFixture("gpt2.model.bin"), "s3://bucket/hf", "--to=hf",
                   "--max-file-size=4KiB", "--s3-endpoint=" + server.endpoint()}),
              0);
    EXPECT_EQ(server.fault_count(), 2);
    EXPECT_TRUE(server.keys().empty());
  }
  // Another writer is at work, or has died.
  s3::S3Server server({.region = "us-east-1"});
  server.PutObject("hf/unfinished", "");
  EXPECT_EQ(Run({"convert", PytorchFixture("gpt2.model.bin"), "s3://bucket/hf", "--to=hf",
                 "--s3-endpoint=" + server.endpoint()}),
            ckpt::kExitUsage);
  EXPECT_THAT(
      err_, HasSubstr("was killed; if none is running, delete all objects below s3://bucket/hf/"));
  EXPECT_EQ(server.keys(), std::vector<std::string>{"hf/unfinished"});
}

// Another program, which knows nothing of marks, writes the last file in the meantime.
TEST_F(ObjectStoreCommandTest, AnotherProgramsLastFileIsAllThatIsKept) {
  for (const std::string key : {"hf/config.json", "dcp/.metadata", "llmc/DONE_00000007"}) {
    SCOPED_TRACE(key);
    s3::S3Server server({.region = "us-east-1"});
    server.AddFault(
        {.method = "PUT", .key_part = key, .meanwhile = [&] { server.PutObject(key, "theirs"); }});
    const std::string format = key.substr(0, key.find('/'));
    EXPECT_NE(Run({"convert", "tests/interop/megatron/gpt2_tp2_pp2", "s3://bucket/" + format,
                   "--to=" + format, "--s3-endpoint=" + server.endpoint()}),
              0);
    EXPECT_THAT(err_, HasSubstr(key));
    EXPECT_EQ(server.keys(), std::vector<std::string>{key});
    EXPECT_EQ(server.contents(key), "theirs");
  }
}

}  // namespace
}  // namespace tessera
