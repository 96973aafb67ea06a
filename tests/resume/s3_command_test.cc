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
  std::vector<std::string> Command(const std::string& folder,
                                   const std::vector<std::string>& flags = {"--train-iters=20",
                                                                            "--save-interval=5"},
                                   const std::vector<std::string>& launcher = {}) const {
    std::vector<std::string> command = launcher;
    const std::vector<std::string> words = {
        std::filesystem::current_path() / "trainer/app/train",
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
        "--save=" + folder,
        "--load=" + folder,
        "--s3-endpoint=" + server_.endpoint()};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  // Returns false where the process ends before.
  bool WaitForKey(const Process& process, const std::string& key) const {
    while (!process.Ended()) {
      const std::vector<std::string> keys = server_.keys();
      if (std::ranges::find(keys, key) != keys.end()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
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
    std::ranges::replace(train, "--s3-endpoint=" + server_.endpoint(),
                         std::string("--data-parallel-size=2"));
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

// As a program that renews the credentials of a job does.
TEST_F(S3CommandTest, ATokenThatExpiresIsReadAgain) {
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) unsetenv(name);
  const std::string path = scratch_ / "credentials";
  setenv("AWS_SHARED_CREDENTIALS_FILE", path.c_str(), 1);
  const auto renew = [&](const std::string& token) {
    std::ofstream(path) << "[default]\naws_access_key_id = ID-" << token
                        << "\naws_secret_access_key = s\naws_session_token = " << token << "\n";
    server_.SetCredentials({"ID-" + token, "s", token});
  };
  renew("first");
  const Process process(
      Command("s3://bucket/token", {"--train-iters=600", "--save-interval=20", "--async-save",
                                    "--non-persistent-save-interval=0"}),
      scratch_);
  ASSERT_TRUE(WaitForKey(process, "token/step-00000020/manifest.pb")) << process.Wait().err;
  renew("second");
  ASSERT_TRUE(WaitForKey(process, "token/step-00000060/manifest.pb")) << process.Wait().err;
  renew("third");
  const Result result = process.Wait();
  unsetenv("AWS_SHARED_CREDENTIALS_FILE");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("is not saved")));
  EXPECT_THAT(server_.keys(), Contains("token/step-00000600/manifest.pb"));
}

TEST_F(S3CommandTest, SavesThatFailInARowEndTheRunOnAllRanks) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const Process process(
      Command("s3://bucket/failing",
              {"--train-iters=100000", "--save-interval=5", "--async-save",
               "--non-persistent-save-interval=0", "--topology=dp2"},
              {"/usr/bin/env", "mpirun", "--oversubscribe", "--bind-to", "none", "-q", "-n", "2"}),
      scratch_);
  ASSERT_TRUE(WaitForKey(process, "failing/step-00000005/manifest.pb")) << process.Wait().err;
  server_.SetCredentials({"OTHER", "s", ""});
  const Result result = process.Wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("nothing can be saved to s3://bucket/failing: 3 saves in a row "
                                    "have failed (max_failed_saves); the last one: "));
  EXPECT_THAT(result.err, HasSubstr("the same command resumes from the newest checkpoint"));
}

// Another run discards the last save just before it commits: no save was skipped.
TEST_F(S3CommandTest, ALastSaveThatIsDiscardedMeanwhileEndsTheRunWithAnError) {
  const std::string manifest = "discarded/step-00000020/manifest.pb";
  server_.AddFault({.method = "PUT", .key_part = manifest, .meanwhile = [&] {
                      server_.PutObject(manifest, "TESSERA tombstone 1 00\n");
                    }});
  const Result result =
      Process(Command("s3://bucket/discarded", {"--train-iters=20", "--save-interval=5",
                                                "--async-save", "--async-save-skip"}),
              scratch_)
          .Wait();
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.out, HasSubstr("step 20 is not saved: "));
  EXPECT_THAT(result.out, HasSubstr("another run has discarded this save to "));
}

// The run diverges while its first save waits for a store that does not answer.
TEST_F(S3CommandTest, ARunThatFailsDoesNotWaitForItsStore) {
  server_.AddFault({.kind = ckpt::s3::FaultKind::kStall,
                    .method = "PUT",
                    .key_part = ".safetensors",
                    .times = 1'000'000});
  const auto start = std::chrono::steady_clock::now();
  const Result result =
      Process(Command("s3://bucket/diverging",
                      {"--train-iters=1000", "--save-interval=1", "--async-save",
                       "--async-save-skip", "--lr=1e30", "--lr-decay-style=constant"}),
              scratch_)
          .Wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("training has diverged")) << result.out;
  EXPECT_GT(server_.fault_count(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_F(S3CommandTest, TwoJobsAtOneBucketAreNoticedAndADeadOneIsReplaced) {
  const std::vector<std::string> command =
      Command("s3://bucket/both", {"--train-iters=100000", "--save-interval=5"});
  const Process first(command, scratch_);
  ASSERT_TRUE(WaitForKey(first, "both/step-00000005/manifest.pb")) << first.Wait().err;
  std::filesystem::create_directories(scratch_ / "second");
  const Result second = Process(command, scratch_ / "second").Wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.out, HasSubstr("whether another job still saves to s3://bucket/both"));
  EXPECT_THAT(second.err, HasSubstr("s3://bucket/both is in use: another job saves there ("));
  EXPECT_THAT(second.err, HasSubstr(", pid " + std::to_string(first.pid())));
  first.Kill(SIGKILL);
  first.Wait();
  const Process third(command, scratch_);
  const std::string pid = ", pid " + std::to_string(third.pid()) + ",";
  while (!third.Ended() && server_.contents("both/.lease").find(pid) == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Another job, which takes this one for dead.
  server_.PutObject("both/.lease", "state held\nholder elsewhere, pid 1\n");
  const Result taken = third.Wait();
  EXPECT_EQ(taken.exit_code, 1);
  EXPECT_THAT(taken.err, HasSubstr("another job has taken over s3://bucket/both (elsewhere"));
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
