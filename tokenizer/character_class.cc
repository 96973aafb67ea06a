#include "tokenizer/character_class.h"

#include <unicode/uchar.h>

#include <array>
#include <vector>

#include "base/utf8.h"

namespace tessera {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

struct Range {
  uint32_t first;
  uint32_t last;
  CharacterClass kind;
};

constexpr auto kLetter = CharacterClass::kLetter;
constexpr auto kNumber = CharacterClass::kNumber;

// The letters and numbers that Unicode 15.1 and 16.0 added. They count where ICU's version of
// Unicode is older.
constexpr Range kNewer[] = {
    {0x1C89, 0x1C8A, kLetter},   {0xA7CB, 0xA7CD, kLetter},   {0xA7DA, 0xA7DC, kLetter},
    {0x105C0, 0x105F3, kLetter}, {0x10D40, 0x10D49, kNumber}, {0x10D4A, 0x10D65, kLetter},
    {0x10D6F, 0x10D85, kLetter}, {0x10EC2, 0x10EC4, kLetter}, {0x11380, 0x11389, kLetter},
    {0x1138B, 0x1138B, kLetter}, {0x1138E, 0x1138E, kLetter}, {0x11390, 0x113B5, kLetter},
    {0x113B7, 0x113B7, kLetter}, {0x113D1, 0x113D1, kLetter}, {0x113D3, 0x113D3, kLetter},
    {0x116D0, 0x116E3, kNumber}, {0x11BC0, 0x11BE0, kLetter}, {0x11BF0, 0x11BF9, kNumber},
    {0x13460, 0x143FA, kLetter}, {0x16100, 0x1611D, kLetter}, {0x16130, 0x16139, kNumber},
    {0x16D40, 0x16D6C, kLetter}, {0x16D70, 0x16D79, kNumber}, {0x18CFF, 0x18CFF, kLetter},
    {0x1CCF0, 0x1CCF9, kNumber}, {0x1E5D0, 0x1E5ED, kLetter}, {0x1E5F0, 0x1E5F0, kLetter},
    {0x1E5F1, 0x1E5FA, kNumber}, {0x2EBF0, 0x2EE5D, kLetter},
};

CharacterClass IcuClass(uint32_t code_point) {
  const UChar32 c = static_cast<UChar32>(code_point);
  const uint32_t category = U_GET_GC_MASK(c);
  if ((category & U_GC_L_MASK) != 0) return CharacterClass::kLetter;
  if ((category & U_GC_N_MASK) != 0) return CharacterClass::kNumber;
  const bool space = u_hasBinaryProperty(c, UCHAR_WHITE_SPACE) != 0;
  return space ? CharacterClass::kSpace : CharacterClass::kOther;
}

std::vector<CharacterClass> MakeTable() {
  std::vector<CharacterClass> table(kCodePoints);
  for (uint32_t c = 0; c < kCodePoints; ++c) table[c] = IcuClass(c);
  for (const Range& range : kNewer) {
    for (uint32_t c = range.first; c <= range.last; ++c) {
      if (u_charType(static_cast<UChar32>(c)) == U_UNASSIGNED) table[c] = range.kind;
    }
  }
  return table;
}

// Of a well-formed character.
uint32_t CodePoint(std::string_view text, size_t length) {
  uint32_t code_point = static_cast<uint8_t>(text[0]) & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    code_point = code_point << 6 | (static_cast<uint8_t>(text[i]) & 0x3Fu);
  }
  return code_point;
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

}  // namespace

CharacterClass ClassOf(uint32_t code_point) {
  static const auto* table = new std::vector<CharacterClass>(MakeTable());
  return (*table)[code_point];
}

Character FirstCharacter(std::string_view text) {
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {kAscii[first], 1};
  const size_t length = Utf8Length(text);
  if (length == 0) return {CharacterClass::kOther, 1};
  return {ClassOf(CodePoint(text, length)), static_cast<uint8_t>(length)};
}

}  // namespace tessera
