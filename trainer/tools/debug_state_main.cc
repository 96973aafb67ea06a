// Checks the trainer's layers against a debug state of llm.c, or writes one: see kHelp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/invocation_dir.h"
#include "base/processors.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "trainer/tools/llmc_debug_state.h"

namespace tessera {
namespace {

constexpr char kHelp[] = R"(debug_state check MODEL STATE
debug_state write MODEL TOKENS STATE

MODEL is a model file of llm.c with GPT-2, STATE a debug state of llm.c, TOKENS a token file.

check computes the logits, the loss and the gradients of the tokens in STATE, and prints the largest
difference of each from the values there. write computes them for the first tokens of TOKENS.

  --tolerance=X      largest difference that counts as equal, as a share of the largest value (1e-3)
  --batch=N          sequences that are written (4)
  --sequence=N       tokens of each (64)
  --threads=N        0: one for each processor (0)

Exit codes: 0 all is equal, or written; 1 something differs; 2 wrong usage, or a file that cannot be
read or written.
)";

constexpr int kDiffer = 1;
constexpr int kFailed = 2;

struct Arguments {
  std::vector<std::string> words;
  double tolerance = 1e-3;
  int64_t batch = 4, sequence = 64, threads = 0;
};

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& all) {
  Arguments arguments;
  for (const std::string& word : all) {
    if (!word.starts_with("--")) {
      arguments.words.push_back(word);
      continue;
    }
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals);
    const std::string value = word.substr(std::min(equals + 1, word.size()));
    int64_t* const count = name == "--batch"      ? &arguments.batch
                           : name == "--sequence" ? &arguments.sequence
                           : name == "--threads"  ? &arguments.threads
                                                  : nullptr;
    bool valid = false;
    if (count != nullptr) {
      valid = absl::SimpleAtoi(value, count) && *count >= (name == "--threads" ? 0 : 1) &&
              *count <= INT32_MAX;
    } else if (name == "--tolerance") {
      valid = absl::SimpleAtod(value, &arguments.tolerance) && arguments.tolerance >= 0 &&
              std::isfinite(arguments.tolerance);
    }
    if (!valid) return absl::InvalidArgumentError(absl::StrCat(word, ": see --help"));
  }
  if (arguments.threads == 0) arguments.threads = UsableProcessors();
  return arguments;
}

// Returns the exit code.
absl::StatusOr<int> Check(const Arguments& arguments) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<DebugStateDifference> differences,
      CheckDebugState(arguments.words[1], arguments.words[2], static_cast<int>(arguments.threads)));
  int different = 0;
  Print(absl::StrFormat("%-40s %12s %12s\n", "", "difference", "largest"));
  for (const DebugStateDifference& difference : differences) {
    const bool equal = difference.IsWithin(arguments.tolerance);
    different += equal ? 0 : 1;
    Print(absl::StrFormat("%-40s %12.3e %12.3e%s\n", difference.name, difference.largest,
                          difference.scale, equal ? "" : "  differs"));
  }
  Print(absl::StrFormat("%d of %d differ by more than %g of the largest value\n", different,
                        differences.size(), arguments.tolerance));
  return different == 0 ? 0 : kDiffer;
}

absl::StatusOr<int> Run(const std::vector<std::string>& all) {
  TESSERA_ASSIGN_OR_RETURN(const Arguments arguments, ParseArguments(all));
  const std::vector<std::string>& words = arguments.words;
  if (words.size() == 3 && words[0] == "check") return Check(arguments);
  if (words.size() != 4 || words[0] != "write") {
    return absl::InvalidArgumentError(
        "expected check MODEL STATE, or write MODEL TOKENS STATE; see --help");
  }
  TESSERA_RETURN_IF_ERROR(WriteDebugState(
      words[1], {.file = words[2], .batch = arguments.batch, .sequence = arguments.sequence},
      words[3], static_cast<int>(arguments.threads)));
  return 0;
}

int Main(const std::vector<std::string>& words) {
  ChdirToInvocationDir();
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    Print(kHelp);
    return 0;
  }
  const absl::StatusOr<int> exit_code = Run(words);
  if (exit_code.ok()) return *exit_code;
  PrintError("debug_state", std::string(exit_code.status().message()));
  return kFailed;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      {.name = "debug_state", .prints_result = true, .failure_code = tessera::kFailed},
      [&] { return tessera::Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
