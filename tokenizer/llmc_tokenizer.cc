#include "tokenizer/llmc_tokenizer.h"

#include <array>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr int32_t kMagic = 20240328;
constexpr int64_t kHeaderBytes = 1024;
constexpr size_t kMaxTokenBytes = 255;
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

int32_t HeaderWord(std::string_view contents, int64_t word) {
  int32_t value;
  std::memcpy(&value, contents.data() + 4 * word, 4);
  return value;
}

absl::Status Bad(const std::string& path, int64_t offset, absl::string_view expected,
                 int64_t found) {
  return absl::DataLossError(
      absl::StrCat(path, " at offset ", offset, ": expected ", expected, ", found ", found));
}

}  // namespace

bool IsLlmcTokenizerFile(std::string_view contents) {
  return contents.size() >= 4 && HeaderWord(contents, 0) == kMagic;
}

absl::StatusOr<std::unique_ptr<LlmcTokenizer>> LlmcTokenizer::Parse(const std::string& path,
                                                                    std::string_view contents) {
  const int64_t size = contents.size();
  if (size < kHeaderBytes) return Bad(path, size, "a header of 1024 bytes, file size", size);
  if (!IsLlmcTokenizerFile(contents)) {
    return Bad(path, 0, "magic number 20240328", HeaderWord(contents, 0));
  }
  const int32_t version = HeaderWord(contents, 1);
  if (version != 1 && version != 2) return Bad(path, 4, "version 1 or 2", version);
  // Every token takes at least one byte: a larger count is false and must not be allocated.
  const int64_t count = HeaderWord(contents, 2);
  if (count < 1 || count > size - kHeaderBytes) {
    return Bad(path, 8, absl::StrCat("a token count from 1 to ", size - kHeaderBytes), count);
  }
  const int32_t end_of_text = version == 1 ? count - 1 : HeaderWord(contents, 3);
  if (end_of_text < 0 || end_of_text >= count) {
    return Bad(path, 12, absl::StrCat("an end-of-text id below ", count), end_of_text);
  }

  auto tokenizer = std::make_unique<LlmcTokenizer>();
  tokenizer->end_of_text_ = end_of_text;
  tokenizer->texts_.reserve(count);
  int64_t offset = kHeaderBytes;
  for (int64_t id = 0; id < count; ++id) {
    const int64_t length = offset < size ? static_cast<uint8_t>(contents[offset]) : 0;
    if (offset + 1 + length > size) {
      return Bad(
          path, offset,
          absl::StrCat("token ", id, " of ", count, " with 1 + ", length, " bytes, bytes left"),
          size - offset);
    }
    tokenizer->texts_.emplace_back(contents.substr(offset + 1, length));
    offset += 1 + length;
  }
  if (offset != size) {
    return Bad(path, offset, "the end of the file after the last token, bytes left", size - offset);
  }
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> LlmcTokenizer::Encode(std::string_view) const {
  return absl::UnimplementedError(
      "an llm.c tokenizer file can only decode: to encode text, use the tokenizer that made it");
}

std::string_view LlmcTokenizer::TokenText(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return texts_[id];
}

std::vector<TokenizerFile> LlmcTokenizer::Files() const {
  return {{kLlmcTokenizerName, *LlmcTokenizerFile(*this)}};
}

absl::StatusOr<std::string> LlmcTokenizerFile(const Tokenizer& tokenizer) {
  std::array<int32_t, kHeaderBytes / 4> header = {};
  header[0] = kMagic;
  header[1] = 2;
  header[2] = static_cast<int32_t>(tokenizer.vocab_size());
  header[3] = tokenizer.end_of_text();
  std::string contents(reinterpret_cast<const char*>(header.data()), sizeof(header));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string_view text = tokenizer.TokenText(id);
    if (text.empty()) text = kReplacementCharacter;
    if (text.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " has ", text.size(),
                       " bytes, an llm.c tokenizer file holds at most ", kMaxTokenBytes));
    }
    contents.push_back(static_cast<char>(text.size()));
    contents += text;
  }
  return contents;
}

}  // namespace tessera
