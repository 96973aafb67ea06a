#include "tokenizer/bpe/added_tokens.h"

#include <utility>

namespace tessera {
void StringFinder::Add(std::string_view text, int32_t value) {
  uint64_t node = 0;
  for (const char c : text) {
    const auto [found, inserted] = next_.try_emplace(node << 8 | static_cast<uint8_t>(c),
                                                     static_cast<uint32_t>(values_.size()));
    if (inserted) values_.push_back(-1);
    node = found->second;
  }
  values_[node] = value;
}

StringFinder::Match StringFinder::Find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size() && !empty(); ++begin) {
    Match longest;
    uint64_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto found = next_.find(node << 8 | static_cast<uint8_t>(text[at]));
      if (found == next_.end()) break;
      node = found->second;
      if (values_[node] >= 0) longest = {begin, at + 1, values_[node]};
    }
    if (longest.value >= 0) return longest;
  }
  return {};
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, TextNormalizer normalizer)
    : tokens_(std::move(tokens)), normalizer_(std::move(normalizer)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (token.normalized) {
      normalized_.Add(normalizer_.Normalize(token.text), static_cast<int32_t>(i));
    } else {
      raw_.Add(token.text, static_cast<int32_t>(i));
    }
    if (!tokens_[i].special) has_ordinary_ = true;
  }
}

void AddedTokens::SplitBy(const StringFinder& finder, std::string_view text, bool special,
                          const Visit& visit) const {
  size_t done = 0, from = 0;
  while (true) {
    const StringFinder::Match match = finder.Find(text, from);
    if (match.value < 0) break;
    from = match.end;
    const AddedToken& token = tokens_[match.value];
    if (token.special && !special) continue;
    if (done < match.begin) visit(text.substr(done, match.begin - done), -1);
    visit(text.substr(match.begin, match.end - match.begin), token.id);
    done = match.end;
  }
  if (done < text.size()) visit(text.substr(done), -1);
}

void AddedTokens::Split(std::string_view text, bool special, const Visit& visit) const {
  SplitBy(raw_, text, special, [&](std::string_view part, int32_t id) {
    if (id >= 0) return visit(part, id);
    if (!normalizer_.active()) return SplitBy(normalized_, part, special, visit);
    SplitBy(normalized_, normalizer_.Normalize(part), special, visit);
  });
}

}  // namespace tessera
