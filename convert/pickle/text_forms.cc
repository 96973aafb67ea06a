#include "convert/pickle/text_forms.h"

#include <cstddef>
#include <cstdint>

namespace tessera::ckpt::pickle {
namespace {

constexpr uint32_t kMaxCodePoint = 0x10FFFF;

void AppendUtf8(uint32_t code, std::string& to) {
  const auto continuation = [&](int shift) {
    to.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3F)));
  };
  if (code < 0x80) {
    to.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    to.push_back(static_cast<char>(0xC0 | (code >> 6)));
    continuation(0);
  } else if (code < 0x10000) {
    to.push_back(static_cast<char>(0xE0 | (code >> 12)));
    continuation(6);
    continuation(0);
  } else {
    to.push_back(static_cast<char>(0xF0 | (code >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The number that exactly `digits` hexadecimal digits at the beginning of `text` make.
std::optional<uint32_t> HexNumber(std::string_view text, size_t digits) {
  if (text.size() < digits) return std::nullopt;
  uint32_t number = 0;
  for (const char c : text.substr(0, digits)) {
    const int digit = HexDigit(c);
    if (digit < 0) return std::nullopt;
    number = number * 16 + static_cast<uint32_t>(digit);
  }
  return number;
}

// The byte that a one-letter escape stands for.
std::optional<char> SimpleEscape(char letter) {
  constexpr std::string_view kLetters = "\\'\"abfnrtv";
  constexpr std::string_view kBytes = "\\'\"\a\b\f\n\r\t\v";
  const size_t at = kLetters.find(letter);
  if (at == kLetters.npos) return std::nullopt;
  return kBytes[at];
}

bool IsOctal(char c) { return c >= '0' && c <= '7'; }

// Decodes the escape at the beginning of `text`, after its backslash; the number of bytes it takes,
// 0 where it is malformed.
size_t DecodeEscape(std::string_view text, std::string& to) {
  if (text.empty()) return 0;
  if (const std::optional<char> byte = SimpleEscape(text[0])) {
    to.push_back(*byte);
    return 1;
  }
  if (text[0] == 'x') {
    const std::optional<uint32_t> byte = HexNumber(text.substr(1), 2);
    if (!byte) return 0;
    to.push_back(static_cast<char>(*byte));
    return 3;
  }
  uint32_t number = 0;
  size_t digits = 0;
  while (digits < 3 && digits < text.size() && IsOctal(text[digits])) {
    number = number * 8 + static_cast<uint32_t>(text[digits++] - '0');
  }
  if (digits > 0) {
    to.push_back(static_cast<char>(number));
    return digits;
  }
  to.push_back('\\');  // Python keeps escapes that it does not know
  return to.append(1, text[0]), 1;
}

}  // namespace

std::optional<std::string> DecodeQuoted(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back()) return std::nullopt;
  if (line.front() != '\'' && line.front() != '"') return std::nullopt;
  line = line.substr(1, line.size() - 2);
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      text.push_back(line[i]);
      continue;
    }
    const size_t length = DecodeEscape(line.substr(i + 1), text);
    if (length == 0) return std::nullopt;
    i += length;
  }
  return text;
}

std::optional<std::string> DecodeRawUnicodeEscape(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const char next = i + 1 < line.size() ? line[i + 1] : '\0';
    if (line[i] != '\\' || (next != 'u' && next != 'U')) {
      AppendUtf8(static_cast<uint8_t>(line[i]), text);
      continue;
    }
    const size_t digits = next == 'u' ? 4 : 8;
    const std::optional<uint32_t> code = HexNumber(line.substr(i + 2), digits);
    if (!code || *code > kMaxCodePoint) return std::nullopt;
    AppendUtf8(*code, text);
    i += 1 + digits;
  }
  return text;
}

}  // namespace tessera::ckpt::pickle
