// A run whose checkpoints are in an object store, as its user sees it.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/storage/s3/testing/s3_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/command.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class S3CommandTest : public testing::Test {
 protected:
  S3CommandTest() : scratch_(testing::TempDir() + "/s3_command") {
    std::filesystem::create_directories(scratch_);
    WriteTokens();
    setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  }

  void WriteTokens() const {
    std::vector<int32_t> header(256);
    header[0] = 20240520;
    header[1] = 1;
    header[2] = 20'000;
    std::vector<uint16_t> tokens(header[2]);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i * 40'503 >> 8 & 255;
    std::ofstream file(scratch_ / "train.bin", std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()), 1024);
    file.write(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
  }

  // Saves at steps 5, 10, 15 and 20, and resumes from what is there.
  std::vector<std::string> Command(const std::string& folder) const {
    return {std::filesystem::current_path() / "trainer/app/train",
            "--architecture=gpt2",
            "--num-layers=2",
            "--hidden-size=64",
            "--num-attention-heads=4",
            "--vocab-size=256",
            "--seq-length=32",
            "--max-position-embeddings=32",
            "--micro-batch-size=2",
            "--global-batch-size=4",
            "--train-data-path=" + (scratch_ / "train.bin").string(),
            "--train-iters=20",
            "--save-interval=5",
            "--save=" + folder,
            "--load=" + folder,
            "--s3-endpoint=" + server_.endpoint()};
  }

  // "20": "5.5606", of the last line of each step.
  static std::map<std::string, std::string> Losses(const std::string& out) {
    std::map<std::string, std::string> losses;
    const std::regex line("step (\\d+)/20 \\| loss (\\S+)");
    for (std::sregex_iterator it(out.begin(), out.end(), line), end; it != end; ++it) {
      losses[(*it)[1]] = (*it)[2];
    }
    return losses;
  }

  const std::filesystem::path scratch_;
  ckpt::s3::S3Server server_{{.region = "us-east-1"}};
};

TEST_F(S3CommandTest, ARunThatIsKilledWhileItCommitsGoesOn) {
  const Result undisturbed = Process(Command("s3://bucket/undisturbed"), scratch_).Wait();
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  const auto losses = Losses(undisturbed.out);
  ASSERT_EQ(losses.size(), 20) << undisturbed.out;

  const std::string manifest = "killed/step-00000015/manifest.pb";
  server_.AddFault({.kind = ckpt::s3::FaultKind::kStall, .method = "PUT", .key_part = manifest});
  const Process process(Command("s3://bucket/killed"), scratch_);
  while (server_.fault_count() == 0 && !process.Ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process.Kill(SIGKILL);
  ASSERT_EQ(process.Wait().exit_code, 128 + SIGKILL);
  EXPECT_THAT(server_.keys(), Contains("killed/step-00000010/manifest.pb"));
  EXPECT_THAT(server_.keys(), Not(Contains(manifest)));

  const Result resumed = Process(Command("s3://bucket/killed"), scratch_).Wait();
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto later = Losses(resumed.out);
  EXPECT_TRUE(later.contains("20")) << resumed.out;
  EXPECT_FALSE(later.contains("10")) << "it goes on after the last checkpoint: " << resumed.out;
  for (const auto& [step, loss] : later) EXPECT_EQ(loss, losses.at(step)) << "step " << step;
  EXPECT_THAT(server_.keys(), Contains("killed/step-00000020/manifest.pb"));
  EXPECT_EQ(server_.upload_count(), 0);
}

// One of two ranks talks to another store, which has a bucket of the same name.
TEST_F(S3CommandTest, ARankWithAnotherEndpointEndsTheRunAndNothingIsRenamed) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ckpt::s3::S3Server other{{.region = "us-east-1"}};
  const auto ranks = [&](const std::string& second) {
    std::vector<std::string> train = Command("s3://bucket/run");
    train.back() = "--data-parallel-size=2";  // instead of --s3-endpoint
    std::vector<std::string> command = {"/usr/bin/env", "mpirun", "--oversubscribe",
                                        "--bind-to",    "none",   "-q"};
    for (const std::string& endpoint : {server_.endpoint(), second}) {
      if (command.size() > 6) command.push_back(":");
      command.insert(command.end(), {"-n", "1", "/usr/bin/env", "AWS_ENDPOINT_URL=" + endpoint});
      command.insert(command.end(), train.begin(), train.end());
    }
    return command;
  };
  const Result saved = Process(ranks(server_.endpoint()), scratch_).Wait();
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const auto keys = server_.keys();
  const Result refused = Process(ranks(other.endpoint()), scratch_).Wait();
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("step-00000020 reads well on rank 0, but could not be loaded "
                                     "(rank 1: "));
  EXPECT_EQ(server_.keys(), keys);
}

TEST_F(S3CommandTest, WhatIsMissingIsSaidBeforeTheFirstStep) {
  const Result no_bucket = Process(Command("s3://other/run"), scratch_).Wait();
  EXPECT_EQ(no_bucket.exit_code, 1);
  EXPECT_THAT(no_bucket.err, HasSubstr("there is no bucket other"));
  EXPECT_THAT(no_bucket.out, Not(HasSubstr("step 1/20")));
  unsetenv("AWS_SECRET_ACCESS_KEY");
  const Result no_key = Process(Command("s3://bucket/run"), scratch_).Wait();
  EXPECT_EQ(no_key.exit_code, 1);
  EXPECT_THAT(no_key.err, HasSubstr("AWS_SECRET_ACCESS_KEY is not"));
}

}  // namespace
}  // namespace tessera
