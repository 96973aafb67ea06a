#include "tokenizer/bpe/normalizers.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/text.h"
#include "tokenizer/bpe/alphabet.h"

namespace tessera {
namespace {

// Texts are normalised in parts: ICU counts in 32 bits.
constexpr size_t kMaxPartBytes = size_t{1} << 28;

const icu::Normalizer2* FindForm(NormalizationForm form, UErrorCode& error) {
  switch (form) {
    case NormalizationForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalizationForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalizationForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalizationForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

// Appends the normalised form; the text itself where ICU cannot.
void NormalizeValid(NormalizationForm form, std::string_view text, std::string& to) {
  static const icu::UnicodeSet* known = [] {
    UErrorCode error = U_ZERO_ERROR;
    auto* set = new icu::UnicodeSet(UNICODE_STRING_SIMPLE("[:age=9.0:]"), error);
    return set->freeze();
  }();
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* all = FindForm(form, error);
  if (all != nullptr && U_SUCCESS(error)) {
    const icu::FilteredNormalizer2 normalizer(*all, *known);
    std::string normalized;
    icu::StringByteSink<std::string> sink(&normalized);
    normalizer.normalizeUTF8(0, {text.data(), static_cast<int32_t>(text.size())}, sink, nullptr,
                             error);
    if (U_SUCCESS(error)) {
      to += normalized;
      return;
    }
  }
  to += text;
}

// Returns the length of the UTF-8 text at the beginning. Ends before an ASCII character where it
// would be longer than a part.
size_t ValidLength(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const size_t character = Utf8Length(text.substr(length));
    if (character == 0 || (length > kMaxPartBytes && character == 1)) break;
    length += character;
  }
  return length;
}

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

std::string Normalize(NormalizationForm form, std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  std::string normalized;
  while (!text.empty()) {
    const size_t length = ValidLength(text);
    if (length > 0) {
      NormalizeValid(form, text.substr(0, length), normalized);
    } else {
      normalized += text.front();
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return normalized;
}

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
