// EXACT numerics have one list of losses, and one state,
// - on every instruction set that this processor has, and on an emulated one;
// - with any number of threads, on any topology;
// - with micro-batches of any power of two.
//
// They are compared with a file (any_processor.golden), so that every machine that runs this test
// is compared with all others. To write it anew after a change of the contract:
//
//   TESSERA_WRITE_GOLDEN=1 ./bazelw run //tests/exact:any_processor
//
// TESSERA_RUNS limits a process to so many runs of each kind (0: all): this program runs itself
// with it under other conditions.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cpu_level.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/random/philox.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

constexpr int64_t kSteps = 20;
constexpr char kGolden[] = "tests/exact/any_processor.golden";
constexpr char kRuns[] = "TESSERA_RUNS";

struct Kind {
  std::string name;
  std::string model;  // text format
  bool bf16 = false;
};

const std::vector<Kind>& Kinds() {
  const std::string size = " num_layers: 2 hidden_size: 16 num_attention_heads: 4 vocab_size: 61 ";
  const std::string gpt2 = "size: \"gpt2-tiny\" hidden_dropout: 0.1 attention_dropout: 0.1" + size;
  const std::string llama = "size: \"llama3-tiny\" num_query_groups: 2" + size;
  static const auto& kinds = *new std::vector<Kind>{{"gpt2_fp32", gpt2, false},
                                                    {"gpt2_bf16", gpt2, true},
                                                    {"llama3_fp32", llama, false},
                                                    {"llama3_bf16", llama, true}};
  return kinds;
}

struct Variant {
  std::string topology;
  int64_t micro_batch_size = 1;
  int threads = 1;
};

// The first ones have all topologies, micro-batch sizes and numbers of threads; kinds begin with
// different ones, so that one run of each has all topologies, too.
std::vector<Variant> Variants(size_t kind) {
  std::vector<Variant> variants = {{"single", 4, 1}, {"tp2", 2, 2}, {"dp3", 1, 3}, {"pp2", 1, 7},
                                   {"single", 1, 4}, {"tp2", 4, 5}, {"dp3", 2, 6}};
  std::rotate(variants.begin(), variants.begin() + static_cast<int>(kind % 4),
              variants.begin() + 4);
  for (const std::string topology : {"single", "tp2", "dp3", "pp2", "dp3_zero1", "tp2_sp_pp2"}) {
    for (const int64_t size : {1, 2, 4}) {
      for (const int threads : {1, 2, 3, 4, 5, 6, 7}) variants.push_back({topology, size, threads});
    }
  }
  return variants;
}

absl::StatusOr<TrainConfig> Config(const Kind& kind, const Variant& variant) {
  const std::string tokens = ::testing::TempDir() + "/any_processor_tokens.bin";
  EXPECT_OK(testing::WriteTokens(tokens, 61, 4000));
  TESSERA_ASSIGN_OR_RETURN(TrainConfig config,
                           testing::MakeConfig({.model = kind.model,
                                                .tokens = tokens,
                                                .topology = variant.topology,
                                                .exact_shards = 2,
                                                .bf16 = kind.bf16,
                                                .micro_batch_size = variant.micro_batch_size,
                                                .global_batch_size = 12,
                                                .seq_length = 10,
                                                .steps = kSteps,
                                                .decay_steps = kSteps}));
  config.mutable_training()->set_threads(variant.threads);
  return config;
}

std::string Losses(const Kind& kind, const std::vector<std::string>& bits) {
  return absl::StrCat(kind.name, " losses ", absl::StrJoin(bits, " "));
}

// The bits of the losses and a digest of weights and moments, in one line.
std::string Line(const Kind& kind, const Variant& variant) {
  const absl::StatusOr<TrainConfig> config = Config(kind, variant);
  if (!config.ok()) return config.status().ToString();
  const absl::StatusOr<testing::TrainedRun> run = testing::TrainOnThreads(*config);
  if (!run.ok()) return run.status().ToString();
  std::vector<std::string> losses;
  for (const double loss : run->losses) {
    losses.push_back(absl::StrCat(absl::Hex(std::bit_cast<uint64_t>(loss), absl::kZeroPad16)));
  }
  uint64_t digest = 0;
  for (const auto& [name, tensor] : run->state) {
    digest = MixCoordinates(digest, HashName(name));
    digest = MixCoordinates(digest, HashName({reinterpret_cast<const char*>(tensor.bytes.data()),
                                              tensor.bytes.size()}));
  }
  return absl::StrCat(Losses(kind, losses), " state ", absl::Hex(digest, absl::kZeroPad16));
}

int RunsOfKind() {
  const char* const runs = std::getenv(kRuns);
  const int count = runs == nullptr ? 7 : std::atoi(runs);
  return count == 0 ? static_cast<int>(Variants(0).size()) : count;
}

// The kind, by its number.
class AnyProcessorTest : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyProcessorTest, ::testing::Range<size_t>(0, Kinds().size()),
                         [](const auto& info) { return Kinds()[info.param].name; });

TEST_P(AnyProcessorTest, HasTheBitsOfAllOthers) {
  const Kind& kind = Kinds()[GetParam()];
  if (std::getenv("TESSERA_WRITE_GOLDEN") != nullptr) {
    std::ofstream file(std::filesystem::path(std::getenv("BUILD_WORKSPACE_DIRECTORY")) / kGolden,
                       GetParam() == 0 ? std::ios::trunc : std::ios::app);
    file << Line(kind, Variants(0).front()) << "\n";
    ASSERT_TRUE(file.flush().good());
    GTEST_SKIP() << "the line has been written";
  }
  std::istringstream golden(ReadFile(Runfile(kGolden)));
  std::string expected;
  for (size_t i = 0; i <= GetParam(); ++i) {
    ASSERT_TRUE(std::getline(golden, expected)) << kGolden << " lacks " << kind.name;
  }
  for (int run = 0; run < RunsOfKind(); ++run) {
    const Variant variant = Variants(GetParam())[run];
    EXPECT_EQ(Line(kind, variant), expected)
        << "on " << variant.topology << " with micro-batches of " << variant.micro_batch_size
        << " and " << variant.threads << " threads";
  }
}

// Runs this program again, with so many runs of each kind, or of some.
void ExpectSameBits(Words command, int runs, const std::string& kinds = "*") {
  std::array<char, 4096> self = {};
  ASSERT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  command.insert(command.end(), {self.data(), "--gtest_filter=*HasTheBitsOfAllOthers/" + kinds});
  const Words prefix = {"/usr/bin/env", absl::StrCat(kRuns, "=", runs)};
  const Result result = Process(Joined(prefix, command), ::testing::TempDir()).Wait();
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST(AnyProcessorsTest, EveryInstructionSetHasTheSameBits) {
  const int all = std::getenv(kRuns) == nullptr ? 1 : std::atoi(std::getenv(kRuns));
  for (const CpuLevel level : {CpuLevel::kSse4, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level >= EffectiveCpuLevel()) break;  // which the tests above have
    SCOPED_TRACE(std::string(CpuLevelName(level)));
    ExpectSameBits({absl::StrCat("TESSERA_CPU=", std::string(CpuLevelName(level)))}, all);
  }
}

TEST(AnyProcessorsTest, AnEmulatedProcessorHasTheSameBits) {
  ASSERT_TRUE(std::filesystem::exists("/usr/bin/qemu-x86_64"))
      << "Debian's qemu-user is not installed";
  const bool one = std::getenv(kRuns) == nullptr;
  ExpectSameBits({"/usr/bin/qemu-x86_64", "-cpu", "Haswell"}, 1, one ? "llama3_bf16" : "*");
}

// Three replicas, two of which have the instruction sets of older processors, exchange gradients.
TEST(AnyProcessorsTest, RanksOnUnlikeProcessorsTrainTogether) {
  std::istringstream golden(ReadFile(Runfile(kGolden)));
  for (const Kind& kind : Kinds()) {
    std::string expected;
    ASSERT_TRUE(std::getline(golden, expected));
    if (kind.name != "gpt2_fp32" && kind.name != "llama3_bf16") continue;
    ASSERT_OK_AND_ASSIGN(TrainConfig config, Config(kind, {"dp3", 1, 1}));
    const std::filesystem::path folder =
        std::filesystem::path(::testing::TempDir()) / ("unlike_" + kind.name);
    config.mutable_output()->set_run_dir(folder / "run");
    std::filesystem::create_directories(folder);
    WriteFile(folder / "run.textproto", config.DebugString());
    const Words train = {Runfile("trainer/app/train"),
                         "--config=" + (folder / "run.textproto").string()};
    Words command = {"/usr/bin/env", "mpirun", "--oversubscribe", "--bind-to", "none", "-q"};
    for (const std::string level : {"avx512", "sse4", "avx2"}) {
      if (level != "avx512") command.push_back(":");
      command = Joined(command, {"-n", "1", "/usr/bin/env", "TESSERA_CPU=" + level});
      command = Joined(command, train);
    }
    const Result result = Process(command, folder).Wait();
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    std::vector<std::string> losses;
    std::ifstream metrics(folder / "run" / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      losses.push_back(nlohmann::json::parse(line)["loss_bits"]);
    }
    EXPECT_EQ(Losses(kind, losses), expected.substr(0, expected.find(" state ")));
  }
}

}  // namespace
}  // namespace tessera
