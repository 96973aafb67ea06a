#include "tokenizer/sentencepiece_normalizer.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace tessera {
namespace {

// Fields of a unit of the double array.
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 1 << 9) >> 6); }

}  // namespace

absl::StatusOr<PrecompiledCharsmap> PrecompiledCharsmap::Parse(const std::string& path,
                                                               std::string_view bytes) {
  PrecompiledCharsmap map;
  if (bytes.empty()) return map;
  const auto wrong = [&](std::string_view what) {
    return absl::DataLossError(
        absl::StrCat(path, ": precompiled_charsmap of ", bytes.size(),
                     " bytes: ", absl::string_view(what.data(), what.size())));
  };
  if (bytes.size() < sizeof(uint32_t)) return wrong("expected the size of its trie, found none");
  const auto trie_bytes = LoadLittleEndian<uint32_t>(bytes.data());
  bytes.remove_prefix(sizeof(uint32_t));
  if (trie_bytes > bytes.size() || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0) {
    return wrong(absl::StrCat("a trie of ", trie_bytes, " bytes does not fit"));
  }
  for (size_t at = 0; at < trie_bytes; at += sizeof(uint32_t)) {
    map.units_.push_back(LoadLittleEndian<uint32_t>(bytes.data() + at));
  }
  map.replacements_ = bytes.substr(trie_bytes);
  if (map.replacements_.empty() || map.replacements_.back() != '\0') {
    return wrong("the last replacement has no end");
  }
  return map;
}

// Every step is checked: the units come from a file.
PrecompiledCharsmap::Replacement PrecompiledCharsmap::Find(std::string_view text) const {
  Replacement longest;
  if (units_.empty()) return longest;
  uint32_t at = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    if (at >= units_.size() || Label(units_[at]) != byte) break;
    const uint32_t unit = units_[at];
    at ^= Offset(unit);
    if (!HasValue(unit)) continue;
    if (at >= units_.size() || Value(units_[at]) >= replacements_.size()) break;
    longest = {i + 1, replacements_.data() + Value(units_[at])};
  }
  return longest;
}

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    const std::string& path, const SentencePieceModel& model) {
  SentencePieceNormalizer normalizer;
  TESSERA_ASSIGN_OR_RETURN(normalizer.charsmap_,
                           PrecompiledCharsmap::Parse(path, model.precompiled_charsmap));
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type == SentencePieceType::kUserDefined) normalizer.user_defined_.Add(piece.text, 0);
  }
  normalizer.add_dummy_prefix_ = model.add_dummy_prefix;
  normalizer.remove_extra_whitespaces_ = model.remove_extra_whitespaces;
  normalizer.whitespace_as_suffix_ = model.whitespace_as_suffix;
  normalizer.space_ = model.escape_whitespaces ? kSpaceMark : " ";
  return normalizer;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::NormalizePrefix(
    std::string_view text) const {
  size_t symbol = 0;
  user_defined_.ForEachPrefix(text, [&](size_t length, int32_t) { symbol = length; });
  if (symbol > 0) return {symbol, text.substr(0, symbol)};
  const PrecompiledCharsmap::Replacement replacement = charsmap_.Find(text);
  if (replacement.length > 0) return {replacement.length, replacement.by};
  const size_t length = Utf8Length(text);
  if (length == 0) return {1, kReplacementCharacter};
  return {length, text.substr(0, length)};
}

std::string SentencePieceNormalizer::Normalize(std::string_view text) const {
  std::string normalized;
  bool after_space = remove_extra_whitespaces_;
  if (remove_extra_whitespaces_) {
    while (!text.empty()) {
      const Prefix prefix = NormalizePrefix(text);
      if (prefix.by != " ") break;
      text.remove_prefix(prefix.length);
    }
  }
  if (text.empty()) return normalized;
  if (add_dummy_prefix_ && !whitespace_as_suffix_) normalized = space_;
  while (!text.empty()) {
    Prefix prefix = NormalizePrefix(text);
    text.remove_prefix(prefix.length);
    while (after_space && prefix.by.starts_with(' ')) prefix.by.remove_prefix(1);
    for (const char c : prefix.by) {
      if (c == ' ') {
        normalized += space_;
      } else {
        normalized += c;
      }
    }
    if (!prefix.by.empty()) after_space = prefix.by.back() == ' ';
    if (!remove_extra_whitespaces_) after_space = false;
  }
  if (remove_extra_whitespaces_) {
    while (std::string_view(normalized).ends_with(space_)) {
      normalized.resize(normalized.size() - space_.size());
    }
  }
  if (add_dummy_prefix_ && whitespace_as_suffix_) normalized += space_;
  return normalized;
}

}  // namespace tessera
