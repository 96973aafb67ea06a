#include "trainer/data/tokenizer.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/data/byte_tokenizer.h"
#include "trainer/data/file_util.h"
#include "trainer/data/llmc_tokenizer.h"
#include "trainer/data/sentencepiece_tokenizer.h"

namespace tessera {
namespace {

constexpr int64_t kMaxTokenizerFileBytes = 256 << 20;

}  // namespace

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", i, " to decode is ", ids[i], ", but the tokenizer has ", vocab_size(), " ids"));
    }
    text += TokenText(ids[i]);
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  absl::StatusOr<std::string> contents = ReadFile(path, kMaxTokenizerFileBytes);
  if (!contents.ok()) return contents.status();
  if (!IsLlmcTokenizerFile(*contents)) {
    auto model = SentencePieceTokenizer::Parse(path, *std::move(contents));
    if (!model.ok()) return model.status();
    return std::unique_ptr<Tokenizer>(*std::move(model));
  }
  auto table = LlmcTokenizer::Parse(path, *contents);
  if (!table.ok()) return table.status();
  if (ByteTokenizer::Matches(**table)) return std::make_unique<ByteTokenizer>();
  return std::unique_ptr<Tokenizer>(*std::move(table));
}

}  // namespace tessera
