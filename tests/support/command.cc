#include "tests/support/command.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <system_error>
#include <thread>

#include "absl/time/time.h"
#include "base/cpu_level.h"
#include "base/files.h"
#include "base/steady_time.h"
#include "trainer/data/token_file.h"

namespace tessera {

namespace fs = std::filesystem;

Words Joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string ReadFile(const fs::path& path) { return ReadWholeFile(path.string()).value_or(""); }

void WriteFile(const fs::path& path, std::string_view contents) {
  std::ofstream file(path, std::ios::binary);
  file << contents;
  file.close();
  EXPECT_TRUE(file.good()) << path;
}

int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string Runfile(const std::string& path) {
  return std::string(getenv("TEST_SRCDIR")) + "/tessera/" + path;
}

fs::path DataFile(const fs::path& checkpoint, const std::string& start) {
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().filename().string().starts_with(start)) return entry.path();
  }
  return {};
}

fs::path Counterpart(const fs::path& file, const fs::path& checkpoint) {
  const std::string name = file.filename();
  return DataFile(checkpoint, name.substr(0, name.rfind('-') + 1));
}

void FlipBit(const fs::path& file, int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const int64_t at = offset >= 0 ? offset : static_cast<int64_t>(fs::file_size(file)) + offset;
  stream.seekg(at);
  const char flipped = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(at);
  stream.put(flipped);
}

int64_t TreeBytes(const fs::path& folder) {
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

void WriteRandomTokens(const fs::path& path, int vocabulary, int count) {
  std::mt19937 random(3);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocabulary);
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       TokenFileWriter::Create(path.string(), TokenFormat::kGpt2));
  ASSERT_OK(writer->Append(tokens));
  ASSERT_OK(writer->Close());
}

namespace {

const absl::Duration kTestBegan = SteadyNow();

bool IsNumber(const std::string& text) {
  return text.find_first_not_of("0123456789") == std::string::npos;
}

// Returns what runs on this machine: the command lines, and where in the kernel each thread waits.
std::string DescribeProcesses() {
  std::string text;
  std::error_code error;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc")) {
    const std::string id = process.path().filename();
    std::string command = ReadFile(process.path() / "cmdline");
    if (!IsNumber(id) || command.empty()) continue;
    std::replace(command.begin(), command.end(), '\0', ' ');
    text += id + ": " + command + "\n";
    for (const auto& thread : fs::directory_iterator(process.path() / "task", error)) {
      text += "  thread " + thread.path().filename().string() + " in " +
              ReadFile(thread.path() / "wchan") + ", call " + ReadFile(thread.path() / "syscall") +
              "\n";
    }
  }
  return text;
}

}  // namespace

Process::Process(const Words& command, const fs::path& scratch)
    : out_(scratch / "stdout"), err_(scratch / "stderr") {
  const fs::path temporary = scratch / "tmp";
  fs::create_directories(temporary);
  pid_ = fork();
  if (pid_ != 0) return;
  setenv("TMPDIR", temporary.c_str(), /*overwrite=*/1);
  setenv("OMPI_MCA_btl_vader_backing_directory", temporary.c_str(), /*overwrite=*/1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
  dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

void Process::Kill(int signal) const { kill(pid_, signal); }

bool Process::Ended() const {
  siginfo_t info = {};
  waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid != 0;
}

Result Process::Wait() const {
  while (!Ended() && IsInTime()) SleepTwoMilliseconds();
  if (!Ended()) {
    ADD_FAILURE() << "does not end:\n" << DescribeProcesses() << ReadFile(out_) << ReadFile(err_);
    Kill(SIGKILL);
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = ReadFile(out_),
          .err = ReadFile(err_)};
}

// Returns whether it is more than half a minute until Bazel ends this test without a word.
bool Process::IsInTime() {
  const char* const seconds = getenv("TEST_TIMEOUT");
  return seconds == nullptr || SteadyNow() < kTestBegan + absl::Seconds(std::atoi(seconds) - 30);
}

void Process::SleepTwoMilliseconds() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

void CommandTest::SetUp() {
  // oneDNN compiles its products in each process, which takes half of a short run. With AVX2 alone,
  // Tessera's own loops multiply. Where this process has a limit, the programs keep it.
  if (!CpuLevelLimit().has_value()) setenv("TESSERA_CPU", "avx2", /*overwrite=*/1);
  // The transport within a host: to look for networks, each rank loads their libraries.
  setenv("OMPI_MCA_pml", "ob1", /*overwrite=*/0);
  WriteRandomTokens(root_ / "tokens.bin", /*vocabulary=*/100, /*count=*/20000);
  WriteSettings("model { size: \"gpt2-tiny\" vocab_size: 100 hidden_dropout: 0.1 }");
}

void CommandTest::WriteSettings(const std::string& model, int seq_length, const std::string& more,
                                const std::string& tokens) const {
  std::ofstream(root_ / "run.textproto")
      << model << more << "training { micro_batch_size: 2 global_batch_size: 8 threads: 1 "
      << "seq_length: " << seq_length << " } optimizer { lr: 1e-3 lr_decay_iters: 100 } "
      << "data { train_data_path: \"" << (root_ / tokens).string() << "\" }\n";
}

fs::path CommandTest::Checkpoints(const std::string& run) const {
  return root_ / run / "checkpoints";
}

fs::path CommandTest::StepDir(const std::string& run, int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08ld", step);
  return Checkpoints(run) / name;
}

Words CommandTest::Saving(const std::string& run, int steps, const Words& flags) const {
  const bool has_interval = std::ranges::any_of(flags, [](const std::string& flag) {
    return flag.starts_with("--save-interval") || flag.starts_with("--save-continuously") ||
           flag.starts_with("--checkpoint-every");
  });
  return Joined(
      Joined(flags, {"--train-iters=" + std::to_string(steps), "--run-dir=" + RunDir(run).string(),
                     "--save=" + Checkpoints(run).string()}),
      has_interval ? Words() : Words{"--save-interval=2"});
}

Words CommandTest::Alone(const Words& flags) const {
  return Joined({Runfile("trainer/app/train"), Config()}, flags);
}

Words CommandTest::Launcher(const Words& flags) const {
  return Joined(
      {"/usr/bin/python3", Runfile("trainer/configs/launch.py"), Runfile("trainer/app/train"),
       Runfile("trainer/data/prepare_data"), (root_ / "run.textproto").string()},
      flags);
}

Words CommandTest::Mpirun(int processes, const Words& flags) const {
  return Joined({"/usr/bin/env", "mpirun", "--oversubscribe", "--bind-to", "none", "-q", "-n",
                 std::to_string(processes)},
                Alone(flags));
}

Words CommandTest::MpirunWithUnlikeRanks(const Words& second, const Words& flags) const {
  const Words others = Joined({":", "-n", "1", "/usr/bin/env"}, second);
  return Joined(Joined(Mpirun(1, flags), others), Alone(flags));
}

Result CommandTest::Train(const std::string& run, int steps, const Words& flags) const {
  return Run(Alone(Saving(run, steps, flags)));
}

Result CommandTest::MustRun(const Words& command, int exit_code) const {
  const Result result = Run(command);
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  return result;
}

Result CommandTest::MustTrain(const std::string& run, int steps, const Words& flags,
                              int exit_code) const {
  return MustRun(Alone(Saving(run, steps, flags)), exit_code);
}

std::vector<nlohmann::json> CommandTest::Records(const std::string& run) const {
  std::vector<nlohmann::json> records;
  std::ifstream file(RunDir(run) / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    // The last line may be incomplete while the run goes on.
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_discarded()) records.push_back(record);
  }
  return records;
}

std::map<int64_t, std::string> CommandTest::Losses(const std::string& run) const {
  std::map<int64_t, std::string> losses;
  for (const nlohmann::json& record : Records(run)) {
    if (record["kind"] != "step") continue;
    EXPECT_TRUE(losses.emplace(record["step"], record["loss_bits"]).second) << record;
  }
  return losses;
}

int64_t CommandTest::RecordCount(const std::string& run) const {
  return Lines(ReadFile(RunDir(run) / "metrics.jsonl"));
}

std::set<int64_t> CommandTest::Steps(const std::string& run) const {
  std::set<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(Checkpoints(run), error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-") || name.find('.') != std::string::npos) continue;
    if (fs::exists(entry.path() / "manifest.pb")) steps.insert(std::stoll(name.substr(5)));
  }
  return steps;
}

int64_t CommandTest::CheckpointBytes() const {
  MustTrain("size", 1);
  return TreeBytes(StepDir("size", 1));
}

pid_t CommandTest::FindRank(int rank) const {
  const std::string variable = '\0' + ("OMPI_COMM_WORLD_RANK=" + std::to_string(rank)) + '\0';
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!IsNumber(name)) continue;
    const std::string environment = '\0' + ReadFile(entry.path() / "environ");
    if (environment.find(variable) == std::string::npos) continue;
    if (ReadFile(entry.path() / "cmdline").find(root_.string()) == std::string::npos) continue;
    return static_cast<pid_t>(std::stoi(name));
  }
  return -1;
}

}  // namespace tessera
