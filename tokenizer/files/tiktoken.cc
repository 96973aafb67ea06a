#include "tokenizer/files/tiktoken.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/files/json_files.h"

namespace tessera {
namespace {

constexpr size_t kMaxTokenBytes = 1024;

TiktokenEncoding Gpt2() {
  return {.name = "gpt2",
          .split = *FindSplitRules(kGpt2Regex),
          .special = {{"<|endoftext|>", 50256}},
          .end_of_text = 50256};
}

TiktokenEncoding Cl100k() {
  return {.name = "cl100k",
          .split = *FindSplitRules(kCl100kRegex),
          .special = {{"<|endoftext|>", 100257},
                      {"<|fim_prefix|>", 100258},
                      {"<|fim_middle|>", 100259},
                      {"<|fim_suffix|>", 100260},
                      {"<|endofprompt|>", 100276}},
          .end_of_text = 100257};
}

TiktokenEncoding Llama3() {
  constexpr int32_t kFirst = 128000, kCount = 256;
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|step_id|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>",
                                    "<|image|>"};
  for (int i = 2; names.size() < kCount; ++i) {
    names.push_back(absl::StrCat("<|reserved_special_token_", i, "|>"));
  }
  TiktokenEncoding encoding{.name = "llama3",
                            .split = *FindSplitRules(kLlama3Regex),
                            .end_of_text = kFirst + 1,
                            .begin_of_text = kFirst};
  for (int32_t i = 0; i < kCount; ++i) encoding.special.push_back({names[i], kFirst + i});
  return encoding;
}

// Parses "BASE64 RANK". Returns false if the line has another form.
bool ParseLine(std::string_view line, std::string& token, int32_t& rank) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0) return false;
  return absl::Base64Unescape(View(line.substr(0, space)), &token) && !token.empty() &&
         token.size() <= kMaxTokenBytes && absl::SimpleAtoi(View(line.substr(space + 1)), &rank) &&
         rank >= 0;
}

// Reads every line into tokens[rank].
absl::Status ReadRanks(const std::string& path, std::string_view contents,
                       std::vector<std::string>& tokens) {
  const int64_t limit = std::ranges::count(contents, '\n') + 1 + kMaxIdGap;
  int64_t number = 0;
  while (!contents.empty()) {
    const std::string_view line = contents.substr(0, contents.find('\n'));
    contents.remove_prefix(std::min(line.size() + 1, contents.size()));
    ++number;
    if (line.empty()) continue;
    std::string token;
    int32_t rank = 0;
    if (!ParseLine(line, token, rank) || rank >= limit) {
      return absl::DataLossError(
          absl::StrCat(path, " line ", number, ": expected a token in base64 and its rank"));
    }
    if (tokens.size() <= static_cast<size_t>(rank)) tokens.resize(rank + 1);
    if (!tokens[rank].empty()) {
      return absl::DataLossError(
          absl::StrCat(path, " line ", number, ": rank ", rank, " belongs to two tokens"));
    }
    tokens[rank] = std::move(token);
  }
  return absl::OkStatus();
}

// Returns the merge that makes each token, tokens of lower rank first.
std::vector<BpeMerge> TokenMerges(const std::vector<std::string>& tokens) {
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids[tokens[id]] = static_cast<int32_t>(id);
  }
  const auto score = [&ids](std::string_view token) -> std::optional<float> {
    const auto id = ids.find(View(token));
    // Ranks below 2^24 are exact.
    return id == ids.end() ? std::nullopt : std::optional(static_cast<float>(-id->second));
  };
  std::vector<BpeMerge> merges;
  std::vector<std::string_view> bytes;
  for (const auto& [token, id] : ids) {
    bytes.clear();
    for (const char& byte : token) bytes.emplace_back(&byte, 1);
    const auto parts = LastMerge(bytes, score);
    if (!parts.has_value()) continue;
    const auto left = ids.find(View(parts->first)), right = ids.find(View(parts->second));
    if (left == ids.end() || right == ids.end()) continue;
    merges.push_back({left->second, right->second, id, id});
  }
  return merges;
}

}  // namespace

bool IsTiktokenFile(std::string_view contents) {
  std::string token;
  int32_t rank = 0;
  return ParseLine(contents.substr(0, std::min<size_t>(contents.find('\n'), 2 * kMaxTokenBytes)),
                   token, rank);
}

std::optional<TiktokenEncoding> FindTiktokenEncoding(uint32_t crc32c) {
  switch (crc32c) {
    case 0x70D99C18:  // r50k_base
    case 0xF7DEE75C:  // p50k_base: the same with more tokens for spaces, which follow end of text
      return Gpt2();
    case 0x2C0261B3:  // cl100k_base
      return Cl100k();
    case 0x40871396:  // Llama-3's tokenizer.model
      return Llama3();
    default:
      return std::nullopt;
  }
}

absl::Status CheckTiktokenClass(const std::string& path, const std::string& tokenizer_class) {
  for (const char* known : {"", "GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizer",
                            "PreTrainedTokenizerFast"}) {
    if (tokenizer_class == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": a tiktoken file does not say how text is split, and tokenizer_config.json names ",
      tokenizer_class, ", which is not known; tokenizer.json would say it"));
}

absl::StatusOr<BpeVocabulary> ReadTiktoken(const std::string& path, const std::string& contents,
                                           std::optional<TiktokenEncoding> encoding) {
  BpeVocabulary vocabulary;
  TESSERA_RETURN_IF_ERROR(ReadRanks(path, contents, vocabulary.tokens));
  if (!encoding.has_value()) encoding = FindTiktokenEncoding(Crc32c(contents));
  if (!encoding.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": a tiktoken file does not say how text is split, and this one is not one of those "
        "that are known: r50k_base (GPT-2), p50k_base, cl100k_base and Llama-3's"));
  }
  vocabulary.merges = TokenMerges(vocabulary.tokens);
  vocabulary.split = encoding->split;
  vocabulary.whole_pieces_first = true;
  for (const SpecialToken& token : encoding->special) {
    const bool taken = static_cast<size_t>(token.id) < vocabulary.tokens.size() &&
                       !vocabulary.tokens[token.id].empty();
    if (taken) {
      return absl::DataLossError(absl::StrCat(
          path, ": rank ", token.id, " expected to be free for ", token.text, ", found a token"));
    }
    vocabulary.added.push_back({.text = token.text, .id = token.id, .special = true});
  }
  vocabulary.end_of_text = encoding->end_of_text;
  vocabulary.begin_of_text = encoding->begin_of_text;
  vocabulary.files = {{kTiktokenName, contents}};
  return vocabulary;
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTiktoken(
    const std::string& path, const std::string& contents,
    std::optional<TiktokenEncoding> encoding) {
  TESSERA_ASSIGN_OR_RETURN(BpeVocabulary vocabulary,
                           ReadTiktoken(path, contents, std::move(encoding)));
  return BpeTokenizer::Create(path, std::move(vocabulary));
}

}  // namespace tessera
