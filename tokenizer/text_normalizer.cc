#include "tokenizer/text_normalizer.h"

#include "tokenizer/sentencepiece_model.h"

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

}  // namespace tessera
