#include "trainer/tokenizer/text_normalizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void TextNormalizer::AddForm(NormalizationForm form) {
  steps_.emplace_back([form](std::string_view text) { return tessera::Normalize(form, text); });
}

void TextNormalizer::AddPrefix(std::string prefix) {
  steps_.emplace_back([prefix = std::move(prefix)](std::string_view text) {
    return text.empty() ? std::string() : absl::StrCat(prefix, View(text));
  });
}

void TextNormalizer::AddReplacement(std::string from, std::string to) {
  steps_.emplace_back([from = std::move(from), to = std::move(to)](std::string_view text) {
    return absl::StrReplaceAll(View(text), {{from, to}});
  });
}

std::string TextNormalizer::Normalize(std::string_view text) const {
  std::string current(text);
  for (const auto& step : steps_) current = step(current);
  return current;
}

}  // namespace tessera
