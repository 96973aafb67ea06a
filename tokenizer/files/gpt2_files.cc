
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/json_files.h"

namespace tessera {
namespace {

absl::Status ReadMergeLines(const std::string& path, std::string_view text, const TokenIds& ids,
                            std::vector<BpeMerge>& merges) {
  bool first = true;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool version = std::exchange(first, false) && line.starts_with("#version");
    if (line.empty() || version) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) {
      return absl::DataLossError(absl::StrCat(
          path, ": merge ", merges.size(), " expected two tokens and a space, found ", View(line)));
    }
    TESSERA_RETURN_IF_ERROR(
        AddMerge(path, ids, line.substr(0, space), line.substr(space + 1), merges));
  }
  return absl::OkStatus();
}

// Other tokenizers have files of the same names.
absl::Status CheckIsGpt2(const std::string& path, const TokenIds& ids,
                         const TokenizerConfig& config) {
  const std::string& name = config.tokenizer_class;
  if (!name.empty() && name != "GPT2Tokenizer" && name != "GPT2TokenizerFast") {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": vocab.json and merges.txt are read as GPT-2's, but tokenizer_config.json names ",
        name, "; tokenizer.json would say how that one splits text"));
  }
  if (ids.contains("a</w>")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tokens that end in </w> are not GPT-2's and are not supported"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeVocabulary> ReadGpt2Files(const std::string& path, const std::string& vocabulary,
                                            const std::string& merges,
                                            const TokenizerConfig& config) {
  const auto json = ParseJson(vocabulary);
  TESSERA_ASSIGN_OR_RETURN(const TokenIds ids, ReadTokenIds(path, json));
  TESSERA_RETURN_IF_ERROR(CheckIsGpt2(path, ids, config));
  BpeVocabulary result;
  AddByteLevelTokens(ids, result);
  TESSERA_RETURN_IF_ERROR(ReadMergeLines(path, merges, ids, result.merges));
  result.split = *FindSplitRules(kGpt2Regex);
  for (const std::string& text : {std::string("<|endoftext|>"), config.eos_token}) {
    const auto found = ids.find(text);
    if (found == ids.end() || !result.added.empty()) continue;
    result.added.push_back({.text = text, .id = found->second, .special = true});
  }
  TESSERA_ASSIGN_OR_RETURN(result.end_of_text, FindEndOfText(path, result.added, config));
  TESSERA_RETURN_IF_ERROR(CheckConfig(path, result, config));
  result.files = {{kGpt2VocabularyName, vocabulary}, {kGpt2MergesName, merges}};
  if (!config.contents.empty()) result.files.push_back({kTokenizerConfigName, config.contents});
  return result;
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseGpt2Files(const std::string& path,
                                                             const std::string& vocabulary,
                                                             const std::string& merges,
                                                             const TokenizerConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(BpeVocabulary result, ReadGpt2Files(path, vocabulary, merges, config));
  return BpeTokenizer::Create(path, std::move(result));
}

}  // namespace tessera
