#include "tokenizer/bpe/normalizers.h"

#include "tokenizer/bpe/alphabet.h"

namespace tessera {

void TextNormalizer::AddForm(NormalizationForm form) {
  steps_.emplace_back([form](std::string_view text) { return tessera::Normalize(form, text); });
}

void TextNormalizer::AddSpaceMarks() { steps_.emplace_back(WithSpaceMarks); }

void TextNormalizer::AddPrefix() {
  steps_.emplace_back([](std::string_view text) {
    std::string prefixed(text.empty() ? "" : kSpaceMark);
    return prefixed += text;
  });
}

std::string TextNormalizer::Normalize(std::string_view text) const {
  std::string current(text);
  for (const auto& step : steps_) current = step(current);
  return current;
}

std::string Metaspace::Apply(std::string_view part, bool first) const {
  std::string text = WithSpaceMarks(part);
  const bool prefixed = prefix == Prefix::kAlways || (prefix == Prefix::kFirst && first);
  if (prefixed && !text.empty() && !text.starts_with(kSpaceMark)) text.insert(0, kSpaceMark);
  return text;
}

}  // namespace tessera
