// The resident memory of `ckpt convert`, in every format, of a state as large as that of GPT-2 124M
// with its optimizer: one tensor has nearly all of it, the others are many and tiny.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/testing.h"
#include "convert/write_foreign.h"
#include "gtest/gtest.h"
#include "tests/perf/foreign_folders.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kCkpt[] = "tools/ckpt/ckpt";
constexpr int64_t kAllowedBytes = int64_t{256} << 20;

// 124 million parameters, 99% of them in the embedding; 2,404 parameters in 200 layers.
constexpr char kModel[] =
    "num_layers: 200 hidden_size: 16 num_attention_heads: 1 vocab_size: 7700000 "
    "max_position_embeddings: 16";

// Runs the command to its end and returns the largest resident memory that it had.
int64_t PeakBytes(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kCkpt);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execv(kCkpt, pointers.data());
    _exit(127);
  }
  int status = 0;
  rusage usage = {};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << arguments.back();
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(ConvertMemoryTest, IsBoundedWhateverTheSizesOfTensors) {
  const fs::path root = fs::path(::testing::TempDir()) / "convert_memory";
  fs::remove_all(root);
  fs::create_directories(root / "llmc");
  const auto in = [&](const std::string& name) { return (root / name).string(); };
  ASSERT_OK(WriteLlmcFolder(in("llmc"), kModel, /*random_values=*/false));
  const int64_t baseline = PeakBytes({"--help"});
  const auto check = [&](const std::string& from, const std::string& format) {
    const std::string to = in("to_" + format);
    const int64_t above = PeakBytes({"convert", from, to, "--to=" + format}) - baseline;
    RecordProperty(format, std::to_string(above >> 20));
    EXPECT_LT(above, kAllowedBytes) << format;
    EXPECT_TRUE(fs::exists(to)) << format;
    return to;
  };
  const std::string source = check(in("llmc"), "tessera");
  for (const std::string& format : ckpt::convert::WrittenFormatNames()) {
    fs::remove_all(check(source, format));
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace tessera
