#include "tests/resume/resume_run.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compute/comm/threads/thread_world.h"
#include "compute/device/compute_devices.h"
#include "compute/device/cuda_device.h"
#include "compute/parallel/topology.h"
#include "compute/random/philox.h"
#include "nlohmann/json.hpp"
#include "tests/resume/command.h"
#include "trainer/app/session.h"
#include "trainer/app/train_loop.h"
#include "trainer/data/token_file.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabulary = 211;  // not a multiple of the padding

// Warmup ends at 50 and decay at 100: the checkpoints of 40 and 60 lie inside each.
constexpr char kCommon[] = R"pb(
  training {
    micro_batch_size: 2
    global_batch_size: 4
    seq_length: 32
    train_iters: 100
    eval_interval: 25
    eval_iters: 2
    threads: 2
  }
  optimizer {
    lr: 3e-3
    min_lr: 1e-4
    lr_decay_style: COSINE
    lr_warmup_iters: 50
    lr_decay_iters: 100
    weight_decay: 0.1
    clip_grad: 0.5
  }
  checkpoint { save_interval: 20 }
)pb";

// A learnable language: three times out of four, the next token is a function of the last one.
std::vector<int32_t> MakeTokens() {
  const RandomStream stream{.seed = 7, .use = RandomUse::kDataOrder, .stream = 1};
  std::vector<int32_t> tokens{1};
  for (int64_t i = 1; i < kTokens; ++i) {
    const uint32_t word = RandomWord(stream, static_cast<uint64_t>(i));
    tokens.push_back(word % 4 != 0 ? (tokens.back() * 31 + 17) % kVocabulary
                                   : static_cast<int32_t>((word >> 8) % kVocabulary));
  }
  return tokens;
}

absl::Status TrainRank(const TrainConfig& config, Communicator* world, std::string* notes) {
  const std::unique_ptr<ComputeDevices> devices = MakeCudaDevices();
  const absl::StatusOr<std::unique_ptr<Session>> session = BuildSession(
      config, world, *devices, [&](const std::string& note) { *notes += note + "\n"; });
  if (!session.ok()) return session.status();
  if (!(*session)->trains) {
    *notes += "nothing left to train";
    return absl::OkStatus();
  }
  if ((*session)->first_rank()) {
    fs::create_directories(config.output().run_dir());
    auto opened = MetricsWriter::Open(
        config.output().run_dir() + "/metrics.jsonl",
        (*session)->resumed ? std::optional((*session)->progress.step) : std::nullopt);
    if (!opened.ok()) return opened.status();
    (*session)->metrics = *std::move(opened);
  }
  std::FILE* null = std::fopen("/dev/null", "w");
  ProgressLine line({.total_steps = kSteps, .out = null, .detect_terminal = false});
  TrainLoop loop(**session, line);
  const absl::Status status = loop.Run();
  std::fclose(null);
  if (!status.ok() || (*session)->metrics == nullptr) return status;
  return (*session)->metrics->Close();
}

}  // namespace

std::map<int64_t, std::string> Losses(const fs::path& run_dir, const std::string& kind) {
  std::map<int64_t, std::string> losses;
  std::ifstream file(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record["kind"].get<std::string>() != kind) continue;
    const std::string values = kind == "eval" ? record["eval_loss_bits"].get<std::string>()
                                              : absl::StrCat(record["loss_bits"].get<std::string>(),
                                                             " ", record["grad_norm"].get<double>(),
                                                             " ", record["lr"].get<double>());
    const bool is_new = losses.emplace(record["step"].get<int64_t>(), values).second;
    EXPECT_TRUE(is_new) << "step recorded twice: " << line;
  }
  return losses;
}

void ResumeTest::SetUp() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = absl::StrCat(test->test_suite_name(), ".", test->name());
  for (char& c : name) c = c == '/' ? '_' : c;
  root_ = fs::path(::testing::TempDir()) / name;
  fs::remove_all(root_);
  fs::create_directories(root_);
  auto writer = TokenFileWriter::Create((root_ / "tokens.bin").string(), TokenFormat::kGpt2);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(MakeTokens()).ok());
  ASSERT_TRUE((*writer)->Close().ok());
}

TrainConfig ResumeTest::Config(std::vector<std::string> fragments, const std::string& run) const {
  TrainConfig result;
  fragments.insert(fragments.begin(), kCommon);
  for (const std::string& text : fragments) {
    const absl::StatusOr<TrainConfig> part = ParseConfig(text, "resume_test");
    EXPECT_TRUE(part.ok()) << part.status();
    if (part.ok()) result.MergeFrom(*part);
  }
  result.mutable_model()->set_vocab_size(kVocabulary);
  result.mutable_data()->set_train_data_path((root_ / "tokens.bin").string());
  result.mutable_data()->set_valid_data_path((root_ / "tokens.bin").string());
  result.mutable_output()->set_run_dir(RunDir(run).string());
  result.mutable_checkpoint()->set_save(Checkpoints(run).string());
  return result;
}

fs::path ResumeTest::StepDir(const std::string& run, int64_t step) const {
  return Checkpoints(run) / absl::StrFormat("step-%08d", step);
}

absl::StatusOr<std::string> ResumeTest::Train(const TrainConfig& unresolved) {
  const absl::StatusOr<TrainConfig> config = ResolveConfig(unresolved);
  if (!config.ok()) return config.status();
  std::string notes;
  const int ranks = ConfigTopology(*config).world_size();
  const absl::Status status =
      ranks == 1 ? TrainRank(*config, nullptr, &notes)
                 : ThreadWorld(ranks).Run([&](Communicator& world) {
                     std::string own;
                     return TrainRank(*config, &world, world.rank() == 0 ? &notes : &own);
                   });
  if (!status.ok()) return status;
  return notes;
}

void ResumeTest::LeaveAt(const std::string& from, int64_t step, const std::string& to) const {
  fs::create_directories(Checkpoints(to));
  for (int64_t saved = 20; saved <= step; saved += 20) {
    fs::copy(StepDir(from, saved), StepDir(to, saved), fs::copy_options::recursive);
  }
  fs::copy_file(RunDir(from) / "metrics.jsonl", RunDir(to) / "metrics.jsonl");
}

void ResumeTest::ExpectSameTensors(const std::string& one, const std::string& other,
                                   int64_t step) const {
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(StepDir(one, step))) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_TRUE(ReadFile(entry.path()) == ReadFile(Counterpart(entry.path(), StepDir(other, step))))
        << entry.path().filename() << " of step " << step << " differs";
  }
  EXPECT_GE(files, 2);
}
}  // namespace tessera
