// A run whose checkpoints are in an object store, as its user sees it.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/s3/testing/s3_server.h"
#include "tests/resume/audit_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class S3CommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  }

  // Saves at steps 5, 10, 15 and 20, and resumes from what is there.
  Words Command(const std::string& folder,
                const Words& flags = {"--train-iters=20", "--save-interval=5"}) const {
    return Alone(Joined(flags, {"--save=" + folder, "--load=" + folder, "--global-batch-size=4",
                                "--s3-endpoint=" + server_.endpoint()}));
  }

  // Returns false where the process ends before.
  bool WaitForKey(const Process& process, const std::string& key) const {
    return process.WaitUntil([&] { return std::ranges::count(server_.keys(), key) > 0; });
  }

  // "20": "5.5606", of the last line of each step.
  static std::map<std::string, std::string> Printed(const std::string& out) {
    std::map<std::string, std::string> losses;
    const std::regex line(R"(step (\d+)/20 \| loss (\S+))");
    for (std::sregex_iterator it(out.begin(), out.end(), line), end; it != end; ++it) {
      losses[(*it)[1]] = (*it)[2];
    }
    return losses;
  }

  s3::S3Server server_{{.region = "us-east-1"}};
};

// The checkpoints that a replay begins with are where the run has saved them.
TEST_F(S3CommandTest, AnAuditFindsTheCheckpoints) {
  MustRun(Command("s3://bucket/audited", Joined(kExact, {"--train-iters=20", "--save-interval=5",
                                                         "--run-dir=" + RunDir("run").string()})));
  Result result = MustRun(AuditCommand(RunDir("run"), {"--steps=16-18"}));
  EXPECT_THAT(result.out, HasSubstr("executed again from the checkpoint of step 15"));
  result = MustRun(AuditCommand(RunDir("run"), {"--bisect"}));
  EXPECT_THAT(result.out, HasSubstr("all 20 steps from the beginning to step 20 follow"));
  server_.SetCredentials({"OTHER", "s", ""});
  EXPECT_EQ(Run(AuditCommand(RunDir("run"), {"--steps=16-18"})).exit_code, 2);
}

// A run takes its first weights from there, and so does a replay.
TEST_F(S3CommandTest, FirstWeightsAreThere) {
  const std::string file = (root_ / "weights.bin").string();
  MustTrain("before", 2, {"--export-llmc=" + file});
  server_.PutObject("first/model_00000002.bin", ReadFile(file));
  MustTrain(
      "run", 4,
      Joined(kExact, {"--llmc-filepath=s3://bucket/first", "--s3-endpoint=" + server_.endpoint()}));
  EXPECT_THAT(MustRun(AuditCommand(RunDir("run"), {"--bisect"})).out,
              HasSubstr("all 4 steps from the beginning to step 4 follow"));
}

// As a program that renews the credentials of a job does.
TEST_F(S3CommandTest, ATokenThatExpiresIsReadAgain) {
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) unsetenv(name);
  const std::string path = root_ / "credentials";
  setenv("AWS_SHARED_CREDENTIALS_FILE", path.c_str(), 1);
  const auto renew = [&](const std::string& token) {
    std::ofstream(path) << "[default]\naws_access_key_id = ID-" << token
                        << "\naws_secret_access_key = s\naws_session_token = " << token << "\n";
    server_.SetCredentials({"ID-" + token, "s", token});
  };
  renew("first");
  const Process process(
      Command("s3://bucket/token", {"--train-iters=200", "--save-interval=20", "--async-save",
                                    "--non-persistent-save-interval=0"}),
      root_);
  ASSERT_TRUE(WaitForKey(process, "token/step-00000020/manifest.pb")) << process.Wait().err;
  renew("second");
  ASSERT_TRUE(WaitForKey(process, "token/step-00000060/manifest.pb")) << process.Wait().err;
  renew("third");
  const Result result = process.Wait();
  unsetenv("AWS_SHARED_CREDENTIALS_FILE");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("is not saved")));
  EXPECT_THAT(server_.keys(), Contains("token/step-00000200/manifest.pb"));
}

TEST_F(S3CommandTest, SavesThatFailInARowEndTheRunOnAllRanks) {
  const Process process(
      Mpirun(2, {"--save=s3://bucket/failing", "--s3-endpoint=" + server_.endpoint(),
                 "--train-iters=100000", "--save-interval=5", "--async-save",
                 "--non-persistent-save-interval=0", "--topology=dp2"}),
      root_);
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
  const Result result = MustRun(
      Command("s3://bucket/discarded",
              {"--train-iters=20", "--save-interval=5", "--async-save", "--async-save-skip"}),
      1);
  EXPECT_THAT(result.out, HasSubstr("step 20 is not saved: "));
  EXPECT_THAT(result.out, HasSubstr("another run has discarded this save to "));
}

// The run diverges while its first save waits for a store that does not answer.
TEST_F(S3CommandTest, ARunThatFailsDoesNotWaitForItsStore) {
  server_.AddFault({.kind = s3::FaultKind::kStall,
                    .method = "PUT",
                    .key_part = ".safetensors",
                    .times = 1'000'000});
  const auto start = std::chrono::steady_clock::now();
  const Result result =
      MustRun(Command("s3://bucket/diverging",
                      {"--train-iters=1000", "--save-interval=1", "--async-save",
                       "--async-save-skip", "--lr=1e30", "--lr-decay-style=constant"}),
              1);
  EXPECT_THAT(result.err, HasSubstr("training has diverged")) << result.out;
  EXPECT_GT(server_.fault_count(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

// A run that is killed while it uploads the manifest of step 10 resumes from step 5. Files that
// were staged for background uploads are lost with the machine.
TEST_F(S3CommandTest, ARunThatIsKilledWhileItCommitsGoesOnAlsoOnAnotherMachine) {
  const Result undisturbed = Run(Command("s3://bucket/undisturbed"));
  const auto losses = Printed(undisturbed.out);
  ASSERT_EQ(losses.size(), 20) << undisturbed.out << undisturbed.err;
  const std::string bucket = "boto3:s3://bucket." + server_.endpoint().substr(7);
  for (const std::string run : {"killed", "upload"}) {
    SCOPED_TRACE(run);
    const auto command = [&](const std::string& machine) {
      if (run == "killed") return Command("s3://bucket/" + run);
      return Command(bucket + "/" + run,
                     {"--train-iters=20", "--save-interval=5", "--async-upload",
                      "--async-upload-tmp-folder=" + (root_ / machine).string()});
    };
    const std::string manifest = run + "/step-00000010/manifest.pb";
    const int faults = server_.fault_count();
    server_.AddFault({.kind = s3::FaultKind::kStall, .method = "PUT", .key_part = manifest});
    const Process process(command("lost"), root_);
    EXPECT_TRUE(process.WaitUntil([&] { return server_.fault_count() > faults; }));
    process.Kill(SIGKILL);
    const Result killed = process.Wait();
    ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.err;
    EXPECT_EQ(std::filesystem::exists(root_ / "lost"), run == "upload");
    EXPECT_THAT(server_.keys(), Contains(run + "/step-00000005/manifest.pb"));
    EXPECT_THAT(server_.keys(), Not(Contains(manifest)));

    const Result resumed = MustRun(command("new"));
    const auto later = Printed(resumed.out);
    EXPECT_TRUE(later.contains("20")) << resumed.out;
    EXPECT_FALSE(later.contains("5")) << "it goes on after the last checkpoint: " << resumed.out;
    for (const auto& [step, loss] : later) EXPECT_EQ(loss, losses.at(step)) << "step " << step;
    EXPECT_THAT(server_.keys(), Contains(run + "/step-00000020/manifest.pb"));
    EXPECT_EQ(server_.upload_count(), 0);
  }
}

TEST_F(S3CommandTest, TwoJobsAtOneBucketAreNoticedAndADeadOneIsReplaced) {
  const Words command = Command("s3://bucket/both", {"--train-iters=100000", "--save-interval=5"});
  const Process first(command, root_);
  ASSERT_TRUE(WaitForKey(first, "both/step-00000005/manifest.pb")) << first.Wait().err;
  std::filesystem::create_directories(root_ / "second");
  const Result second = Process(command, root_ / "second").Wait();
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.out, HasSubstr("whether another job still saves to s3://bucket/both"));
  EXPECT_THAT(second.err, HasSubstr("s3://bucket/both is in use: another job saves there ("));
  EXPECT_THAT(second.err, HasSubstr(", pid " + std::to_string(first.pid())));
  first.Kill(SIGKILL);
  first.Wait();
  const Process third(command, root_);
  const std::string pid = ", pid " + std::to_string(third.pid()) + ",";
  EXPECT_TRUE(third.WaitUntil(
      [&] { return server_.contents("both/.lease").find(pid) != std::string::npos; }));
  // Another job, which takes this one for dead.
  server_.PutObject("both/.lease", "state held\nholder elsewhere, pid 1\n");
  const Result taken = third.Wait();
  EXPECT_EQ(taken.exit_code, 1);
  EXPECT_THAT(taken.err, HasSubstr("another job has taken over s3://bucket/both (elsewhere"));
}

TEST_F(S3CommandTest, WhatIsMissingIsSaidBeforeTheFirstStep) {
  const Result no_bucket = MustRun(Command("s3://other/run"), 1);
  EXPECT_THAT(no_bucket.err, HasSubstr("there is no bucket other"));
  EXPECT_THAT(no_bucket.out, Not(HasSubstr("step 1/20")));
  unsetenv("AWS_SECRET_ACCESS_KEY");
  const Result no_key = MustRun(Command("s3://bucket/run"), 1);
  EXPECT_THAT(no_key.err, HasSubstr("AWS_SECRET_ACCESS_KEY is not"));
}

}  // namespace
}  // namespace tessera
