#include "tokenizer/bpe/normal_forms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "tokenizer/bpe/unicode_tables.h"

namespace tessera {
namespace {

// The Unicode Standard, section 3.12: syllables of Hangul are numbered by their two or three parts.
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;  // no tail is one of them
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

// Whether `c` is one of `count` characters from `first` on.
bool IsAmong(char32_t c, char32_t first, uint32_t count) { return c - first < count; }

struct Point {
  char32_t character;
  uint8_t combining_class;  // 0: it begins anew, and no mark moves across it
};

const NormalForm* FindForm(char32_t c) {
  const auto forms = UnicodeForms();
  const auto found = std::ranges::lower_bound(forms, c, {}, &NormalForm::character);
  return found != forms.end() && found->character == c ? &*found : nullptr;
}

uint8_t CombiningClass(char32_t c) {
  const NormalForm* form = FindForm(c);
  return form == nullptr ? 0 : form->combining_class;
}

void Decompose(bool compatible, char32_t c, std::vector<Point>& to) {
  if (IsAmong(c, kSyllables, kSyllableCount)) {
    const uint32_t syllable = c - kSyllables, tail = syllable % kTailCount;
    to.push_back({kLeads + syllable / (kVowelCount * kTailCount), 0});
    to.push_back({kVowels + syllable / kTailCount % kVowelCount, 0});
    if (tail > 0) to.push_back({kTails + tail, 0});
    return;
  }
  const NormalForm* form = FindForm(c);
  const size_t length =
      form == nullptr ? 0 : (compatible ? form->compatible_length : form->canonical_length);
  if (length == 0) {
    to.push_back({c, form == nullptr ? uint8_t{0} : form->combining_class});
    return;
  }
  const size_t begin = compatible ? form->compatible : form->canonical;
  for (const char32_t part : UnicodeParts().subspan(begin, length)) {
    to.push_back({part, CombiningClass(part)});
  }
}

// Marks between two characters of class 0 are ordered by class.
void OrderMarks(std::vector<Point>& points) {
  const auto is_mark = [](const Point& point) { return point.combining_class != 0; };
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    std::stable_sort(begin, end, [](const Point& a, const Point& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

std::optional<char32_t> Composed(char32_t first, char32_t second) {
  if (IsAmong(first, kLeads, kLeadCount) && IsAmong(second, kVowels, kVowelCount)) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (IsAmong(first, kSyllables, kSyllableCount) && (first - kSyllables) % kTailCount == 0 &&
      IsAmong(second, kTails + 1, kTailCount - 1)) {
    return first + (second - kTails);
  }
  const auto pairs = UnicodeCompositions();
  const auto parts = [](const Composition& pair) { return std::pair(pair.first, pair.second); };
  const auto found = std::ranges::lower_bound(pairs, std::pair(first, second), {}, parts);
  if (found == pairs.end() || parts(*found) != std::pair(first, second)) return std::nullopt;
  return found->composed;
}

// Joins each character with the last one of class 0 before it, unless one between them has its
// class, or 0.
void Compose(std::vector<Point>& points) {
  size_t kept = 0;
  size_t start = 0;  // where the last one of class 0 is, unless none has been kept
  for (const Point point : points) {
    const bool adjacent = start + 1 == kept;
    const bool joins = start < kept && points[start].combining_class == 0 &&
                       (adjacent || points[kept - 1].combining_class < point.combining_class);
    const auto composed = joins ? Composed(points[start].character, point.character) : std::nullopt;
    if (composed.has_value()) {
      points[start].character = *composed;
      continue;
    }
    if (point.combining_class == 0) start = kept;
    points[kept++] = point;
  }
  points.resize(kept);
}

void AppendUtf8(char32_t c, std::string& to) {
  const auto append = [&](uint32_t lead, int shift) {
    to += static_cast<char>(lead | c >> shift);
    while (shift > 0) {
      shift -= 6;
      to += static_cast<char>(0x80 | (c >> shift & 0x3F));
    }
  };
  if (c < 0x80) return append(0, 0);
  if (c < 0x800) return append(0xC0, 6);
  if (c < 0x10000) return append(0xE0, 12);
  append(0xF0, 18);
}

// Appends the normalized form of what is UTF-8.
void NormalizeValid(NormalizationForm form, std::string_view text, std::string& to) {
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const bool composes = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  std::vector<Point> points;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    Decompose(compatible, CodePoint(text.substr(0, length)), points);
    text.remove_prefix(length);
  }
  OrderMarks(points);
  if (composes) Compose(points);
  for (const Point& point : points) AppendUtf8(point.character, to);
}

bool IsAscii(char c) { return static_cast<uint8_t>(c) < 0x80; }

// The length of what is UTF-8 from the beginning on, up to an ASCII character, which changes no
// character before it.
size_t PartLength(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const size_t character = Utf8Length(text.substr(length));
    if (character == 0 || (length > 0 && IsAscii(text[length]))) break;
    length += character;
  }
  return length;
}

}  // namespace

std::string Normalize(NormalizationForm form, std::string_view text) {
  std::string normalized;
  while (!text.empty()) {
    const size_t length = PartLength(text);
    if (length <= 1) {  // ASCII, or no UTF-8
      normalized += text.front();
    } else {
      NormalizeValid(form, text.substr(0, length), normalized);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return normalized;
}

}  // namespace tessera
