// Turns text files into token files for training: see prepare_data.h.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/cpu_level.h"
#include "base/file_descriptor.h"
#include "base/invocation_dir.h"
#include "base/program.h"
#include "base/steady_time.h"
#include "trainer/data/corpus.h"
#include "trainer/data/prepare_data.h"

ABSL_FLAG(
    std::vector<std::string>, input, {},
    "Text files, folders (searched recursively) or shell patterns, separated by commas; one name "
    "with commas where its parts are not all there. "
    "Default: the English manual of Perl, Debian's package perl-doc");
ABSL_FLAG(std::string, output_dir, "",
          "Folder for the token files, the tokenizer and dataset.json");
ABSL_FLAG(std::string, tokenizer, "sentencepiece",
          "byte: one id per byte; sentencepiece: a BPE vocabulary trained on the text; otherwise "
          "the path of a tokenizer or of a folder with one: tokenizer.json (Hugging Face), "
          "vocab.json and merges.txt (GPT-2), a tiktoken file, or a SentencePiece model");
ABSL_FLAG(bool, begin_of_text, false,
          "Also put the tokenizer's begin-of-text token before each document, after end of text");
ABSL_FLAG(int, threads, 0, "Threads that encode text; 0: one for each processor");
ABSL_FLAG(
    int64_t, vocab_size, 0,
    "Number of token ids; 0: 257 for bytes, 4096 for sentencepiece, all of a given tokenizer");
ABSL_FLAG(int64_t, tokenizer_sample_bytes, tessera::PrepareDataOptions().tokenizer_sample_bytes,
          "Bytes of text to train the vocabulary on, spread over all of it");
ABSL_FLAG(std::string, format, "",
          "Token files: gpt2 (uint16) or llama3 (uint32). Default: gpt2, or llama3 for a given "
          "tokenizer with more than 65536 ids");
ABSL_FLAG(double, validation_fraction, tessera::PrepareDataOptions().validation_fraction,
          "Share of the text to hold back from training");
ABSL_FLAG(std::string, checksum, "",
          "Only write checksums for these token files (a name or a shell pattern), made by other "
          "programs or changed on purpose, so that damage in them is noticed when it is read");
ABSL_FLAG(int64_t, shard_tokens, tessera::PrepareDataOptions().shard_tokens, "Tokens of one file");

namespace {

// One line that is rewritten on a terminal; elsewhere one line per phase.
class PhaseLine {
 public:
  void Update(std::string_view phase, int64_t done_bytes, int64_t total_bytes) {
    const int64_t step = terminal_ ? 1 << 20 : int64_t{1} << 62;
    if (phase == phase_ && done_bytes / step == done_steps_) return;
    const bool new_phase = phase != phase_;
    if (new_phase && terminal_ && !phase_.empty()) std::fputc('\n', stderr);
    if (new_phase) start_ = tessera::SteadyNow();
    phase_ = phase;
    done_steps_ = done_bytes / step;
    if (terminal_) {
      std::fprintf(stderr, "\r%s\x1B[K", Text(done_bytes, total_bytes).c_str());
    } else {
      std::fprintf(stderr, "%s\n", phase_.c_str());
    }
  }
  // Calls Update(). The line must outlive it.
  tessera::PrepareProgress callback() {
    return [this](std::string_view phase, int64_t done_bytes, int64_t total_bytes) {
      Update(phase, done_bytes, total_bytes);
    };
  }
  ~PhaseLine() {
    if (terminal_ && !phase_.empty()) std::fputc('\n', stderr);
  }

 private:
  // Returns "encoding [=====     ] 25 of 50 MiB, 12 MiB/s"
  std::string Text(int64_t done_bytes, int64_t total_bytes) const {
    constexpr int64_t kWidth = 20;
    std::string line = phase_;
    if (total_bytes > 0) {
      const int64_t full = kWidth * std::min(done_bytes, total_bytes) / total_bytes;
      absl::StrAppend(&line, " [", std::string(full, '='), std::string(kWidth - full, ' '), "]");
    }
    absl::StrAppend(&line, " ", done_bytes >> 20);
    if (total_bytes > 0) absl::StrAppend(&line, " of ", total_bytes >> 20);
    absl::StrAppend(&line, " MiB");
    const double seconds = tessera::SecondsSince(start_);
    if (seconds < 1) return line;
    const double rate = static_cast<double>(done_bytes >> 20) / seconds;
    return absl::StrCat(line, ", ", static_cast<int64_t>(rate), " MiB/s");
  }

  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::string phase_;
  int64_t done_steps_ = 0;
  absl::Duration start_;
};

int Fail(const absl::Status& status) {
  tessera::PrintError("prepare_data", std::string(status.message()));
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

// Returns the flags of this file; the libraries define others.
std::map<std::string, absl::CommandLineFlag*> OurFlags() {
  std::map<std::string, absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), "prepare_data_main.cc")) flags[std::string(name)] = flag;
  }
  return flags;
}

void PrintHelp() {
  std::string text = "prepare_data turns text files into token files for training.\n\n";
  for (const auto& [name, flag] : OurFlags()) {
    absl::StrAppend(&text, "  --", name, " (default \"", flag->DefaultValue(), "\")\n      ",
                    flag->Help(), "\n");
  }
  tessera::Print(text + "\nExit codes: 0 done; 2 wrong settings; 1 anything else.\n");
}

// Parses --name=value or --name value, or --name alone for true, with _ or - in the name. Abseil's
// own parser ends the process with other exit codes.
absl::Status ParseFlags(const std::vector<std::string>& arguments) {
  const std::map<std::string, absl::CommandLineFlag*> flags = OurFlags();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--")) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument ", argument));
    }
    const size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == argument.npos ? equals : equals - 2);
    std::ranges::replace(name, '-', '_');
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", argument, "; see --help"));
    }
    const bool is_followed = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
    std::string value = "true";
    if (equals != argument.npos) {
      value = argument.substr(equals + 1);
    } else if (is_followed) {
      value = arguments[++i];
    } else if (!flag->second->IsOfType<bool>()) {
      return absl::InvalidArgumentError(absl::StrCat(argument, " has no value"));
    }
    std::string error;
    if (!flag->second->ParseFrom(value, &error)) {
      std::ranges::replace(error, '\n', ' ');
      return absl::InvalidArgumentError(error);
    }
  }
  return absl::OkStatus();
}

void PrintResult(const tessera::PrepareDataResult& result, const std::string& output_dir) {
  const tessera::DatasetSummary& summary = result.summary;
  std::string text = absl::StrFormat(
      "%s: %s, %d ids (%s); train %d tokens, validation %d tokens from %d documents (%s)\n"
      "a unigram model costs %.4f nats per token\n",
      output_dir, summary.tokenizer, summary.vocab_size, summary.format, summary.train.tokens,
      summary.validation.tokens, summary.validation.documents, summary.split,
      summary.unigram_nats_per_token);
  if (summary.validation.tokens == 0) {
    absl::StrAppendFormat(&text, "nothing is held back for validation (validation_fraction %g)\n",
                          absl::GetFlag(FLAGS_validation_fraction));
  }
  for (const tessera::SkippedFile& file : result.skipped) {
    absl::StrAppend(&text, "skipped ", file.path, ": ", file.reason, "\n");
  }
  if (result.up_to_date) absl::StrAppend(&text, "already up to date: nothing written\n");
  tessera::Print(text);
}

// Implements --checksum.
int AddChecksums(const std::string& pattern) {
  const absl::StatusOr<int64_t> files = tessera::AddChecksums(pattern, PhaseLine().callback());
  if (!files.ok()) return Fail(files.status());
  tessera::Print(absl::StrCat(*files, " token files have new checksums\n"));
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  tessera::ChdirToInvocationDir();
  if (const absl::Status level = tessera::CheckCpuLevel(); !level.ok()) return Fail(level);
  if (std::ranges::find(arguments, "--help") != arguments.end()) {
    PrintHelp();
    return 0;
  }
  if (absl::Status status = ParseFlags(arguments); !status.ok()) return Fail(status);
  if (!absl::GetFlag(FLAGS_checksum).empty()) return AddChecksums(absl::GetFlag(FLAGS_checksum));
  tessera::PrepareDataOptions options;
  if (const std::string name = absl::GetFlag(FLAGS_format); !name.empty()) {
    const auto format = tessera::TokenFormatFromName(name);
    if (!format.ok()) return Fail(format.status());
    options.format = *format;
  }
  options.inputs = absl::GetFlag(FLAGS_input);
  const std::string whole = absl::StrJoin(options.inputs, ",");
  const auto is_there = [](const std::string& input) { return tessera::Glob(input).ok(); };
  if (!std::ranges::all_of(options.inputs, is_there) && is_there(whole)) options.inputs = {whole};
  options.output_dir = absl::GetFlag(FLAGS_output_dir);
  options.tokenizer = absl::GetFlag(FLAGS_tokenizer);
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  options.tokenizer_sample_bytes = absl::GetFlag(FLAGS_tokenizer_sample_bytes);
  options.begin_of_text = absl::GetFlag(FLAGS_begin_of_text);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.validation_fraction = absl::GetFlag(FLAGS_validation_fraction);
  options.shard_tokens = absl::GetFlag(FLAGS_shard_tokens);

  const absl::StatusOr<tessera::PrepareDataResult> result =
      tessera::PrepareData(options, PhaseLine().callback());
  if (!result.ok()) return Fail(result.status());
  PrintResult(*result, options.output_dir);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::RunProgram({.name = "prepare_data"},
                             [&] { return Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
