#include "tokenizer/bpe/split_rules.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "base/text.h"
#include "tokenizer/bpe/unicode_tables.h"

namespace tessera {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

std::vector<CharacterClass> MakeTable() {
  std::vector<CharacterClass> table(kCodePoints);
  for (const auto& [first, last, kind] : UnicodeClasses()) {
    std::fill(table.begin() + first, table.begin() + last + 1, kind);
  }
  return table;
}

constexpr CharacterClass AsciiClass(int c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  if (letter) return CharacterClass::kLetter;
  if (c >= '0' && c <= '9') return CharacterClass::kNumber;
  return c == ' ' || (c >= '\t' && c <= '\r') ? CharacterClass::kSpace : CharacterClass::kOther;
}

constexpr std::array<CharacterClass, 128> MakeAsciiTable() {
  std::array<CharacterClass, 128> table = {};
  for (int c = 0; c < 128; ++c) table[c] = AsciiClass(c);
  return table;
}

constexpr std::array<CharacterClass, 128> kAscii = MakeAsciiTable();

constexpr SplitRules kGpt2Rules = {};
constexpr SplitRules kLlama3Rules = {
    .contractions_in_any_case = true, .any_prefix = true, .max_digits = 3, .line_ends = true};
constexpr SplitRules kCl100kRules = {.contractions_in_any_case = true,
                                     .any_prefix = true,
                                     .max_digits = 3,
                                     .line_ends = true,
                                     .whole_tail = true};
constexpr SplitRules kQwen2Rules = {
    .contractions_in_any_case = true, .any_prefix = true, .max_digits = 1, .line_ends = true};

struct KnownRegex {
  std::string_view regex;
  SplitRules rules;
};

// The first one of equal rules is written to tokenizer.json, whose programs (Oniguruma) take {1,3}+
// for a repetition and $ for the end of a line.
constexpr KnownRegex kKnown[] = {
    {kGpt2Regex, kGpt2Rules},
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     kGpt2Rules},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
     kGpt2Rules},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s++(?!\S)|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kCl100kRules},
    {kCl100kRegex, kCl100kRules},
    {kLlama3Regex, kLlama3Rules},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kQwen2Rules},
};

// Returns the end of the run of characters of one class that begins at `at`.
size_t RunEnd(std::string_view text, size_t at, CharacterClass kind) {
  while (at < text.size()) {
    const Character next = FirstCharacter(text.substr(at));
    if (next.kind != kind) break;
    at += next.length;
  }
  return at;
}

size_t NumberEnd(const SplitRules& rules, std::string_view text) {
  if (rules.max_digits == 0) return RunEnd(text, 0, CharacterClass::kNumber);
  size_t at = 0;
  for (int i = 0; i < rules.max_digits && at < text.size(); ++i) {
    const Character next = FirstCharacter(text.substr(at));
    if (next.kind != CharacterClass::kNumber) break;
    at += next.length;
  }
  return at;
}

bool IsLineEnd(char c) { return c == '\r' || c == '\n'; }

size_t PunctuationEnd(const SplitRules& rules, std::string_view text, size_t at) {
  at = RunEnd(text, at, CharacterClass::kOther);
  while (rules.line_ends && at < text.size() && IsLineEnd(text[at])) ++at;
  return at;
}

// Returns the length of a contraction at the start of a text that begins with an apostrophe; 0 if
// none.
size_t ContractionLength(const SplitRules& rules, std::string_view text) {
  const auto letter = [&](size_t i) {
    if (i >= text.size()) return '\0';
    const char c = text[i];
    const bool upper = c >= 'A' && c <= 'Z';
    return rules.contractions_in_any_case && upper ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (first == 'l' && letter(2) == 'l') return 3;
  if ((first == 'v' || first == 'r') && letter(2) == 'e') return 3;
  // U+017F, the long s, is another case of s.
  const bool long_s = rules.contractions_in_any_case && text.substr(1).starts_with("\xC5\xBF");
  return long_s ? 3 : 0;
}

// Returns the length of the first piece of `text`, which begins with a space that is not part of a
// word, a number or punctuation.
size_t SpaceEnd(const SplitRules& rules, std::string_view text) {
  size_t end = 0, last = 0, line_end = 0;
  while (end < text.size()) {
    const Character next = FirstCharacter(text.substr(end));
    if (next.kind != CharacterClass::kSpace) break;
    last = end;
    end += next.length;
    if (IsLineEnd(text[last])) line_end = end;
  }
  const bool tail = end == text.size();
  if (tail && rules.whole_tail) return end;
  const bool before_number =
      !tail && FirstCharacter(text.substr(end)).kind == CharacterClass::kNumber;
  if (before_number && rules.numbers_apart) return end;
  if (rules.line_ends && line_end > 0) return line_end;
  // The last space belongs to what follows, unless it is the only one.
  return tail || last == 0 ? end : last;
}

}  // namespace

uint32_t CodePoint(std::string_view character) {
  const size_t length = character.size();
  const uint8_t lead = static_cast<uint8_t>(character[0]);
  uint32_t code_point = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (const char c : character.substr(1)) {
    code_point = code_point << 6 | (static_cast<uint8_t>(c) & 0x3Fu);
  }
  return code_point;
}

CharacterClass ClassOf(uint32_t code_point) {
  static const auto* table = new std::vector<CharacterClass>(MakeTable());
  return (*table)[code_point];
}

Character FirstCharacter(std::string_view text) {
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {kAscii[first], 1};
  const size_t length = Utf8Length(text);
  if (length == 0) return {CharacterClass::kOther, 1};
  return {ClassOf(CodePoint(text.substr(0, length))), static_cast<uint8_t>(length)};
}

std::string_view SplitRegex(const SplitRules& rules) {
  const auto known = std::ranges::find(kKnown, rules, &KnownRegex::rules);
  CHECK(known != std::end(kKnown));
  return known->regex;
}

std::optional<SplitRules> FindSplitRules(std::string_view regex) {
  const auto* found = std::ranges::find(kKnown, regex, &KnownRegex::regex);
  if (found == std::end(kKnown)) return std::nullopt;
  return found->rules;
}

size_t PieceLength(const SplitRules& rules, std::string_view text) {
  const Character first = FirstCharacter(text);
  if (first.kind == CharacterClass::kLetter) return RunEnd(text, 0, CharacterClass::kLetter);
  if (first.kind == CharacterClass::kNumber) return NumberEnd(rules, text);
  if (text[0] == '\'') {
    if (const size_t length = ContractionLength(rules, text); length > 0) return length;
  }
  const bool alone = first.length == text.size();
  const CharacterClass second =
      alone ? CharacterClass::kSpace : FirstCharacter(text.substr(first.length)).kind;
  const bool prefix = rules.any_prefix ? !IsLineEnd(text[0]) : text[0] == ' ';
  if (prefix && second == CharacterClass::kLetter) return RunEnd(text, first.length, second);
  if (first.kind == CharacterClass::kOther) return PunctuationEnd(rules, text, 0);
  if (text[0] == ' ' && second == CharacterClass::kOther) {
    return PunctuationEnd(rules, text, first.length);
  }
  const bool spaces_begin_numbers = rules.max_digits == 0 && !rules.numbers_apart;
  if (text[0] == ' ' && second == CharacterClass::kNumber && spaces_begin_numbers) {
    return RunEnd(text, first.length, second);
  }
  return SpaceEnd(rules, text);
}

}  // namespace tessera
