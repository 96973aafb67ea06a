// Prepares text, trains a model, saves, resumes and verifies on emulated processors. Nehalem (2008)
// has SSE4.2 and no AVX; Haswell (2013) has AVX2 and no AVX-512.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kEmulator[] = "/usr/bin/qemu-x86_64";

using Losses = std::map<int64_t, std::string>;

struct Case {
  std::string processor;
  std::string precision;  // "fp32" or "bf16"
  bool resumes = true;    // which takes a minute where AVX2 is emulated
};

class PortableTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(kEmulator)) << "Debian's qemu-user is not installed";
  }

  // Runs one of our programs on the emulated processor.
  Result Emulate(const std::string& program, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {
        kEmulator, "-cpu", GetParam().processor,
        std::string(std::getenv("TEST_SRCDIR")) + "/tessera/" + program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return Process(command, root_).Wait();
  }

  // Trains four steps, or the rest of them after the checkpoint that `load` names.
  Losses Train(const std::string& run, const std::vector<std::string>& load) const {
    const std::string folder = (root_ / run).string();
    std::vector<std::string> flags = {
        "--size=gpt2-tiny",
        "--num-layers=1",
        "--hidden-size=32",
        "--num-attention-heads=2",
        "--vocab-size=257",
        "--seq-length=16",
        "--micro-batch-size=2",
        "--lr=1e-2",
        "--threads=1",
        "--hidden-dropout=0.1",
        "--train-iters=4",
        GetParam().precision == "bf16" ? "--bf16" : "--bf16=false",
        "--train-data-path=" + (root_ / "data" / "train_*.bin").string(),
        "--run-dir=" + folder,
        "--save=" + folder + "/checkpoints",
        "--save-interval=2"};
    flags.insert(flags.end(), load.begin(), load.end());
    const Result result = Emulate("trainer/app/train", flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Losses losses;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      losses[record["step"]] = record["loss_bits"];
    }
    return losses;
  }

  const TestFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_P(PortableTest, PreparesTrainsSavesResumesAndVerifies) {
  std::ofstream text(root_ / "text.txt");
  for (int i = 0; i < 2000; ++i) text << "line " << i * i % 977 << " of a text to learn\n";
  text.close();
  const Result prepared = Emulate("trainer/data/prepare_data",
                                  {"--tokenizer=byte", "--input=" + (root_ / "text.txt").string(),
                                   "--output_dir=" + (root_ / "data").string()});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;

  const Losses undisturbed = Train("run", {});
  ASSERT_EQ(undisturbed.size(), 4u);
  const std::string checkpoints = (root_ / "run" / "checkpoints").string();
  if (GetParam().resumes) {
    const Losses resumed = Train("resumed", {"--load=" + checkpoints, "--ckpt-step=2"});
    EXPECT_EQ(resumed, Losses(undisturbed.find(3), undisturbed.end()));
  }

  const Result verified = Emulate("tools/ckpt/ckpt", {"verify", "--digests", checkpoints});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
}

TEST(TesseraCpuTest, AnUnknownLevelIsRefusedByEveryProgram) {
  setenv("TESSERA_CPU", "avx1024", 1);
  for (const std::string program :
       {"trainer/app/train", "trainer/data/prepare_data", "tools/ckpt/ckpt"}) {
    const std::string path = std::string(std::getenv("TEST_SRCDIR")) + "/tessera/" + program;
    const Result result = Process({path, "--help"}, ::testing::TempDir()).Wait();
    EXPECT_EQ(result.exit_code, 2) << program;
    EXPECT_THAT(result.err, HasSubstr("TESSERA_CPU is \"avx1024\"")) << program;
  }
  unsetenv("TESSERA_CPU");
}

// Every run computes each operation once in both precisions, for the fingerprint of its numerics.
INSTANTIATE_TEST_SUITE_P(Processors, PortableTest,
                         ::testing::Values(Case{"Nehalem", "bf16"},
                                           Case{"Haswell", "fp32", /*resumes=*/false}),
                         [](const auto& info) {
                           return info.param.processor + "_" + info.param.precision;
                         });

}  // namespace
}  // namespace tessera
