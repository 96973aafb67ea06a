#include "tokenizer/byte_tokenizer.h"

#include <array>

#include "tokenizer/llmc_tokenizer.h"

namespace tessera {
namespace {

constexpr std::array<char, 256> AllBytes() {
  std::array<char, 256> bytes = {};
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}

constexpr std::array<char, 256> kBytes = AllBytes();

}  // namespace

bool ByteTokenizer::Matches(const Tokenizer& tokenizer) {
  const ByteTokenizer bytes;
  if (tokenizer.vocab_size() != kVocabSize || tokenizer.end_of_text() != bytes.end_of_text()) {
    return false;
  }
  for (int32_t id = 0; id < kVocabSize; ++id) {
    if (tokenizer.TokenText(id) != bytes.TokenText(id)) return false;
  }
  return true;
}

absl::StatusOr<std::vector<int32_t>> ByteTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

std::string_view ByteTokenizer::TokenText(int32_t id) const {
  if (id == end_of_text()) return kEndOfTextMarker;
  if (id < 0 || id > 255) return {};
  return {&kBytes[id], 1};
}

std::vector<TokenizerFile> ByteTokenizer::Files() const {
  return {{kLlmcTokenizerName, *LlmcTokenizerFile(*this)}};
}

}  // namespace tessera
