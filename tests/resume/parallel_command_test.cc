// A run of several processes as its user meets it: started by the launcher, or by mpirun itself.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/command.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Runfile(const std::string& path) {
  return std::string(std::getenv("TEST_SRCDIR")) + "/tessera/" + path;
}

int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

class ParallelCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    std::mt19937 random(3);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20000; ++i) tokens.push_back(static_cast<int32_t>(random() % 100));
    auto writer = TokenFileWriter::Create((root_ / "tokens.bin").string(), TokenFormat::kGpt2);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(tokens).ok());
    ASSERT_TRUE((*writer)->Close().ok());
    std::ofstream(root_ / "run.textproto")
        << R"pb(
          model { size: "gpt2-tiny" vocab_size: 100 hidden_dropout: 0.1 }
          training { micro_batch_size: 2 global_batch_size: 8 seq_length: 32 threads: 1 }
          optimizer { lr: 1e-3 lr_decay_iters: 100 }
        )pb"
        << "data { train_data_path: \"" << (root_ / "tokens.bin").string() << "\" }\n";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Config() const { return "--config=" + (root_ / "run.textproto").string(); }
  // The target that `bazel run` runs, on this test's settings.
  std::vector<std::string> Launcher(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {
        "/usr/bin/python3", Runfile("trainer/configs/launch.py"), Runfile("trainer/app/train"),
        Runfile("trainer/data/prepare_data"), (root_ / "run.textproto").string()};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  // A person's own mpirun.
  std::vector<std::string> Mpirun(int processes, const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {"/usr/bin/env",
                                        "mpirun",
                                        "--oversubscribe",
                                        "--bind-to",
                                        "none",
                                        "-q",
                                        "-n",
                                        std::to_string(processes),
                                        Runfile("trainer/app/train"),
                                        Config()};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  Result Run(const std::vector<std::string>& command) const {
    return Process(command, root_).Wait();
  }

  fs::path Checkpoints(const std::string& run) const { return root_ / run / "checkpoints"; }
  std::vector<std::string> Saving(const std::string& run, int steps,
                                  std::vector<std::string> more) const {
    more.insert(more.end(),
                {"--train-iters=" + std::to_string(steps), "--run-dir=" + (root_ / run).string(),
                 "--save=" + Checkpoints(run).string(), "--save-interval=2"});
    return more;
  }
  std::map<int64_t, std::string> Losses(const std::string& run) const {
    std::map<int64_t, std::string> losses;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      EXPECT_TRUE(losses.emplace(record["step"], record["loss_bits"]).second) << line;
    }
    return losses;
  }
  // Every record of a run without its timings, by kind and step.
  std::map<std::string, std::string> Records(const std::string& run) const {
    std::map<std::string, std::string> records;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      const bool is_step = record["kind"] == "step";
      records[record["kind"].get<std::string>() + " " + record["step"].dump()] =
          is_step ? record["loss_bits"].dump() + " " + record["grad_norm"].dump()
                  : record["eval_loss_bits"].dump();
    }
    return records;
  }
  // False after a minute.
  static bool WaitFor(const fs::path& path) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!fs::exists(path)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  // The process of a rank whose command line names this test's folder.
  pid_t FindRank(int rank) const {
    const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string environment = '\0' + ReadFile(entry.path() / "environ");
      if (environment.find('\0' + variable + '\0') == std::string::npos) continue;
      if (ReadFile(entry.path() / "cmdline").find(root_.string()) == std::string::npos) continue;
      return static_cast<pid_t>(std::stoi(name));
    }
    return -1;
  }

  fs::path root_;
};

const std::vector<std::string> kFour = {"--data-parallel-size=2", "--zero-stage=2",
                                        "--tensor-model-parallel-size=2"};

TEST_F(ParallelCommandTest, WrongSettingsAreAnsweredOnce) {
  // By the launcher, before any process starts.
  Result result = Run(Launcher({"--train-iters=2", "--data-parallel-size=2", "--lrr=1"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "train: unknown flag --lrr; did you mean --lr?\n");
  result = Run(Launcher({"--train-iters=2", "--tensor-model-parallel-size=3"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("num_attention_heads"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  result = Run(Launcher({"--hostfile=/nowhere/hosts"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("/nowhere/hosts"));

  // By one of the processes.
  result = Run(Mpirun(4, {"--train-iters=2", "--lrr=1"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "train: unknown flag --lrr; did you mean --lr?\n");
}

TEST_F(ParallelCommandTest, AnotherNumberOfProcessesIsAnsweredByTheRightOne) {
  Result result = Run(Mpirun(2, {"--train-iters=2", "--data-parallel-size=4"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("needs 4 processes, but 2 were started: use mpirun -n 4"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  result =
      Run({Runfile("trainer/app/train"), Config(), "--train-iters=2", "--data-parallel-size=4"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("needs 4 processes, but 1 was started: use mpirun -n 4"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
}

TEST_F(ParallelCommandTest, AnErrorEndsAllProcessesAndIsSaidOnce) {
  std::ofstream(root_ / "tokens.bin", std::ios::trunc) << "no tokens";
  const Result result = Run(Mpirun(2, {"--train-iters=2", "--data-parallel-size=2"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("tokens.bin"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
}

TEST_F(ParallelCommandTest, OneRankSpeaksAndTheOthersLog) {
  std::vector<std::string> flags = Saving("run", 4, kFour);
  flags.insert(flags.end(), {"--export-llmc=" + (root_ / "model.bin").string()});
  const Result result = Run(Launcher(flags));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (int step = 1; step <= 4; ++step) {
    const std::string line = "step " + std::to_string(step) + "/4 ";
    const size_t first = result.out.find(line);
    EXPECT_NE(first, std::string::npos) << result.out;
    EXPECT_EQ(result.out.find(line, first + 1), std::string::npos) << "said twice: " << line;
  }
  EXPECT_THAT(result.out, HasSubstr(" wire | "));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b"))) << "a file is no terminal";
  EXPECT_THAT(result.err, HasSubstr("train: 4 processes"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  for (const char* log : {"rank-00001.log", "rank-00002.log", "rank-00003.log"}) {
    EXPECT_THAT(ReadFile(root_ / "run" / log), HasSubstr("step 4/4")) << log;
  }
  EXPECT_FALSE(fs::exists(root_ / "run" / "rank-00000.log"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "config.textproto"));
  EXPECT_TRUE(fs::exists(root_ / "model.bin"));
  std::ifstream metrics(root_ / "run" / "metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  const nlohmann::json record = nlohmann::json::parse(line);
  EXPECT_GT(record["wire"]["dp"]["reduce-scatter"], 0);
  EXPECT_GT(record["wire"]["tp"]["all-reduce"], 0);
}

TEST_F(ParallelCommandTest, AHostFileSaysWhereTheProcessesGo) {
  std::ofstream(root_ / "hosts") << "localhost slots=2\n";
  const Result result = Run(Launcher(
      {"--train-iters=2", "--data-parallel-size=2", "--hostfile=" + (root_ / "hosts").string()}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("--hostfile"));
  EXPECT_THAT(result.out, HasSubstr("step 2/2"));
}

TEST_F(ParallelCommandTest, StopSignalsEndAllRanksAfterTheStep) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string run = "run" + std::to_string(signal);
    const Process process(Launcher(Saving(run, 1000000, kFour)), root_);
    if (!WaitFor(Checkpoints(run) / "step-00000004" / "manifest.pb")) {
      process.Kill(SIGKILL);
      FAIL() << "no second checkpoint: " << process.Wait().err;
    }
    process.Kill(signal);
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + signal) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped by signal " + std::to_string(signal)));
    EXPECT_EQ(Lines(result.err), 1) << result.err;
    EXPECT_GE(Losses(run).size(), 4u);
  }
}

// mpirun takes signals before it has ranks to pass them to, and ranks start at moments of their own.
TEST_F(ParallelCommandTest, StopSignalsAreNotLostWhileRanksStart) {
  for (const int milliseconds : {0, 100, 400}) {
    fs::remove(root_ / "stderr");
    const Process process(Launcher({"--train-iters=1000000", "--data-parallel-size=2"}), root_);
    const auto start = std::chrono::steady_clock::now();
    while (ReadFile(root_ / "stderr").find("2 processes") == std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.Kill(SIGTERM);
    const Result result = process.Wait();  // for ever, if it is lost
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
    EXPECT_LE(Lines(result.err), 1) << result.err;
  }
}

// Whoever finds it, the damage has a place, a rank and a way out.
TEST_F(ParallelCommandTest, DamageIsNamedOnce) {
  ASSERT_EQ(Run(Launcher(Saving("run", 4, {"--data-parallel-size=2"}))).exit_code, 0);
  const fs::path file = Checkpoints("run") / "step-00000004" / "model-00001-of-00002.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('\x5a');
  std::vector<std::string> resume = {"--train-iters=5", "--pipeline-model-parallel-size=2",
                                     "--load=" + Checkpoints("run").string()};
  const Result result = Run(Launcher(resume));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr(file.string() + " at offset 5000: tensor "));
  EXPECT_THAT(result.err, HasSubstr("--ckpt-step=2 resumes from the checkpoint before"));
  EXPECT_THAT(result.err, Not(HasSubstr(": rank")));
  EXPECT_EQ(Lines(result.err), 2) << "the launcher's line and one rank's: " << result.err;
  resume.push_back("--ckpt-step=2");
  EXPECT_EQ(Run(Launcher(resume)).exit_code, 0);
}

// The shipped settings: sixteen processes have one process's losses and weights, bit for bit.
TEST_F(ParallelCommandTest, SixteenProcessesComputeWhatOneDoes) {
  const std::vector<std::string> flags = {"--train-iters=20",
                                          "--numerics=exact",
                                          "--exact-tp-shards=2",
                                          "--train-data-path=" + (root_ / "tokens.bin").string(),
                                          "--valid-data-path=" + (root_ / "tokens.bin").string(),
                                          "--eval-interval=10"};
  for (const std::string name : {"single", "dp4_zero2_tp2_pp2"}) {
    std::vector<std::string> command = Launcher(flags);
    command[4] = Runfile("trainer/configs/" + name + ".textproto");
    command.push_back("--run-dir=" + (root_ / name).string());
    command.push_back("--export-llmc=" + (root_ / name / "model.bin").string());
    const Result result = Run(command);
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
  }
  const std::map<std::string, std::string> one = Records("single");
  EXPECT_EQ(one.size(), 22u);
  EXPECT_EQ(Records("dp4_zero2_tp2_pp2"), one);
  EXPECT_TRUE(ReadFile(root_ / "dp4_zero2_tp2_pp2" / "model.bin") ==
              ReadFile(root_ / "single" / "model.bin"));
}

// Settings that name no data train on a text of the system's, prepared once.
TEST_F(ParallelCommandTest, SettingsWithoutDataGetSome) {
  const bool has_text = std::ranges::any_of(
      fs::directory_iterator("/usr/share/perl"), [](const fs::directory_entry& version) {
        return fs::exists(version.path() / "pod" / "perlretut.pod");
      });
  if (!has_text) GTEST_SKIP() << "the package perl-doc is not there";
  setenv("TESSERA_DATA_DIR", (root_ / "data").c_str(), 1);
  std::vector<std::string> command = Launcher(
      {"--train-iters=2", "--lr-warmup-iters=1", "--prompt=The", "--num-tokens-to-generate=5"});
  command[4] = Runfile("trainer/configs/dp2.textproto");
  const Result first = Run(command);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("preparing the text"));
  EXPECT_THAT(first.out, HasSubstr("step 2/2"));
  const Result second = Run(command);
  unsetenv("TESSERA_DATA_DIR");
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr("preparing")));
  EXPECT_THAT(second.out, HasSubstr("\nThe"));
}

// Ranks that hold parts of a model write the file that one process writes, and start from it.
TEST_F(ParallelCommandTest, WeightsGoOutAndComeInOnAnyTopology) {
  const std::vector<std::string> exact = {"--numerics=exact", "--exact-tp-shards=2",
                                          "--valid-data-path=" + (root_ / "tokens.bin").string(),
                                          "--eval-iters=2", "--eval-interval=2"};
  const std::vector<std::string> split = {"--tensor-model-parallel-size=2",
                                          "--pipeline-model-parallel-size=2"};
  for (const std::string precision : {"--bf16=false", "--bf16"}) {
    // Trains from `from` (initial weights where it is empty); returns the file and what was printed.
    const auto train = [&](std::vector<std::string> flags, int steps, const std::string& from) {
      const fs::path file = root_ / "model.bin";
      fs::remove(file);
      flags.insert(flags.end(), exact.begin(), exact.end());
      flags.insert(flags.end(), {precision, "--train-iters=" + std::to_string(steps),
                                 "--llmc-filepath=" + from, "--export-llmc=" + file.string()});
      const Result result = Run(Launcher(flags));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.out, HasSubstr("eval at step " + std::to_string(steps)));
      return ReadFile(file);
    };
    const std::string first = train({}, 2, "");
    ASSERT_GT(first.size(), 1024u);
    EXPECT_TRUE(train(split, 2, "") == first);
    const fs::path start = root_ / "start.bin";
    std::ofstream(start, std::ios::binary) << first;
    EXPECT_TRUE(train(split, 0, start.string()) == first);
    EXPECT_TRUE(train(split, 2, start.string()) == train({}, 2, start.string()));
  }
}

// A process that hangs is waited for as long as the setting says, and named.
TEST_F(ParallelCommandTest, AHangingRankIsNamed) {
  std::vector<std::string> flags = Saving("run", 1000000, kFour);
  flags.push_back("--distributed-timeout-minutes=0.05");
  const Process process(Launcher(flags), root_);
  ASSERT_TRUE(WaitFor(Checkpoints("run") / "step-00000004" / "manifest.pb")) << process.Wait().err;
  const pid_t victim = FindRank(2);
  ASSERT_GT(victim, 0);
  kill(victim, SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  const Result result = process.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("rank 2"));
  EXPECT_THAT(result.err, HasSubstr("its process is stopped"));
  EXPECT_EQ(Lines(result.err), 2) << "the launcher's line and one rank's: " << result.err;
}

// A process of the run is killed: the others end, the launcher names it, and the run goes on from the
// last checkpoint as if nothing had happened.
TEST_F(ParallelCommandTest, SuddenDeathOfARankCostsNothingButTime) {
  const Result undisturbed = Run(Launcher(Saving("undisturbed", 12, kFour)));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;

  std::vector<std::string> resume = Saving("killed", 12, kFour);
  resume.push_back("--load=" + Checkpoints("killed").string());
  {
    std::vector<std::string> longer = Saving("killed", 12, kFour);
    longer.push_back("--train-iters=1000000");
    const Process process(Launcher(longer), root_);
    ASSERT_TRUE(WaitFor(Checkpoints("killed") / "step-00000004" / "manifest.pb"))
        << process.Wait().err;
    const pid_t victim = FindRank(2);
    ASSERT_GT(victim, 0);
    kill(victim, SIGKILL);
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
    EXPECT_THAT(result.err, HasSubstr("rank 2 on "));
    EXPECT_THAT(result.err, HasSubstr("was killed by signal 9 (SIGKILL)"));
  }
  // What lies beyond belongs to a longer run.
  for (const fs::directory_entry& entry : fs::directory_iterator(Checkpoints("killed"))) {
    if (entry.path().filename() > "step-00000004") fs::remove_all(entry.path());
  }
  const Result resumed = Run(Launcher(resume));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("(step 4)"));
  EXPECT_EQ(Losses("killed"), Losses("undisturbed"));
  int files = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(Checkpoints("undisturbed") / "step-00000012")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_TRUE(ReadFile(entry.path()) ==
                ReadFile(Checkpoints("killed") / "step-00000012" / entry.path().filename()))
        << entry.path().filename();
  }
  EXPECT_GE(files, 4) << "several ranks write";
}

}  // namespace
}  // namespace tessera
