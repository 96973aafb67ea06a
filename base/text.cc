#include "base/text.h"

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace tessera {

uint64_t RandomBits() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

std::string RandomHex(size_t digits) {
  std::string hex;
  while (hex.size() < digits) absl::StrAppend(&hex, absl::Hex(RandomBits(), absl::kZeroPad16));
  hex.resize(digits);
  return hex;
}

int TypingDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = static_cast<int>(i + j);
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// Implements table 3-7 of Unicode 15.
size_t Utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  const uint8_t lead = text[0];
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  const uint8_t second = text[1];
  const uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (second < lowest || second > highest) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

namespace {

// `character` is well-formed.
uint32_t CodePoint(std::string_view character) {
  const uint8_t lead = character[0];
  if (character.size() == 1) return lead;
  uint32_t code = lead & (0xFF >> (character.size() + 1));
  for (const char c : character.substr(1)) code = code << 6 | (static_cast<uint8_t>(c) & 0x3F);
  return code;
}

bool IsShownAsItIs(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;
  const auto in = [code](uint32_t first, uint32_t last) { return first <= code && code <= last; };
  // Marks, embeddings, overrides and isolates of direction; separators of lines and paragraphs.
  return code != 0x61C && !in(0x200E, 0x200F) && !in(0x2028, 0x202E) && !in(0x2066, 0x2069);
}

std::string Escape(std::string_view text, std::string_view kept) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    if (length == 0) {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<uint8_t>(text[0]));
    } else if (const uint32_t code = CodePoint(character);
               IsShownAsItIs(code) || kept.find(character) != kept.npos) {
      shown.append(character);
    } else {
      absl::StrAppendFormat(&shown, "\\u%04x", code);
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

}  // namespace

std::string Printable(std::string_view text) { return Escape(text, "\n\t"); }
std::string PrintableInLine(std::string_view text) { return Escape(text, ""); }

std::string Shown(std::string_view text) { return absl::CHexEscape(View(text.substr(0, 200))); }

std::string JoinShown(std::vector<std::string> texts) {
  for (std::string& text : texts) text = Shown(text);
  return JoinFirst(texts, ", ");
}

size_t WholeCharacters(std::string_view text) {
  // At most three bytes of a character of four can be there.
  for (size_t tail = 1; tail <= std::min<size_t>(3, text.size()); ++tail) {
    const uint8_t lead = text[text.size() - tail];
    if ((lead & 0xC0) == 0x80) continue;
    const size_t length = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
    return length > tail ? text.size() - tail : text.size();
  }
  return text.size();
}

}  // namespace tessera
