// A fuzz target: any bytes are a tokenizer's file or an error, and a text that every split rule
// encodes without loss unless the tokenizer normalises, as a whole or cut where EncodablePrefix()
// says.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/tiktoken.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

TiktokenEncoding Encoding(std::string_view regex) {
  TiktokenEncoding encoding{.name = "fuzz", .split = *FindSplitRules(regex)};
  encoding.end_of_text = 100000;
  encoding.special = {{"<|endoftext|>", encoding.end_of_text}};
  return encoding;
}

// All bytes and some longer tokens.
std::string SmallFile() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"  ", "aa", "    ", "aaaa", "\n\n", "'s", " a", "\xC3\xA9", "ab", "bab"}) {
    tokens.emplace_back(token);
  }
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    absl::StrAppend(&file, absl::Base64Escape(tokens[rank]), " ", rank, "\n");
  }
  return file;
}

void CheckText(const BpeTokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> whole = *tokenizer.Encode(text);
  for (const int32_t id : whole) Require(id >= 0 && id < tokenizer.vocab_size());
  const bool lossless = !tokenizer.normalizes();
  Require(*tokenizer.Decode(whole) == text || !lossless);
  Require(*tokenizer.Decode(*tokenizer.EncodeWithSpecialTokens(text)) == text || !lossless);
  const size_t cut = tokenizer.EncodablePrefix(text);
  Require(cut <= text.size());
  std::vector<int32_t> parts = *tokenizer.Encode(text.substr(0, cut));
  const std::vector<int32_t> rest = *tokenizer.Encode(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  Require(parts == whole);
}

void CheckTexts(const std::string& text) {
  static const auto* tokenizers = [] {
    auto* all = new std::vector<std::unique_ptr<BpeTokenizer>>;
    for (const std::string_view regex : {kGpt2Regex, kCl100kRegex, kLlama3Regex}) {
      all->push_back(*ParseTiktoken("fuzz", SmallFile(), Encoding(regex)));
    }
    return all;
  }();
  for (const auto& tokenizer : *tokenizers) CheckText(*tokenizer, text);
}

void CheckFiles(const std::string& contents) {
  const std::string text = "It's  a caf\xC3\xA9,\n\n<|endoftext|> the\xE2\x96\x81 1234\xFF ";
  if (const auto parsed = ParseTokenizerJson("FILE", contents); parsed.ok()) {
    CheckText(**parsed, text);
  }
  if (const auto parsed = ParseTiktoken("FILE", contents, Encoding(kLlama3Regex)); parsed.ok()) {
    CheckText(**parsed, text);
  }
  // Both of GPT-2's files, one after the other.
  const size_t end = contents.rfind('}') == contents.npos ? 0 : contents.rfind('}') + 1;
  const auto parsed = ParseGpt2Files("FILE", contents.substr(0, end), contents.substr(end));
  if (!parsed.ok()) return;
  CheckText(**parsed, text);
  const auto files = HuggingFaceFiles(**parsed);
  Require(files.ok());
  const auto written = ParseTokenizerJson("FILE", files->front().contents);
  Require(written.ok() && *(*written)->Encode(text) == *(*parsed)->Encode(text));
}

}  // namespace
}  // namespace tessera

void FuzzOneInput(const std::string& input) {
  tessera::CheckFiles(input);
  tessera::CheckTexts(input);
}
