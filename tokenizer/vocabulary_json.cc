#include "tokenizer/vocabulary_json.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_section.h"
#include "tokenizer/sentencepiece_model.h"

namespace tessera {
namespace {

// A file may leave out ids, but may not make a table much larger than itself.
constexpr int64_t kMaxGap = 1 << 16;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// One more than the largest.
size_t CountIds(const TokenIds& ids) {
  size_t count = 0;
  for (const auto& [token, id] : ids) count = std::max(count, static_cast<size_t>(id) + 1);
  return count;
}

}  // namespace

absl::StatusOr<TokenIds> ReadTokenIds(const std::string& path, const nlohmann::json& vocabulary) {
  if (!vocabulary.is_object() || vocabulary.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": expected a vocabulary of tokens and ids, found none"));
  }
  const int64_t limit = static_cast<int64_t>(vocabulary.size()) + kMaxGap;
  TokenIds ids;
  std::vector<bool> taken(limit);
  for (const auto& [token, id] : vocabulary.items()) {
    const bool valid = id.is_number_integer() && id >= 0 && id < limit;
    if (!valid || taken[id.get<int64_t>()]) {
      return absl::DataLossError(absl::StrCat(path, ": expected an id of its own below ", limit,
                                              " for token ", token, ", found ", JsonInWords(id)));
    }
    taken[id.get<int64_t>()] = true;
    ids[token] = id.get<int32_t>();
  }
  return ids;
}

void AddByteLevelTokens(const TokenIds& ids, BpeVocabulary& vocabulary) {
  vocabulary.tokens.resize(CountIds(ids));
  for (const auto& [token, id] : ids) {
    if (std::optional<std::string> bytes = ByteLevelDecode(token); bytes.has_value()) {
      vocabulary.tokens[id] = *std::move(bytes);
    } else {
      vocabulary.unreachable.push_back({token, id});
    }
  }
}

void AddPlainTokens(const TokenIds& ids, BpeVocabulary& vocabulary) {
  vocabulary.tokens.resize(CountIds(ids));
  for (const auto& [token, id] : ids) {
    const int byte = ParseBytePiece(token);
    vocabulary.tokens[id] = byte < 0 ? WithSpaces(token) : std::string(1, static_cast<char>(byte));
  }
}

absl::Status AddMerge(const std::string& path, const TokenIds& ids, std::string_view left,
                      std::string_view right, std::vector<BpeMerge>& merges) {
  if (left.empty() || right.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": merge ", merges.size(), " expected two tokens, found an empty one"));
  }
  const std::string merged = absl::StrCat(View(left), View(right));
  int32_t found[3];
  int32_t* next = found;
  for (const std::string_view token : {left, right, std::string_view(merged)}) {
    const auto id = ids.find(View(token));
    if (id == ids.end()) {
      return absl::DataLossError(
          absl::StrCat(path, ": merge ", merges.size(), " of ", View(left), " and ", View(right),
                       " expected in the vocabulary, found no token ", View(token)));
    }
    *next++ = id->second;
  }
  merges.push_back({found[0], found[1], static_cast<int32_t>(merges.size()), found[2]});
  return absl::OkStatus();
}

}  // namespace tessera
