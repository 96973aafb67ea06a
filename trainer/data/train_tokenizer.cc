#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "compute/random/philox.h"
#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_training.h"
#include "trainer/data/corpus.h"
#include "trainer/data/prepare_data.h"

namespace tessera {
namespace {

// The library skips longer sentences, and those with a tab, which it uses internally.
constexpr size_t kMaxSentenceBytes = 4000;

size_t CutLength(std::string_view line) {
  if (line.size() <= kMaxSentenceBytes) return line.size();
  size_t length = kMaxSentenceBytes;
  while (length > 1 && (line[length] & 0xC0) == 0x80) --length;
  return length;
}

void AddSentences(std::string_view line, std::vector<std::string>& sentences) {
  if (!IsValidUtf8(line)) return;
  while (!line.empty()) {
    const std::string_view field = line.substr(0, line.find('\t'));
    const size_t length = CutLength(field);
    if (length > 0) sentences.emplace_back(field.substr(0, length));
    const bool at_tab = length == field.size() && length < line.size();
    line.remove_prefix(length + (at_tab ? 1 : 0));
  }
}

absl::StatusOr<std::vector<std::string>> SampleSentences(const std::vector<DocumentPart>& parts,
                                                         int64_t sample_bytes,
                                                         const BytesDone& done) {
  int64_t total_bytes = 0;
  for (const DocumentPart& part : parts) total_bytes += part.size_bytes();
  const double rate = static_cast<double>(sample_bytes) / std::max<int64_t>(total_bytes, 1);
  std::vector<std::string> sentences;
  for (const DocumentPart& part : parts) {
    uint64_t line_number = 0;
    absl::Status status = ForEachChunk(part, [&](std::string_view chunk) {
      done(chunk.size());
      while (!chunk.empty()) {
        const size_t end = std::min(chunk.find('\n'), chunk.size());
        const uint64_t word = MixCoordinates(part.document->hash, line_number++);
        if (static_cast<double>(word >> 11) * 0x1p-53 < rate) {
          AddSentences(chunk.substr(0, end), sentences);
        }
        chunk.remove_prefix(std::min(end + 1, chunk.size()));
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
  }
  return sentences;
}

// Returns "src/x.cc(12) [(a) <= (b)] The reason." -> "The reason": a location in the library's
// source is of no use to the user.
std::string ReasonIn(std::string_view error) {
  const size_t bracket = error.rfind("] ");
  std::string reason;
  if (bracket != error.npos) reason = error.substr(bracket + 2);
  std::ranges::replace(reason, '\n', ' ');
  while (reason.ends_with(' ') || reason.ends_with('.')) reason.pop_back();
  return reason.empty() ? "there is too little text" : reason;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TrainTokenizer(const std::vector<DocumentPart>& parts,
                                                          int64_t vocab_size, int64_t sample_bytes,
                                                          const BytesDone& done) {
  TESSERA_ASSIGN_OR_RETURN(const auto sentences, SampleSentences(parts, sample_bytes, done));
  if (sentences.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size is ", vocab_size, ": the text has no line to make it from"));
  }
  std::string model, error;
  if (!TrainSentencePieceModel(sentences, vocab_size, &model, &error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "vocab_size is ", vocab_size, ": SentencePiece cannot make such a vocabulary from ",
        sentences.size(), " lines of text: ", ReasonIn(error)));
  }
  auto tokenizer = SentencePieceTokenizer::Parse("the trained model", std::move(model));
  if (!tokenizer.ok()) return tokenizer.status();
  if ((*tokenizer)->vocab_size() != vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("vocab_size is ", vocab_size,
                                                   ": the text supports ",
                                                   (*tokenizer)->vocab_size(), " ids at most"));
  }
  return tokenizer;
}

}  // namespace tessera
