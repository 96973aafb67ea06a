// Encoding text on one thread: prints lines
//   figure tokenizer.split.<rules>.rate <pre-tokenisation alone> MB/s
//   figure tokenizer.encode.rate <all of it, with --tokenizer> MB/s
//   figure tokenizer.encode.ratio <time of all of it / time of its pre-tokenisation> ratio
// Best of --rounds rounds over the default corpus. The ratio uses GPT-2's rules, or Llama-3's with
// --llama3.

#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "base/file_descriptor.h"
#include "base/status_macros.h"
#include "tests/perf/harness.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/load_tokenizer.h"
#include "trainer/data/corpus.h"

ABSL_FLAG(std::string, tokenizer, "tokenizer/testdata/gpt2", "File or folder.");
ABSL_FLAG(bool, llama3, false, "Compare with Llama-3's rules.");
ABSL_FLAG(int, rounds, 5, "Rounds; the best counts.");

namespace tessera {
namespace {

constexpr int64_t kMaxFileBytes = 64 << 20;

absl::StatusOr<std::string> Corpus() {
  TESSERA_ASSIGN_OR_RETURN(const std::string pattern, DefaultCorpusPattern());
  TESSERA_ASSIGN_OR_RETURN(const auto paths, Glob(pattern));
  std::string text;
  for (const std::string& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path, kMaxFileBytes));
    text += contents;
  }
  return text;
}

double BestSeconds(const std::function<void()>& body) {
  double best = 1e9;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    const double begin = Now();
    body();
    best = std::min(best, Now() - begin);
  }
  return best;
}

double SplitSeconds(const std::string& text, std::string_view regex) {
  const SplitRules rules = *FindSplitRules(regex);
  return BestSeconds([&] {
    size_t pieces = 0;
    for (std::string_view rest = text; !rest.empty(); ++pieces) {
      rest.remove_prefix(PieceLength(rules, rest));
    }
    if (pieces == 0) std::abort();
  });
}

absl::Status Run() {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, Corpus());
  TESSERA_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(absl::GetFlag(FLAGS_tokenizer)));
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const double gpt2 = SplitSeconds(text, kGpt2Regex);
  const double llama3 = SplitSeconds(text, kLlama3Regex);
  absl::Status status;
  const double all = BestSeconds([&] { status.Update(tokenizer->Encode(text).status()); });
  TESSERA_RETURN_IF_ERROR(status);
  PrintFigure("tokenizer.split.gpt2.rate", megabytes / gpt2, "MB/s");
  PrintFigure("tokenizer.split.llama3.rate", megabytes / llama3, "MB/s");
  PrintFigure("tokenizer.encode.rate", megabytes / all, "MB/s");
  PrintFigure("tokenizer.encode.ratio", all / (absl::GetFlag(FLAGS_llama3) ? llama3 : gpt2));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return tessera::RunProgram("tokenizer", tessera::Run);
}
